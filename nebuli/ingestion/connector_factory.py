"""The implementation of a definition: readers, decoders and an envelope, each imported when it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from .decoding.typed_columns import TypedColumns
from .definition import (
    AppendEnvelope,
    ArrowFormat,
    AvroFormat,
    ChannelOrigin,
    CsvFormat,
    DebeziumEnvelope,
    FileOrigin,
    JsonFormat,
    NatsOrigin,
    ParquetOrigin,
    PostgresOrigin,
    UpsertEnvelope,
)
from .message_addresses import PAYLOAD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .decoding.decoder import Decoder
    from .definition import Definition
    from .envelopes.envelope import Envelope
    from .readers.seen_files import SeenFiles
    from .source_reader import SourceReader

_BYTES = pa.schema([pa.field(PAYLOAD, pa.binary())])


def carried(definition: Definition) -> pa.Schema:
    """The columns that raw messages are kept with."""
    return definition.schema if _format_of(definition) is None else _BYTES


def reader_of(origin: Any, definition: Definition, seen: SeenFiles | None = None) -> SourceReader:
    """Return the reader of an origin, if earlier readers have ``seen`` files.

    Raises SourceUnusable where what it needs is not installed.
    """
    name = definition.name
    match origin:
        case FileOrigin():
            from .readers.line_files import LineFiles

            is_csv = isinstance(definition.format, CsvFormat)
            return LineFiles(origin, name=name, quoted=is_csv, seen=seen)
        case ParquetOrigin():
            from .readers.parquet_files import ParquetFiles

            return ParquetFiles(origin, schema=definition.schema, name=name, seen=seen)
        case ChannelOrigin():
            from .readers.kept_channel import KeptChannel

            return KeptChannel(origin, name=name)
        case NatsOrigin():
            from .readers.nats_stream import NatsStream

            return NatsStream(origin, name=name)
        case PostgresOrigin():
            from .readers.postgres_changes import PostgresChanges

            columns = definition.schema.names
            return PostgresChanges(origin, name=name, columns=columns, key=_key_of(definition))
    raise AssertionError(f"{origin} is read from the store")


def envelope_of(definition: Definition) -> Envelope:
    """Return the rule that turns rows into changes."""
    match definition.envelope:
        case UpsertEnvelope() as upsert:
            from .envelopes.upsert import Upsert

            return Upsert(definition.schema, upsert, source=definition.name)
        case DebeziumEnvelope(transactions=str()) as debezium:
            from .envelopes.transactions import Transactions

            return Transactions(definition.schema, debezium, source=definition.name)
        case DebeziumEnvelope() as debezium:
            from .envelopes.debezium import Debezium

            return Debezium(definition.schema, debezium, source=definition.name)
    from .envelopes.append import Append

    return Append(definition.schema)


def decoder_of(definition: Definition, wants: pa.Schema) -> Decoder:
    """Return the decoder of messages into the rows for an envelope."""
    match _format_of(definition):
        case CsvFormat() as csv:
            from .decoding.csv_decoder import CsvDecoder

            return CsvDecoder(wants, csv, source=definition.name)
        case JsonFormat():
            from .decoding.json_decoder import JsonDecoder

            return JsonDecoder(wants, source=definition.name)
        case AvroFormat() as avro:
            from .decoding.avro_decoder import AvroDecoder

            return AvroDecoder(wants, avro, source=definition.name)
        case ArrowFormat():
            from .decoding.arrow_decoder import ArrowDecoder

            return ArrowDecoder(wants, source=definition.name)
    return TypedColumns(wants, source=definition.name)


def _key_of(definition: Definition) -> Sequence[str]:
    """Return the columns that identify rows; none, if there are none."""
    return () if isinstance(definition.envelope, AppendEnvelope) else definition.envelope.key


def _format_of(definition: Definition) -> CsvFormat | JsonFormat | AvroFormat | ArrowFormat | None:
    if isinstance(definition.origin, PostgresOrigin):
        return JsonFormat(type="JSON")
    return definition.format
