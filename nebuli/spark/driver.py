"""The process that drives Spark for one fragment: ``python -m nebuli.spark.driver``.

It gets its orders on standard input, and reports the outcome on standard output. The end of standard input is the
end of all: of the session, of its files, and of every process of the group that this one leads.
"""

from __future__ import annotations

import tempfile
import uuid
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

import netchannel
from nebuli.spark.driver_lead import lead
from nebuli.spark.driver_messages import DONE, DRAIN, FAILED, PHASE, Job, Report
from nebuli.spark.failures import sentence
from nebuli.spark.phases import PLANNING, STARTING, WAITING, jobs_told
from nebuli.spark.session import open_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_LOOK_S = 0.2
_PARTITIONS = 8
"""Tasks that read a bounded input side by side, at most."""
_TEMPORARY = tempfile.gettempdir()


class Driver:
    """One fragment in one session. ``tell`` is given what Spark is at."""

    def __init__(self, job: Job, tell: Callable[[str], None] = lambda phase: None) -> None:
        self.job = job
        self.tell = tell
        self.spark: SparkSession | None = None
        self.commands: SimpleQueue[str] = SimpleQueue()

    def run(self) -> None:
        """Do the job, to its end."""
        directory = Path(self.job.directory) / "spark"
        directory.mkdir()
        tempfile.tempdir = str(directory)  # PySpark leaves files there when it is ended early
        self.tell(STARTING)
        self.spark = open_session(self.job.master, self.job.name, directory)
        if self.job.bounded:
            self.tell(WAITING)
            self.commands.get()
            self.tell(PLANNING)
            with jobs_told(self.spark, self.tell, remote=self._remote):
                self._write(self._result(self.spark))
        else:
            self.tell("")
            self._stream(self._result(self.spark), directory)

    @property
    def _remote(self) -> bool:
        return self.job.master.startswith("sc://")

    def _result(self, spark: SparkSession) -> DataFrame:
        for each in self.job.inputs:
            reader = spark.read if self.job.bounded else spark.readStream
            options = {"endpoint": self.job.source, "channel": each.channel, "secret": self.job.secret}
            if self.job.bounded:
                options["minPartitions"] = str(_PARTITIONS)
            frame = reader.format("netchannel").schema(each.columns).options(**options).load()
            if each.time is not None and each.lateness is not None:
                frame = frame.withWatermark(each.time, each.lateness)
            frame.createOrReplaceTempView(each.channel)
        for name, sql in self.job.steps:
            spark.sql(sql).createOrReplaceTempView(name)
        result, _ = self.job.steps[-1]
        return spark.table(result)

    def _target(self) -> dict[str, str]:
        return {"endpoint": self.job.target, "channel": self.job.result, "secret": self.job.secret}

    def _write(self, frame: DataFrame) -> None:
        frame.write.format("netchannel").mode("append").options(**self._target()).save()

    def _stream(self, frame: DataFrame, directory: Path) -> None:
        """Compute as rows come, until there are no more; then end the result's stream."""
        # A server of Spark Connect has a disk of its own.
        checkpoint = (
            Path(_TEMPORARY, f"nebuli-{uuid.uuid4().hex}") if self._remote else directory / "checkpoint"
        )
        writer = frame.writeStream.format("netchannel").outputMode("append").options(**self._target())
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        self._until_drained(query)
        query.stop()
        with netchannel.group_client(self.job.target, self.job.result, secret=self.job.secret) as client:
            client.commit("the end of the inputs", 0, [], end=True)

    def _until_drained(self, query: StreamingQuery) -> None:
        while query.isActive:
            with suppress(Empty):
                if self.commands.get(timeout=_LOOK_S) == DRAIN:
                    # Nothing is left to read; but the last rows may have closed windows.
                    query.processAllAvailable()
                    return
        query.awaitTermination()  # raises what it has failed with
        raise RuntimeError(
            "the query was stopped before its input had ended, but this process did not stop it"
        )

    def stop(self) -> None:
        """End the session, and everything that runs in it."""
        if self.spark is not None:
            self.spark.stop()


class _Led:
    """The driver of the job on a line, as a process has it; ``report`` takes the reports."""

    def __init__(self, line: str, report: Callable[[str], None]) -> None:
        self._report = report
        self._driver = Driver(Job.from_line(line), lambda phase: report(Report(PHASE, phase=phase).to_line()))
        self.commands = self._driver.commands
        self.directory = Path(self._driver.job.directory)
        self.stop = self._driver.stop

    def run(self) -> None:
        try:
            self._driver.run()
        except Exception as error:  # noqa: BLE001 - any error: the worker reports why the fragment failed
            self._report(Report(FAILED, sentence(error)).to_line())
        else:
            self._report(Report(DONE).to_line())


if __name__ == "__main__":
    lead(_Led)
