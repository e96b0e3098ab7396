"""The driver of a streaming query, in a process of its own, which may be killed: it goes on with its checkpoint.

Prints lines of JSON, as triggers end: the number of the newest one, and the resident memory of its processes.
"""

from __future__ import annotations

import json
import os
import sys

import psutil
from pyspark.sql import SparkSession

from tests.soak_spark.faults import DyingDataSource, failing


def memory() -> dict[str, int]:
    """Resident bytes of the driver's processes, by what they are."""
    found: dict[str, int] = {}
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            line = " ".join(process.cmdline())
            resident = process.memory_info().rss
        except psutil.Error:
            continue
        name = next((name for name in ("source_runner", "java", "sink_runner") if name in line), None)
        if name is not None:
            found[name] = found.get(name, 0) + resident
    return found


def start(source: str, sink: str, channels: str, rows: str, checkpoint: str) -> None:
    """Run the query until somebody kills it, or it fails."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.log.level": "OFF",
        "spark.sql.streaming.minBatchesToRetain": "5",
    }
    builder = SparkSession.builder.master("local[2,4]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(DyingDataSource)
    read = spark.readStream.format("netchannel").options(endpoint=source, channels=channels)
    frame = read.options(maxRowsPerTrigger=rows, includeMetadata="true", connectTimeout="120").load()
    out = frame.selectExpr("_channel AS source", "id", "text")
    query = (
        out.mapInArrow(failing, "source STRING, id BIGINT, text STRING")
        .writeStream.format("dying")
        .options(endpoint=sink, channels="out/0,out/1", keyColumns="source", connectTimeout="120")
        .option("checkpointLocation", checkpoint)
        .start()
    )
    seen = -1
    while not query.awaitTermination(0.25):
        progress = query.lastProgress
        if progress is not None and progress["batchId"] > seen:
            seen = progress["batchId"]
            sys.stdout.write(json.dumps({"batch": seen}) + "\n")
            sys.stdout.write(json.dumps({"memory": memory()}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    start(*sys.argv[1:])
