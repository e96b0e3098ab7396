"""A program over Spark Connect, which has no JVM of its own: reads two channels and writes them, in both ways."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import spark_bridge


def main(source: str, sink: str, checkpoint: str) -> None:
    """A batch and a streaming query; the batch's count on stdout."""
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    spark_bridge.register(spark)  # also found by itself; this is how it gets to a server that cannot find it
    frame = spark.read.format("netchannel").load(f"netchannel://{source}/a,b")
    sys.stdout.write(f"{frame.count()} rows\n")
    frame.coalesce(1).write.format("netchannel").mode("append").save(f"netchannel://{sink}/batch")
    stream = spark.readStream.format("netchannel").option("maxRowsPerTrigger", "500")
    query = (
        stream.load(f"netchannel://{source}/a,b")
        .writeStream.format("netchannel")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(f"netchannel://{sink}/stream")
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
