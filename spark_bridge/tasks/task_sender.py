"""Sending from a task: the rows of each partition go out on a channel of their own."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import netchannel
from netchannel import BufferPolicy, FaultPolicy
from spark_bridge.schemas import DeclaredSchema, Normaliser, arrow_schema

from .task import check_input, complete, current_task, format_channel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from netchannel.process.blocking import BlockingSenderChannel

SENT = "partition INT, channel STRING, batches BIGINT, rows BIGINT"
"""The schema, as DDL, of the rows that `send` gives back: one per partition."""

WAIT = FaultPolicy(retry=60.0)
"""How long a task waits for a peer by default. Without a bound, a peer that never comes would hold the task's slot."""


@contextmanager
def open_outbox(
    channel: str,
    to: str,
    *,
    schema: pa.Schema | None = None,
    buffer: BufferPolicy | None = None,
    fault: FaultPolicy = WAIT,
) -> Iterator[BlockingSenderChannel]:
    """Open a channel on which the current task sends, for ``foreachPartition`` and your own functions.

    If Spark has passed the task all of its input, leaving the ``with`` block ends the stream, and waits until
    everything is acknowledged. An exception within the block, or an incomplete input, aborts the stream: its consumer
    gets `netchannel.ChannelFailed` after the sent messages. Each attempt of a task is a separate stream.

    Args:
        channel: the channel's id; ``{partition}`` stands for the number of the partition.
        to: the receiver's address, as executors reach it.
        schema: the batches' schema (default: the first batch's).
        buffer: the bound of unacknowledged messages.
        fault: how long to wait for an absent receiver.

    Raises:
        NotInTask: the call is not in a Spark task.
        ChannelTemplate: this partition would share its channel with others.
        InputIncomplete: Spark failed upstream of this task; the stream was aborted.
        netchannel.NetChannelError: the error that ended the channel.
    """
    task = current_task()
    outbox = netchannel.sender_server().register_channel(
        task.channel(channel), to, schema=schema, stream=task.new_stream(), buffer=buffer, fault=fault
    )
    try:
        yield outbox
        check_input()
        outbox.close()
    except BaseException as error:
        outbox.abort(error)
        raise


@dataclass(frozen=True, slots=True)
class Send:
    """The result of `send`: a function for ``mapInArrow``."""

    channel: str
    to: str
    schema: pa.Schema | None
    buffer: BufferPolicy | None
    fault: FaultPolicy

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send a partition; yields its row of `SENT`."""
        rows = 0
        normalise = None if self.schema is None else Normaliser(self.schema)
        with open_outbox(
            self.channel, self.to, schema=self.schema, buffer=self.buffer, fault=self.fault
        ) as outbox:
            for batch in complete(batches):
                # The JVM gives timestamps in the session's time zone; channels carry UTC.
                normalise = normalise or Normaliser(arrow_schema(batch.schema))
                outbox.send(normalise(batch))
                rows += batch.num_rows
        yield _sent(outbox, rows)


def _sent(outbox: BlockingSenderChannel, rows: int) -> pa.RecordBatch:
    import pyarrow as pa

    columns = {
        "partition": pa.array([current_task().partition], pa.int32()),
        "channel": pa.array([outbox.id], pa.string()),
        "batches": pa.array([outbox.position], pa.int64()),
        "rows": pa.array([rows], pa.int64()),
    }
    return pa.RecordBatch.from_pydict(columns)


def send(
    channel: str,
    to: str,
    *,
    schema: DeclaredSchema | None = None,
    buffer: BufferPolicy | None = None,
    fault: FaultPolicy = WAIT,
) -> Send:
    """Return a function for ``mapInArrow`` that sends every partition on a separate channel.

    ::

        df.mapInArrow(spark_bridge.send("flights/{partition}", to="10.0.0.5:7000"), spark_bridge.SENT).collect()

    The result has one row for each partition, once all of the partition is acknowledged: the partition's number and
    channel, and the numbers of its batches and rows. Batches have Spark's types for their columns, with timestamps in
    UTC, or the types of ``schema``. With ``schema``, the consumers of empty partitions get the schema, too. All else is
    as for `open_outbox`.
    """
    format_channel(channel, 0)
    return Send(channel, to, None if schema is None else arrow_schema(schema), buffer, fault)
