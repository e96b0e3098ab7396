"""The Spark task that runs here: its place in the job, and whether Spark has given it all of its input."""

from __future__ import annotations

import functools
import gc
import logging
import sys
import threading
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from spark_bridge.errors import ChannelTemplate, InputIncomplete, NotInTask, OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType

    import pyarrow as pa

log = logging.getLogger("spark_bridge")


@dataclass(frozen=True, slots=True)
class Task:
    """An attempt at one partition of a stage."""

    stage: int
    partition: int
    attempt: int

    def channel(self, template: str) -> str:
        """The channel id of this partition. Raises ChannelTemplate if another partition has the same."""
        name = format_channel(template, self.partition)
        if self.partition > 0 and name == format_channel(template, 0):
            raise ChannelTemplate(
                f"only one partition can be sent on channel {template!r}, but the rows have several, and this is "
                f"partition {self.partition}: put {{partition}} into the channel's name, or use coalesce(1)"
            )
        return name

    def new_stream(self) -> str:
        """Return an identity for a stream of this attempt, by which logs and errors show its origin."""
        return f"stage-{self.stage}-partition-{self.partition}-attempt-{self.attempt}-{uuid.uuid4().hex}"


def format_channel(template: str, partition: int) -> str:
    """``template`` with ``{partition}`` filled in. Raises ChannelTemplate for any other field."""
    try:
        return template.format(partition=partition)
    except (LookupError, ValueError) as error:
        raise ChannelTemplate(
            f"the channel name {template!r} is not a valid template ({error!r}): its only field can be {{partition}}; "
            f"write all other braces twice"
        ) from error


def current_task() -> Task:
    """The task that runs in this process. Raises NotInTask on the driver and outside Spark."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise NotInTask(
            "no Spark task runs here: call this within mapInArrow or foreachPartition; elsewhere use "
            "netchannel.SenderServer and netchannel.ReceiverServer"
        )
    return Task(context.stageId(), context.partitionId(), context.attemptNumber())


def check_no_table() -> None:
    """Raise OptionError in a task that fills a table of Spark's catalog, which could not be read.

    Spark does not pass a source the purpose of a write. It runs the write of a table that it creates within the command
    that creates it, and as no other write but those of ``foreachBatch``, which know their query; if the task fails,
    Spark drops the table. ``toTable`` creates its table before the query, whose tasks know its starter.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return
    known = context.getLocalProperty
    command, write = known("spark.sql.execution.root.id"), known("spark.sql.execution.id")
    creates = command != write and known("sql.streaming.queryId") is None
    if creates or (known("callSite.short") or "").startswith("toTable "):
        raise OptionError(
            "the rows are written to a table of Spark's catalog, which does not store the channels' address, so the "
            "table could not be read: write with save() or start(), instead of saveAsTable, writeTo or toTable; to "
            "name channels in SQL, use CREATE TEMPORARY VIEW name USING format OPTIONS (...)"
        )


def check_input() -> None:
    """Raise InputIncomplete if Spark has stopped giving rows without a mark that these were all.

    To be called when the rows have ended. They often end in the same way when there are no more, when code above this
    task has raised, and when the task is killed: the rows' iterator does not distinguish these. The distinction is the
    mark that the JVM writes after the last row, and that Spark's own worker waits for after the task
    (``END_OF_STREAM``); without it the connection has ended. Rows that were left unread by choice are not a failure.
    """
    try:
        if _input_stream().peek(1):  # type: ignore[attr-defined]  # buffered readers have it, BinaryIO does not declare it
            return
        cause = "it closed its connection before it sent the end"
    except OSError as error:
        cause = f"its connection failed: {error}"
    raise InputIncomplete(
        f"Spark stopped sending rows before the partition was complete ({cause}): an earlier step of the query "
        f"has failed, or the task was killed"
    )


def complete(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield all ``batches`` of ``mapInArrow``, to their end. Raises InputIncomplete if some are missing."""
    import pyarrow as pa

    try:
        yield from batches
    except (pa.ArrowInvalid, OSError):
        check_input()  # what was read is half a message then
        raise
    check_input()
    settle()


@functools.cache
def settle() -> None:
    """Let collections of garbage pass over what is loaded by now, in a process of PySpark's own; once per process.

    To be called when the first work is done. PySpark's workers collect after every task; to look at everything that
    modules consist of takes tens of milliseconds then, more than a small task itself.
    """
    main = getattr(sys.modules["__main__"], "__spec__", None)
    if main is not None and main.name.startswith("pyspark."):
        gc.freeze()


def _input_stream() -> BinaryIO:
    """Return the stream from the JVM to this worker: known to the worker's main function only."""
    frame: FrameType | None = sys._current_frames()[threading.main_thread().ident or 0]  # noqa: SLF001 - documented
    while frame is not None:
        code = frame.f_code
        if code.co_name == "main" and code.co_filename.endswith("worker.py") and "infile" in frame.f_locals:
            stream: BinaryIO = frame.f_locals["infile"]
            return stream
        frame = frame.f_back
    raise NotInTask(
        "the PySpark worker of this process is of an unknown kind, so a complete input cannot be distinguished from "
        "a broken one: use PySpark 4.1 to 4.3, or report your version"
    )
