"""The driver of a query that streams files into a circuit, which may be killed: it goes on with its checkpoint."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from tests.nebuli.spark.streams.faults import DyingCircuit


def start(files: str, circuit: str, checkpoint: str) -> None:
    """Run the query until somebody kills it, or it fails."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20",
    }
    builder = SparkSession.builder.master("local[2,4]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(DyingCircuit)
    read = spark.readStream.schema("shop STRING, amount BIGINT").option("maxFilesPerTrigger", 1)
    writer = read.json(files).repartition(3).writeStream.format("dying")
    query = (
        writer.option("circuit", circuit)
        .option("input", "sales")
        .option("checkpointLocation", checkpoint)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    start(*sys.argv[1:])
