"""The driver of a query that streams a collection into another one, which may be killed: it goes on."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

import nebuli.spark


def start(store: str, checkpoint: str) -> None:
    """Run the query until somebody kills it, or it fails."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "2",
    }
    builder = SparkSession.builder.master("local[2,4]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    nebuli.spark.register(spark)
    read = spark.readStream.format("collection").option("store", store).option("collection", "a")
    rows = read.option("reader", "spark").option("changes", "true").option("minPartitions", "2").load()
    writer = rows.drop("_time").repartition(3).writeStream.format("collection").option("store", store)
    writer.option("collection", "b").option("checkpointLocation", checkpoint).start().awaitTermination()


if __name__ == "__main__":
    start(*sys.argv[1:])
