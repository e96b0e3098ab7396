"""Writing in tasks: staged attempts, which only the driver's commit publishes, or ordinary messages at once."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from netchannel import ChannelClosedByPeer, EpochRegressed, Group, NetChannelError, Sealed
from spark_bridge.batch_sizes import joined
from spark_bridge.clients import group_client, sender
from spark_bridge.errors import SchemaConflict, UnsupportedSpark
from spark_bridge.schemas import Normaliser, arrow_schema, check_names
from spark_bridge.tasks.task import check_no_table, complete, current_task, log, settle
from spark_bridge.types import with_nulls

from .routing import Route, by_key, by_partition, check_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql.types import StructType

    from netchannel.process.blocking import BlockingGroupChannel, BlockingSenderChannel
    from spark_bridge.options import Source, WriteOptions

_ROWS = 1 << 16
"""Rows of a message, if there are as many: a message costs both ends as much as thousands of rows."""
_ASK_S = 0.5
"""Seconds between questions whether there is room."""
_REFUSED = (
    "deliveryGuarantee=exactly-once, the default, writes to channels of register_staged_channel; at-least-once "
    "writes to all other channels. After the end of a stream, its consumer has to register the channel "
    "again; a batch write before other writes needs endOfStream=false."
)


@dataclass(frozen=True, slots=True)
class Work:
    """The identity of a task's rows: their query, and their commit."""

    application: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Attempts:
    """The attempts that a task has sealed, by the key of the channel.

    And the channels that reported to have its epoch.
    """

    sealed: tuple[tuple[str, Sealed], ...] = ()
    over: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Rows:
    """How the rows of a write leave its tasks; travels there."""

    options: WriteOptions
    schema: pa.Schema

    @classmethod
    def of(cls, options: WriteOptions, schema: StructType) -> Rows:
        """The rows of a write of ``schema``.

        Raises OptionError for unknown key columns, SchemaConflict for a type that channels do not have.

        Every column, and all within it, may hold nulls: what Spark derives about that changes from plan to plan, a
        channel's schema may not.
        """
        target = arrow_schema(schema)
        if not target.names:
            raise SchemaConflict(
                "the rows have no columns, and PySpark does not report the number of such rows: select a "
                "column"
            )
        check_names(target, "the DataFrame", "rename one of them")
        if options.key_columns is not None:
            check_key(target, options.key_columns)
        settle()
        return cls(options, pa.schema([with_nulls(field) for field in target]))

    def write(self, work: Work, batches: Iterator[pa.RecordBatch]) -> Attempts:
        """Send a partition; what the driver is to publish, and where.

        Raises:
            OptionError: Spark writes a table of its catalog.
            InputIncomplete: Spark failed above this task; nothing of it is published.
            netchannel.NetChannelError: what became of a channel.
        """
        check_no_table()
        try:
            if self.options.exactly_once:
                return self._stage(work, batches)
            self._send(work, batches)
        except ChannelClosedByPeer as error:
            error.add_note(_REFUSED)
            raise
        return Attempts()

    def _stage(self, work: Work, batches: Iterator[pa.RecordBatch]) -> Attempts:
        staging = _Staging(self, work)
        route = self._route(staging.partition)
        normalise = Normaliser(self.schema)
        try:
            for batch in map(normalise, joined(complete(batches), _ROWS)):
                for number, rows in route(batch):
                    staging.send(number, rows)
            made = staging.seal()
        except BaseException as error:
            staging.abort(error)
            raise
        self.wait_for_room(work, made)
        return made

    def wait_for_room(self, work: Work, made: Attempts) -> None:
        """Wait until consumers have made room for what is sealed, as long as that takes.

        The driver's commit would wait as well, but Spark cannot stop a query that is in it; it can end a task.
        """
        sealed = {key for key, _ in made.sealed}
        for source in self.options.connection.sources:
            told = False
            while source.key in sealed and (full := self._waits_for(work, source)) is not None:
                if not told:
                    told = True
                    log.warning(
                        "channel %s at %s is full, and the query waits for the consumer of this channel: %s",
                        source.key,
                        source.endpoint,
                        full,
                    )
                threading.Event().wait(_ASK_S)

    def _waits_for(self, work: Work, source: Source) -> str | None:
        with group_client(self.options.connection, source) as client:
            return client.waits_for(work.application)

    def _route(self, partition: int) -> Route:
        channels = len(self.options.connection.sources)
        if self.options.key_columns is None:
            return by_partition(partition, channels)
        return by_key(self.options.key_columns, channels)

    def attempt(self, number: int, work: Work, partition: int) -> BlockingGroupChannel:
        """A new attempt at a partition, for the channel of that number."""
        connection = self.options.connection
        source = connection.sources[number]
        return sender(connection).register_attempt(
            source.channel,
            source.endpoint,
            Group(work.application, work.epoch, partition),
            schema=self.schema,
            fault=connection.settings["fault"],
        )

    def without_rows(self, work: Work, made: Iterable[Attempts]) -> Attempts:
        """Attempts for the channels that no task has written to, whose consumers learn the columns from them."""
        had = {key for each in made for key in (*dict(each.sealed), *each.over)}
        sealed, over = [], set()
        for number, source in enumerate(self.options.connection.sources):
            if source.key not in had:
                try:
                    sealed.append((source.key, self.attempt(number, work, 0).seal()))
                except EpochRegressed:
                    over.add(source.key)
        return Attempts(tuple(sealed), frozenset(over))

    def _send(self, work: Work, batches: Iterator[pa.RecordBatch]) -> None:
        """One stream per channel continues from task to task: each begins at the number that the receiver wants."""
        outbox = self._outbox(work, current_task().partition)
        normalise = Normaliser(self.schema)
        try:
            outbox.attached()
            for batch in map(normalise, joined(complete(batches), _ROWS)):
                outbox.send(batch)
            outbox.flush()
            if self.options.end:
                outbox.close()
            else:
                outbox.detach()
        except BaseException:
            with suppress(NetChannelError):  # as above; the stream is left to the next attempt
                outbox.detach()
            raise

    def end_others(self, work: Work, partitions: int) -> None:
        """End the streams of the channels for which there is no partition."""
        for number in range(partitions, len(self.options.connection.sources)):
            outbox = self._outbox(work, number)
            outbox.attached()
            outbox.close()

    def _outbox(self, work: Work, partition: int) -> BlockingSenderChannel:
        connection = self.options.connection
        channels = len(connection.sources)
        if partition >= channels:
            raise UnsupportedSpark(
                f"with deliveryGuarantee=at-least-once each partition writes to its own channel, but there is "
                f"no channel for partition {partition}, because the number of channels is {channels}: name "
                f"more channels, or call coalesce({channels}) before the write"
            )
        source = connection.sources[partition]
        return sender(connection).register_channel(
            source.channel,
            source.endpoint,
            schema=self.schema,
            stream=f"spark {work.application} {source.channel}",
            replayable=True,
            fault=connection.settings["fault"],
        )


class _Staging:
    """A task's attempts, one for each channel that it has rows for."""

    def __init__(self, rows: Rows, work: Work) -> None:
        self.partition = current_task().partition
        self._rows, self._work = rows, work
        self._attempts: dict[int, BlockingGroupChannel] = {}
        self._over: set[int] = set()

    def send(self, number: int, rows: pa.RecordBatch) -> None:
        if number in self._over:
            return
        if number not in self._attempts:
            self._attempts[number] = self._rows.attempt(number, self._work, self.partition)
        with self._unless_over(number):
            self._attempts[number].send(rows)

    def seal(self) -> Attempts:
        sources = self._rows.options.connection.sources
        sealed = []
        for number, attempt in list(self._attempts.items()):
            with self._unless_over(number):
                sealed.append((sources[number].key, attempt.seal()))
        return Attempts(tuple(sealed), frozenset(sources[number].key for number in self._over))

    @contextmanager
    def _unless_over(self, number: int) -> Iterator[None]:
        """The channel has this epoch already, or a later one: nothing more is sent, and the driver looks into it."""
        try:
            yield
        except EpochRegressed:
            del self._attempts[number]
            self._over.add(number)

    def abort(self, error: BaseException) -> None:
        for attempt in self._attempts.values():
            with suppress(NetChannelError):  # what is raised is why it failed
                attempt.abort(error)
