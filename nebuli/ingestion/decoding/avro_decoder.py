"""Avro with the number of its schema before it, as rows."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nebuli.ingestion.errors import MessageInvalid, SourceUnusable
from nebuli.ingestion.message_addresses import PAYLOAD

from .avro_values import Convert, Unfit, converts_record
from .decoder import Decoder, Facts
from .schema_registry import SchemaRegistry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nebuli.ingestion.definition import AvroFormat
    from nebuli.ingestion.message_addresses import Messages

_HEAD_BYTES = 5
"""A zero, and the number of the schema in four bytes, the highest first."""


class AvroDecoder(Decoder):
    """The record in each message, in the wire format of Confluent's registry; an empty message is a tombstone, no row.

    Columns are found by name in the record as it was written, also in records within; those that it does not have are
    null, others are passed over. A column has the value of the logical type: an instant for timestamps, in microseconds
    (finer ones are cut), a day for dates, and for decimals a text with all digits, or a float. Debezium's own names
    for times are known, too.

    The schemas are facts: asked of the registry once, when they are first needed, and recorded.
    """

    def __init__(self, schema: pa.Schema, settings: AvroFormat, *, source: str) -> None:
        try:
            import fastavro  # noqa: F401 - of the extra, and needed from the first message on
        except ImportError:
            raise SourceUnusable(f"{source}: Avro needs fastavro: pip install 'nebuli[avro]'") from None
        self.schema = schema
        self._source = source
        self._registry = SchemaRegistry(settings.registry, source=source)
        self._known: dict[bytes, _Written] = {}

    async def facts(self, messages: Messages, known: Mapping[str, bytes]) -> Facts:
        """The text of each schema that is not known. Raises MessageInvalid where the registry has none."""
        heads = pc.binary_slice(messages.rows.column(PAYLOAD), 0, _HEAD_BYTES)
        found: Facts = {}
        for head in heads.unique().to_pylist():
            if not head or not _is_head(head):
                continue
            number = _number(head)
            if _key(number) not in known:
                place = messages.place(int(pc.index(heads, head).as_py()), self._source)
                found[_key(number)] = await self._registry.schema(number, place)
        return found

    def decode(self, messages: Messages, facts: Mapping[str, bytes]) -> Messages:
        """Rows of the schema. Raises MessageInvalid for what was not written so, or does not fit a column."""
        columns: list[list[Any]] = [[] for _ in self.schema]
        places = []
        for row, payload in enumerate(messages.rows.column(PAYLOAD).to_pylist()):
            if not payload:
                continue
            try:
                record, converts = self._read(payload, facts)
                for column, name in zip(columns, self.schema.names, strict=True):
                    convert = converts.get(name)
                    column.append(None if convert is None else convert(record[name]))
            except Unfit as error:
                raise MessageInvalid(f"{messages.place(row, self._source)}: {error}") from None
            places.append(row)
        arrays = [pa.array(each, field.type) for each, field in zip(columns, self.schema, strict=True)]
        rows = pa.record_batch(arrays, schema=self.schema)
        return messages.made_of(rows, np.asarray(places, dtype=np.int64))

    def _read(self, payload: bytes, facts: Mapping[str, bytes]) -> tuple[Any, dict[str, Convert]]:
        from fastavro import schemaless_reader

        if not _is_head(payload):
            raise Unfit(
                f"begins with {payload[:_HEAD_BYTES].hex(' ')}; expected a zero byte and the number of a schema"
            )
        number = _number(payload)
        text = facts.get(_key(number))
        if text is None:
            raise Unfit(
                f"schema {number} is not among the given facts: request the facts of the messages before "
                f"decoding them"
            )
        written = self._known.get(text)
        if written is None:
            written = self._known[text] = _Written.of(text, number, self.schema)
        body = io.BytesIO(payload)
        body.seek(_HEAD_BYTES)
        try:
            record = schemaless_reader(body, written.schema, None)
        except (
            ValueError,
            EOFError,
            IndexError,
            KeyError,
            TypeError,
            OverflowError,
            RecursionError,
        ) as error:
            raise Unfit(
                f"was not written with schema {number}: {type(error).__name__} {error}".rstrip()
            ) from None
        if body.tell() != len(payload):
            raise Unfit(
                f"has {len(payload):,} bytes, but schema {number} reads only {body.tell():,} of them; the "
                f"message was written with another schema"
            )
        return record, written.converts


@dataclass(frozen=True, slots=True)
class _Written:
    """A schema that messages were written by, without its logical types, and how its values are those of columns."""

    schema: Any
    converts: dict[str, Convert]

    @classmethod
    def of(cls, text: bytes, number: int, columns: pa.Schema) -> _Written:
        from fastavro.schema import SchemaParseException, UnknownType, parse_schema

        names: dict[str, Any] = {}
        plain: dict[str, Any] = {}
        try:
            for each in _texts(text):
                schema = parse_schema(json.loads(each), named_schemas=names)
                read = parse_schema(_without_logical_types(json.loads(each)), named_schemas=plain)
        except (SchemaParseException, UnknownType, ValueError, KeyError, TypeError) as error:
            raise Unfit(f"schema {number} cannot be used: {type(error).__name__} {error}") from None
        try:
            return cls(read, converts_record(schema, columns, names))
        except Unfit as error:
            raise Unfit(f"schema {number}: {error}") from None


def _texts(fact: bytes) -> list[str]:
    """Return the schemas of a fact, each after those that it refers to."""
    found = json.loads(fact)
    if isinstance(found, dict) and "references" in found and "type" not in found:
        return [*found["references"], found["schema"]]
    return [fact.decode()]


def _without_logical_types(schema: Any) -> Any:
    """The same with numbers and bytes as they are written: what they mean is left to the columns."""
    match schema:
        case dict():
            return {key: _without_logical_types(each) for key, each in schema.items() if key != "logicalType"}
        case list():
            return [_without_logical_types(each) for each in schema]
    return schema


def _is_head(payload: bytes) -> bool:
    return len(payload) >= _HEAD_BYTES and payload[0] == 0


def _number(payload: bytes) -> int:
    return int.from_bytes(payload[1:_HEAD_BYTES], "big")


def _key(number: int) -> str:
    return f"schema/{number}"
