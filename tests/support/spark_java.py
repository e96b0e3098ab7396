"""How Java runs Spark in the tests: as what lives for seconds, its classes laid out once.

Most of what a session does that lives for seconds is to find, read and check the classes of Spark. ``python -m
tests.support.spark_java`` has a session do a little of everything and Java keep the classes as it has them in memory
then (class data sharing); whoever starts Java with `environment` maps that file. Java takes it only while it is the
same Java and these are the same jars, and does without it otherwise.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.programs import program, why_not

ARCHIVE = Path(sys.prefix) / ".spark-classes.jsa"
# Compiled once and lightly, collected by one thread, classes as the release has them, and no word of an archive that
# does not fit.
_LIGHT = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
    "-Xlog:disable",
)
_TRAINING_S = 300


def environment(keep: str = f"-XX:SharedArchiveFile={ARCHIVE}") -> dict[str, str]:
    """Variables for all that starts Spark; ``keep`` is what Java is told of the archive.

    No file of Spark's settings: its folder would stand on Java's class path, and Java keeps no classes where that has
    a folder with something in it.
    """
    options = " ".join((*_LIGHT, keep))
    checkpointing = "org.apache.spark.sql.execution.streaming.checkpointing"
    settings = {
        "spark.executor.extraJavaOptions": options,
        "spark.sql.shuffle.partitions": "3",
        # What Spark takes by default for a directory starts readlink and chmod six times per micro-batch; both rename.
        # The soak runs with the default.
        "spark.sql.streaming.checkpointFileManagerClass": f"{checkpointing}.FileSystemBasedCheckpointFileManager",
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    }
    return {
        "SPARK_SUBMIT_OPTS": " ".join([options, *(f'"-D{key}={value}"' for key, value in settings.items())]),
        "SPARK_DAEMON_JAVA_OPTS": options,
        "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }


def main() -> None:
    """Make the archive, unless it is there and younger than the jars."""
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    if why_not(program("java")) is not None:
        return  # said where the programs are looked for
    if ARCHIVE.exists() and ARCHIVE.stat().st_mtime > jars.stat().st_mtime:
        return
    making = ARCHIVE.with_suffix(".making")
    making.unlink(missing_ok=True)
    train = [sys.executable, "-c", "from tests.support import spark_java; spark_java.train()"]
    variables = {**environment(f"-XX:ArchiveClassesAtExit={making}"), "SPARK_LOCAL_IP": "127.0.0.1"}
    subprocess.run(
        train,
        check=True,
        timeout=_TRAINING_S,
        env={**os.environ, **variables, "PYSPARK_PYTHON": sys.executable},
    )
    making.rename(ARCHIVE)


def train() -> None:
    """Do a little of what tests do, in a session whose Java ends before this returns."""
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    class Reader(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
            return {"row": 0}

        def latestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
            return {"row": 10}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return [InputPartition((start["row"], end["row"]))]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            first, behind = partition.value
            yield pa.RecordBatch.from_pydict({"row": list(range(first, behind))})

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "training"

        def schema(self) -> str:
            return "row long"

        def streamReader(self, schema: Any) -> Reader:  # noqa: N802 - Spark's name
            return Reader()

    def same(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from parts

    quiet = {"spark.ui.enabled": "false", "spark.log.level": "OFF"}
    session = SparkSession.builder.master("local[2]").config(map=quiet).getOrCreate()
    rows = (
        session.range(1000).withColumn("key", f.col("id") % 7).withColumn("text", f.col("id").cast("string"))
    )
    sums = rows.groupBy("key").agg(f.sum("id"), f.max("text"))
    sums.join(rows, "key").orderBy("id").mapInArrow(same, sums.join(rows, "key").schema).toArrow()
    session.createDataFrame([(1, "a"), (2, None)], "number int, text string").collect()
    session.dataSource.register(Source)
    stream = session.readStream.format("training").load()
    for query in (
        stream.writeStream.format("memory").queryName("rows"),
        stream.groupBy("row")
        .count()
        .writeStream.outputMode("complete")
        .foreachBatch(lambda frame, _: frame.collect()),
    ):
        query.trigger(availableNow=True).start().awaitTermination(60)
    session.sql("SELECT count(*) FROM rows").collect()
    session.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_TRAINING_S)


if __name__ == "__main__":
    main()
