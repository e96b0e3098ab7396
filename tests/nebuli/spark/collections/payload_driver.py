"""The driver of a query that streams lines as raw messages into a collection; it may be killed, and goes on."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

import nebuli.spark


def start(folder: str, store: str, checkpoint: str) -> None:
    """Run the query, a file for each of its batches, until somebody kills it, or it fails."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.log.level": "OFF",
    }
    builder = SparkSession.builder.master("local[2,4]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    nebuli.spark.register(spark)
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(folder)
    payloads = lines.selectExpr("CAST(value AS BINARY) AS payload").repartition(2)
    writer = payloads.writeStream.format("collection").option("store", store).option("collection", "payloads")
    writer.option("checkpointLocation", checkpoint).start().awaitTermination()


if __name__ == "__main__":
    start(*sys.argv[1:])
