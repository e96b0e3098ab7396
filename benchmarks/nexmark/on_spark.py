"""Nexmark's queries in Spark Structured Streaming: ``python on_spark.py QUERY FOLDER RESULT STATE``.

A file of each stream is a micro-batch; the state is in RocksDB, and checkpoints are on. Results are appended as they
are final, so that windows need a last event long after all others, which has no part in what comes out.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

SCHEMAS = {
    "person": "id long, name string, city string, state string, date_time timestamp",
    "auction": "id long, seller long, category long, date_time timestamp, expires timestamp",
    "bid": "auction long, bidder long, price long, date_time timestamp",
}
SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "ERROR",
}
LENGTH, HOP = "10 seconds", "2 seconds"
NO_LATENESS = "0 seconds"


class Streams:
    """The files of a folder, one of each stream at a time."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder = spark, folder

    def read(self, name: str) -> DataFrame:
        """A stream."""
        reader = self._spark.readStream.schema(SCHEMAS[name]).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self._folder / name))

    def timed(self, name: str) -> DataFrame:
        """The same, in order."""
        return self.read(name).withWatermark("date_time", NO_LATENESS)


def q1(streams: Streams) -> DataFrame:
    """Currency conversion."""
    price = (F.lit(0.908) * F.col("price")).alias("price")
    return streams.read("bid").select("auction", "bidder", price, "date_time")


def q3(streams: Streams) -> DataFrame:
    """Local item suggestion."""
    auction = streams.read("auction").where("category = 10").select("seller", F.col("id").alias("auction"))
    person = streams.read("person").where("state IN ('OR', 'ID', 'CA')")
    joined = auction.join(person, auction.seller == person.id)
    return joined.select("name", "city", "state", "auction")


def q4(streams: Streams) -> DataFrame:
    """Average price for a category. It is refused: aggregates of aggregates go by windows only."""
    auction, bid = streams.timed("auction"), streams.timed("bid").withColumnRenamed("date_time", "at")
    at = F.col("at").between(F.col("date_time"), F.col("expires"))
    both = auction.join(bid, (F.col("id") == F.col("auction")) & at)
    winning = both.groupBy("id", "category").agg(F.max("price").alias("final"))
    return winning.groupBy("category").agg(F.avg("final").alias("price"))


def q5(streams: Streams) -> DataFrame:
    """Hot items: each window's counts together, and those that are the greatest."""
    bid = streams.timed("bid")
    counts = bid.groupBy(F.window("date_time", LENGTH, HOP), "auction").agg(F.count("*").alias("num"))
    together = counts.groupBy("window").agg(
        F.max("num").alias("most"), F.collect_list(F.struct("auction", "num")).alias("each")
    )
    every = together.select(
        F.col("window.start").alias("window_start"), "most", F.explode("each").alias("one")
    )
    return every.where("one.num = most").select("window_start", "one.num", "one.auction")


def q8(streams: Streams) -> DataFrame:
    """New users."""
    person = streams.timed("person").groupBy(F.window("date_time", LENGTH), "id", "name").count()
    auction = streams.timed("auction").groupBy(F.window("date_time", LENGTH), "seller").count()
    both = person.select("window", "id", "name").join(
        auction.select("window", F.col("seller").alias("id")), ["window", "id"]
    )
    return both.select("id", "name", F.col("window.start").alias("window_start"))


def main(query: str, folder: str, result: str, state: str) -> None:
    """Read what is there to its end, and write what is final."""
    builder: Any = SparkSession.builder.master("local[2]")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    found = {"q1": q1, "q3": q3, "q4": q4, "q5": q5, "q8": q8}[query](Streams(spark, Path(folder)))
    writer = found.writeStream.option("checkpointLocation", state).trigger(availableNow=True)
    writer.outputMode("append").format("parquet").start(result).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
