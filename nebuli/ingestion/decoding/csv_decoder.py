"""Lines of CSV as rows."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from nebuli.connectors.errors import short
from nebuli.connectors.formats.csv_lines import Quotes, null_groups
from nebuli.connectors.formats.instants import TimestampInvalid, instants, instants_or_nulls, wrong_value
from nebuli.connectors.formats.message_bytes import LINE_FEED, RETURN, UTF8_MARK, MessageBytes, has
from nebuli.dataflow import zset
from nebuli.dataflow.types import type_name
from nebuli.ingestion.errors import MessageInvalid
from nebuli.ingestion.message_addresses import PAYLOAD

from .decoder import Decoder, Facts, bytes_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from nebuli.ingestion.definition import CsvFormat
    from nebuli.ingestion.message_addresses import Messages

_BLOCK_BYTES = 1 << 20
_QUOTE, _COMMA = ord('"'), ord(",")
_ONE_ROW = r'^(?s:([^",\r\n]*|"([^"]|"")*")(,([^",\r\n]*|"([^"]|"")*"))*)\r?\n$'
"""A message in which each quote begins or ends a value, or is within one that does: for any reader it is one row."""
_BAD_ROW = re.compile(r"CSV parse error: (?:Row #\d+: )?Expected (\d+) columns, got (\d+)")
_IN_ROW = re.compile(r"Row #(\d+)")

_Kind = Literal["zoned", "naive", "texts"]


class _Way(NamedTuple):
    """How timestamps are parsed, and whether texts are parsed apart, see `null_groups`."""

    timestamps: _Kind
    split: bool


@dataclass(frozen=True, slots=True)
class _Layout:
    """How many values a line has, and where among them the columns are."""

    values: int
    places: dict[str, int]


class CsvDecoder(Decoder):
    """Rows of CSV in each message: one, as a rule, with or without its line end.

    They are those that the CSV source of a topology reads of the same bytes: a blank line is a row where a line has one
    value, and none where it has more, and a text in quotes is not null.

    With a header, the message at address 0 of a part is that: columns are found by its names, others are passed over.
    It is recorded, so that later readers know it. Without one, a line has the columns of the schema in
    their order. A value in ``nulls`` is null; a timestamp without a zone is UTC. A value in quotes may have line
    ends, within its message.
    """

    def __init__(self, schema: pa.Schema, settings: CsvFormat, *, source: str) -> None:
        self.schema = schema
        self._settings = settings
        self._source = source
        is_timed = any(pa.types.is_timestamp(type_) for type_ in schema.types)
        kinds: Sequence[_Kind] = ("zoned", "naive", "texts") if is_timed else ("zoned",)
        splits = (False, True) if len(null_groups(schema, split=True)) > 1 else (False,)
        self._ways = [
            _Way(kind, split) for split in splits for kind in kinds
        ]  # the last right one comes first

    async def facts(self, messages: Messages, known: Mapping[str, bytes]) -> Facts:
        """The header of the part, if its message is among these."""
        key = _header_of(messages.part)
        if not self._settings.header or key in known or not _begins(messages):
            return {}
        payload = messages.rows.column(PAYLOAD)[0].as_py() or b""
        self._layout(payload, messages)  # what cannot be used is not recorded
        return {key: payload}

    def decode(self, messages: Messages, facts: Mapping[str, bytes]) -> Messages:
        """Rows of the schema. Raises MessageInvalid at the first value that does not fit it."""
        layout = _Layout(len(self.schema), {name: place for place, name in enumerate(self.schema.names)})
        if self._settings.header and messages.rows.num_rows:
            header = facts.get(_header_of(messages.part))
            if header is None:
                raise MessageInvalid(
                    f"{messages.place(0, self._source)}: the message at address 0, which has the header of the "
                    "part, is missing; ingest the source from its beginning, or set header: false"
                )
            layout = self._layout(header, messages)
            messages = messages.since(1) if _begins(messages) else messages
        payloads = bytes_of(messages)
        pieces = list(self._pieces(payloads, 0, len(payloads), layout, messages)) if len(payloads) else []
        places = np.concatenate([np.empty(0, dtype=np.int64), *(places for _, places in pieces)])
        rows = [rows for rows, _ in pieces] or [zset.empty(self.schema)]
        return messages.made_of(rows[0] if len(rows) == 1 else pa.concat_batches(rows), places)

    def _layout(self, header: bytes, messages: Messages) -> _Layout:
        at = f"{self._source}: the header" + (f" of {messages.part}" if messages.part else "")
        text = header.removeprefix(UTF8_MARK).decode(errors="replace")
        lines = list(csv.reader(text.splitlines(keepends=True)))
        names = lines[0] if lines else []
        if len(lines) > 1:
            raise MessageInvalid(
                f"{at}: {len(lines)} lines in the message at address 0; expected only the header: {short(text)!r}"
            )
        for name in self.schema.names:
            if names.count(name) != 1:
                how = "more than one" if name in names else "no"
                raise MessageInvalid(
                    f"{at} has {how} column {name}; its columns are {', '.join(names) or 'none'}"
                )
        return _Layout(len(names), {name: names.index(name) for name in self.schema.names})

    def _pieces(
        self, payloads: MessageBytes, first: int, end: int, layout: _Layout, messages: Messages
    ) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int64]]]:
        """Rows, and the places of their messages, of all that can be read at once; where it cannot, of halves."""
        some = payloads.part(first, end)
        if (read := self._at_once(some, layout, alone=end - first == 1)) is not None:
            yield read[0], first + read[1]
        elif end - first == 1:
            yield self._alone(some.one(0), layout, messages, first)
        else:
            middle = (first + end) // 2
            yield from self._pieces(payloads, first, middle, layout, messages)
            yield from self._pieces(payloads, middle, end, layout, messages)

    def _at_once(
        self, payloads: MessageBytes, layout: _Layout, *, alone: bool
    ) -> tuple[pa.RecordBatch, NDArray[np.int64]] | None:
        if alone or not _one_row_each(payloads):
            return None
        filled = np.flatnonzero(payloads.lengths if layout.values == 1 else ~payloads.blank)
        if not len(filled):
            return zset.empty(self.schema), filled
        longest = int(payloads.lengths.max(initial=0))
        try:
            rows = self._parsed(payloads.data, layout, longest)
        except pa.ArrowInvalid:  # which value it is, is found when its message is read alone
            return None
        return (rows, filled) if rows.num_rows == len(filled) else None

    def _alone(
        self, payload: bytes, layout: _Layout, messages: Messages, row: int
    ) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
        """The rows of one message, however many are in it."""
        place = messages.place(row, self._source)
        if int(messages.addresses[row]) != 0 and payload.startswith(UTF8_MARK):
            payload = UTF8_MARK + payload  # it is a mark at the begin of a file, and of a value elsewhere
        if _is_open(payload):
            raise MessageInvalid(
                f"{place}: a quoted value does not end in the message; a message must contain whole rows: "
                f"{short(payload.decode(errors='replace'))!r}"
            )
        rest = payload if layout.values == 1 else payload.strip(b"\r\n")
        if not rest.removeprefix(UTF8_MARK):  # Arrow calls that an empty file
            return zset.empty(self.schema), np.empty(0, dtype=np.int64)
        try:
            rows = self._parsed(pa.py_buffer(payload), layout, len(payload))
        except pa.ArrowInvalid as error:
            raise MessageInvalid(f"{place}: {self._blame(payload, layout, error)}") from error
        return rows, np.full(rows.num_rows, row, dtype=np.int64)

    def _parsed(self, data: pa.Buffer, layout: _Layout, longest: int) -> pa.RecordBatch:
        ways = self._ways  # another thread may set others
        for way in ways:
            try:
                rows = self._parsed_as(way, data, layout, longest)
            except pa.ArrowInvalid:
                if way == ways[-1]:
                    raise
                continue
            if way != ways[0]:
                self._ways = [way, *(each for each in ways if each != way)]
            return rows
        raise AssertionError("there is a way")

    def _parsed_as(self, way: _Way, data: pa.Buffer, layout: _Layout, longest: int) -> pa.RecordBatch:
        columns: dict[str, pa.Array] = {}
        for names, quoted_nulls in null_groups(self.schema, split=way.split):
            types = {name: _type_to_parse(self.schema.field(name).type, way.timestamps) for name in names}
            parsed = self._table(data, layout, types, longest, quoted_nulls=quoted_nulls)
            columns |= zip(names, parsed, strict=True)
        made = [
            (instants(each, field.type) if pa.types.is_string(each.type) else each.cast(field.type))
            if pa.types.is_timestamp(field.type)
            else each
            for field, each in ((field, columns[field.name]) for field in self.schema)
        ]
        return pa.record_batch(made, schema=self.schema)

    def _table(
        self,
        data: pa.Buffer,
        layout: _Layout,
        types: Mapping[str, pa.DataType],
        longest: int,
        *,
        quoted_nulls: bool = True,
    ) -> list[pa.Array]:
        """The columns ``types``, of that type."""
        table = pa.csv.read_csv(
            pa.BufferReader(data),
            read_options=pa.csv.ReadOptions(
                column_names=[str(place) for place in range(layout.values)],
                use_threads=data.size > _BLOCK_BYTES,  # with more than one, complaints name no row
                block_size=max(_BLOCK_BYTES, 2 * longest),
            ),
            parse_options=pa.csv.ParseOptions(
                newlines_in_values=has(_QUOTE, data), ignore_empty_lines=layout.values > 1
            ),
            convert_options=pa.csv.ConvertOptions(
                column_types={str(layout.places[name]): type_ for name, type_ in types.items()},
                include_columns=[str(layout.places[name]) for name in types],
                null_values=list(self._settings.nulls),
                strings_can_be_null=True,
                quoted_strings_can_be_null=quoted_nulls,
            ),
        )
        return [_one_array(each) for each in table.columns]

    def _blame(self, payload: bytes, layout: _Layout, error: pa.ArrowInvalid) -> str:
        """Return the error of a message, for its first column that cannot be read."""
        if found := _BAD_ROW.match(str(error)):
            values = "1 value" if found[2] == "1" else f"{found[2]} values"
            text = short(payload.decode(errors="replace").strip())
            return f"{values}, but {found[1]} are expected: {text!r}"
        data = pa.py_buffer(payload)
        for field in self.schema:
            try:
                if pa.types.is_timestamp(field.type):
                    (texts,) = self._table(data, layout, {field.name: pa.string()}, len(payload))
                    instants_or_nulls(texts, field, ())
                else:
                    self._table(data, layout, {field.name: field.type}, len(payload))
            except TimestampInvalid as bad:
                return str(bad)
            except pa.ArrowInvalid as bad:
                (values,) = self._table(data, layout, {field.name: pa.binary()}, len(payload))
                found = _IN_ROW.search(str(bad))
                value = values[int(found[1]) - 1 if found else 0].as_py() or b""
                shown = repr(short(value.decode(errors="replace")))
                return f"column {field.name}: {wrong_value(shown, type_name(field.type))}"
        return str(error)


def _header_of(part: str) -> str:
    return f"header/{part}"


def _begins(messages: Messages) -> bool:
    return bool(messages.rows.num_rows) and int(messages.addresses[0]) == 0


def _type_to_parse(type_: pa.DataType, kind: _Kind) -> pa.DataType:
    """Arrow wants to know beforehand whether a timestamp's text has a zone."""
    if not pa.types.is_timestamp(type_) or kind == "zoned":
        return type_
    return pa.timestamp(type_.unit) if kind == "naive" else pa.string()


def _one_row_each(payloads: MessageBytes) -> bool:
    """True if each message is one row or blank, for any reader, alone or among others."""
    if payloads.data[: len(UTF8_MARK)].to_pybytes() == UTF8_MARK:
        return False
    if not has(_QUOTE, payloads.data):
        return payloads.are_lines
    if _has_plain_quotes(payloads):
        return True
    offsets = pa.py_buffer(payloads.offsets.astype(np.int32))
    column = pa.Array.from_buffers(pa.binary(), len(payloads), [None, offsets, payloads.data])
    good = pc.match_substring_regex(column, _ONE_ROW)
    return bool(pc.all(pc.or_(good, pc.equal(pc.binary_length(column), 0))).as_py())


def _has_plain_quotes(payloads: MessageBytes) -> bool:
    """Return True if each message is a line in which quotes do no more than begin and end values.

    Most are, and to see that takes half of what `_ONE_ROW` does.
    """
    data = payloads.values
    is_end = data == LINE_FEED
    if not payloads.lengths.all() or not is_end[payloads.offsets[1:] - 1].all():
        return False
    if np.count_nonzero(is_end) != len(payloads) or has(RETURN, payloads.data):
        return False
    is_quote = data == _QUOTE
    # Sums are modulo 256, of which only the last bit is looked at.
    if (np.add.reduceat(is_quote.view(np.uint8), payloads.offsets[:-1], dtype=np.uint8) & 1).any():
        return False
    places = np.flatnonzero(is_quote)
    # In place of what is before the first byte this is the last one, a line end.
    beside = data[places[::2] - 1], data[places[1::2] + 1]
    return all(((each == _COMMA) | (each == LINE_FEED)).all() for each in beside)


def _is_open(payload: bytes) -> bool:
    """True if a message ends within quotes."""
    quotes = Quotes()
    quotes.feed(payload)
    return quotes.is_open


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
