"""Reading ranges in tasks: every message in the schema that Spark has, in batches of a suitable size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from netchannel import Position, PositionLost, StreamReplaced
from spark_bridge.batch_sizes import joined
from spark_bridge.clients import make_reader, reader
from spark_bridge.errors import DataLost, OptionError, SchemaConflict
from spark_bridge.schemas import Normaliser, arrow_schema, check_names
from spark_bridge.tasks.task import log, settle

from .channel_watch import REASON_S, unheard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from netchannel import Message
    from netchannel.process.blocking import BlockingChannelReader
    from spark_bridge.options import Connection, ReadOptions, Source

    from .offsets import Range

CHANNEL, SEQUENCE, TIMESTAMP = "_channel", "_sequence", "_timestamp"
METADATA = pa.schema(
    [
        pa.field(CHANNEL, pa.string(), nullable=False),
        pa.field(SEQUENCE, pa.int64(), nullable=False),
        pa.field(TIMESTAMP, pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)
"""The columns that ``includeMetadata`` adds: the channel's id, the message's number, and when its sender took it."""

_ROWS = 1 << 13
"""Rows of a batch that is handed to Spark, if there are as many: with fewer, the batch costs more than its rows."""


def source_schema(options: ReadOptions) -> pa.Schema:
    """The schema of the channels, which must be the same in all, with the columns that were asked for.

    Raises:
        SchemaConflict: they differ, one has none yet, or a column is not there.
        netchannel.ChannelBroken: a server was not there in time, or does not keep the channel.
    """
    schemas = {}
    for source in options.connection.sources:
        with reader(options.connection, source) as lent:
            try:
                schema = lent.schema(timeout=options.connection.timeout_s + REASON_S)
            except TimeoutError as error:
                raise SchemaConflict(
                    f"channel {source.key!r} at {source.endpoint} has no schema after "
                    f"{options.connection.timeout_s} s (connectTimeout): no message was sent on it yet; give a schema "
                    f"with .schema(...), or send a message first"
                ) from error
        assert schema is not None  # of the codec arrow
        schemas[source.key] = _chosen(schema, source, options)
    (key, first), *others = schemas.items()
    for other, schema in others:
        if not schema.equals(first):
            raise SchemaConflict(
                f"channels {key!r} and {other!r} have different schemas: {_line(first)}; {_line(schema)}; read them "
                f"separately, or give a schema with .schema(...)"
            )
    return pa.schema([*first, *METADATA]) if options.metadata else first


def _chosen(schema: pa.Schema, source: Source, options: ReadOptions) -> pa.Schema:
    """The columns of a channel that are read, as Spark has them."""
    if options.columns is not None:
        missing = [name for name in options.columns if name not in schema.names]
        if missing:
            hint = "; includeMetadata=true adds it" if missing[0] in METADATA.names else ""
            raise SchemaConflict(
                f"the channels have no column {missing[0]!r}{hint}: their columns are {_line(schema)}"
            )
        schema = pa.schema([field for name in options.columns for field in schema if field.name == name])
    taken = [name for name in METADATA.names if options.metadata and name in schema.names]
    if taken:
        raise SchemaConflict(_taken(taken[0]))
    place = f"channel {source.key!r} at {source.endpoint}"
    check_names(schema, place, "rename one at the sender, or name the columns to read by the option columns")
    return arrow_schema(schema)


def _taken(name: str) -> str:
    return (
        f"the channels already have a column {name!r}, which includeMetadata would add: omit includeMetadata"
    )


def check_declared(schema: pa.Schema, options: ReadOptions) -> None:
    """Check a schema that may have been given, which selects the columns, against options that select them as well.

    Raises:
        OptionError: the option has no effect on this schema.
        SchemaConflict: a column of ``includeMetadata`` has another type.
    """
    check_names(schema, "the given schema", "rename one of them")
    added = [field.name for field in METADATA if field.name in schema.names] if options.metadata else []
    data = tuple(name for name in schema.names if name not in added)
    if options.columns is not None and options.columns != data:
        raise OptionError(
            f"the option columns selects {', '.join(options.columns)}, but the given schema selects "
            f"{', '.join(data)} of the channel: omit columns, because .schema(...) selects them"
        )
    if not options.metadata:
        return
    if not added:
        raise OptionError(
            "the option includeMetadata is set, but the given schema has none of its columns: add those that you "
            "need (_channel STRING, _sequence BIGINT, _timestamp TIMESTAMP) to the schema, or omit includeMetadata"
        )
    for name in added:
        if schema.field(name).type != METADATA.field(name).type:
            raise SchemaConflict(
                f"column {name!r} of the given schema is {schema.field(name).type}, but includeMetadata "
                f"gives {METADATA.field(name).type}"
            )


def _line(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}{'' if field.nullable else ' NOT NULL'}" for field in schema)


@dataclass(frozen=True, slots=True)
class RangeReader:
    """Reads ranges of channels into batches of ``schema``; travels to the tasks.

    ``whole``: the schema was taken from the channels with all of their columns, so that another one is a conflict.
    """

    connection: Connection
    schema: pa.Schema
    metadata: bool
    fail_on_data_loss: bool
    whole: bool = False

    @classmethod
    def of(cls, options: ReadOptions, schema: pa.Schema, *, whole: bool) -> RangeReader:
        """The reader of a query."""
        return cls(options.connection, schema, options.metadata, options.fail_on_data_loss, whole)

    def __call__(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        """The messages of a range, in order. Raises DataLost if they are not kept any more, and that was not wanted."""
        make = self._with_metadata(wanted) if self.metadata else self._without_metadata()
        with reader(self.connection, wanted.source) as lent:
            try:
                yield from joined(map(make, self._messages(lent, wanted)), _ROWS)
            except SchemaConflict as error:
                source = wanted.source
                raise SchemaConflict(f"channel {source.key!r} at {source.endpoint}: {error}") from error
        settle()

    def _messages(self, lent: BlockingChannelReader, wanted: Range) -> Iterator[Message]:
        first, until = wanted.first, wanted.until
        if not self.fail_on_data_loss:
            first, until = self._still_kept(wanted)
        while first < until:
            try:
                for message in lent.read_messages(Position(wanted.stream, first), until):
                    first = message.sequence + 1
                    yield message
            except (PositionLost, StreamReplaced) as error:
                if self.fail_on_data_loss:
                    raise lost(wanted.source.key, str(error)) from error
                first, until = self._still_kept(wanted._replace(first=first))

    def _still_kept(self, wanted: Range) -> tuple[int, int]:
        """Return the present part of a range.

        By the server's current heads, since those pushed before may be of another stream.

        Missing messages are waited for: after a restart the server may be about to get it again.
        """
        key, timeout_s = wanted.source.key, self.connection.timeout_s + REASON_S
        with make_reader(self.connection, wanted.source) as asked:
            try:
                heads = asked.heads(beyond=wanted.until - 1, timeout=timeout_s)
            except TimeoutError as error:
                if asked.latest is None:
                    raise unheard(self.connection, wanted.source) from error
                heads = asked.latest
        if heads.stream != wanted.stream:
            log.warning("%s: stream %s and its messages are gone", key, wanted.stream)
            return wanted.until, wanted.until
        until = max(wanted.first, min(wanted.until, heads.head))
        first = min(max(wanted.first, heads.oldest), until)
        for begin, end in ((wanted.first, first), (until, wanted.until)):
            if begin < end:
                log.warning("%s: messages %d to %d are gone", key, begin, end - 1)
        return first, until

    def _without_metadata(self) -> Callable[[Message], pa.RecordBatch]:
        normalise = Normaliser(self.schema, whole=self.whole)
        return lambda message: normalise(message.batch)

    def _with_metadata(self, wanted: Range) -> Callable[[Message], pa.RecordBatch]:
        data = pa.schema([field for field in self.schema if field.name not in METADATA.names])
        normalise = Normaliser(data, whole=self.whole)
        extra = [field.name for field in self.schema if field.name in METADATA.names]

        def make(message: Message) -> pa.RecordBatch:
            own = [name for name in extra if name in message.batch.schema.names]
            if own:
                raise SchemaConflict(_taken(own[0]))
            batch = normalise(message.batch)
            values = {
                CHANNEL: wanted.source.channel,
                SEQUENCE: message.sequence,
                TIMESTAMP: message.timestamp,
            }
            columns = {name: batch.column(name) for name in data.names}
            for name in extra:
                scalar = pa.scalar(values[name], METADATA.field(name).type)
                columns[name] = pa.repeat(scalar, message.batch.num_rows)
            return pa.RecordBatch.from_arrays(
                [columns[name] for name in self.schema.names], schema=self.schema
            )

        return make


def lost(key: str, what: str) -> DataLost:
    """Return the error for missing messages, or a failed producer."""
    return DataLost(
        f"channel {key!r}: {what}. To continue with the available messages, read with failOnDataLoss=false"
    )
