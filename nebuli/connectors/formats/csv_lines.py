"""Rows of CSV: which line breaks end one, and the rows of a schema in blocks of whole rows without a header.

The rule of quotes is Arrow's, which parses the rows: a double quote opens a value only at its begin, two within one
stand for a quote, and any other closes it; elsewhere a quote is a character like others.
"""

from __future__ import annotations

import re
from bisect import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.csv

from nebuli.connectors.errors import RowInvalid, printable, short, shown_names
from nebuli.connectors.formats.instants import TimestampInvalid, instants_or_nulls, wrong_value
from nebuli.connectors.formats.message_bytes import UTF8_MARK
from nebuli.dataflow.types import type_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from topology.built_in import Timestamps

__all__ = ["NEVER_CLOSED", "CsvComplaint", "CsvLines", "Quoted", "Quotes", "null_groups", "row_ends"]

NEVER_CLOSED = (
    "the quote that opens there is never closed: close it or, if it is part of the value, quote the value "
    "and write the quote twice"
)
_QUOTE, _LINE_FEED = ord('"'), ord("\n")
_BEFORE_VALUES = np.zeros(256, dtype=np.bool_)
_BEFORE_VALUES[list(b",\r\n")] = True
_BAD_VALUE = re.compile(r"In CSV column #(\d+): Row #(\d+): CSV conversion error to [^:]*: (.*)", re.DOTALL)
_BAD_ROW = re.compile(r"CSV parse error: Row #(\d+): Expected (\d+) columns, got (\d+): (.*)", re.DOTALL)
_VALUE = re.compile(r"'(.*)'", re.DOTALL)
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Quoted:
    """Where in a piece quotes open or close values, and whether it begins within one."""

    toggles: Sequence[int] | NDArray[np.int64]
    begins_within: bool

    def last_row_end(self, piece: bytes) -> int:
        """Return the place after the last line feed that is not within quotes; 0: there is none."""
        until = len(piece)
        while (place := piece.rfind(b"\n", 0, until)) >= 0:
            before = bisect(self.toggles, place)
            if self.begins_within == bool(before & 1):
                return place + 1
            until = int(self.toggles[before - 1]) if before else 0
        return 0


class Quotes:
    """Follows the quotes of a stream that comes in pieces, however it is cut."""

    def __init__(self) -> None:
        self.is_open = False
        """True if a value in quotes has begun and not ended."""
        self.opened_at = 0
        """The byte of the stream at which the last one began, if it is open."""
        self._at = 0
        self._head = b""
        self._last_is_delimiter = True
        self._last_closes = False

    def feed(self, piece: bytes) -> Quoted:
        """Take the next piece."""
        begins_within = self.is_open
        if len(self._head) < len(UTF8_MARK):
            self._head = (self._head + piece)[: len(UTF8_MARK)]
        toggles = self._toggles(piece) if b'"' in piece else ()
        if piece:
            self._last_is_delimiter = bool(_BEFORE_VALUES[piece[-1]])
            self._last_closes = not self.is_open and len(toggles) > 0 and toggles[-1] == len(piece) - 1
        self._at += len(piece)
        return Quoted(toggles, begins_within)

    def _toggles(self, piece: bytes) -> Sequence[int] | NDArray[np.int64]:
        octets = np.frombuffer(piece, np.uint8)
        places = np.flatnonzero(octets == _QUOTE)
        # As a rule, every second quote is at the begin of a value, or right after the one that closed it.
        opening = places[int(self.is_open) :: 2]
        starts = self._starts(octets, opening)
        others = opening[~starts]
        reopens = octets[others - 1] == _QUOTE
        if len(others) and others[0] == 0:
            reopens[0] = self._last_closes
        if not reopens.all():
            return self._toggles_one_by_one(places.tolist(), self._starts(octets, places).tolist())
        if starts.any():
            self.opened_at = self._at + int(opening[starts][-1])
        self.is_open ^= bool(len(places) & 1)
        return places

    def _starts(self, octets: NDArray[np.uint8], places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return if a value may begin at each of these places."""
        starts: NDArray[np.bool_] = _BEFORE_VALUES[octets[places - 1]]
        if len(places) and places[0] == 0:
            starts[0] = self._last_is_delimiter
        if self._at <= len(UTF8_MARK) and self._head == UTF8_MARK:
            starts[places == len(UTF8_MARK) - self._at] = True
        return starts

    def _toggles_one_by_one(self, places: list[int], starts: list[bool]) -> list[int]:
        toggles = []
        closed_at = -1 if self._last_closes else -2
        for place, starts_value in zip(places, starts, strict=True):
            if self.is_open:
                closed_at = place
            elif starts_value:
                self.opened_at = self._at + place
            elif place != closed_at + 1:
                continue
            self.is_open = not self.is_open
            toggles.append(place)
        return toggles


def row_ends(rows: bytes) -> NDArray[np.int64]:
    """The places after all line feeds that end rows, of bytes that begin with a row."""
    feeds = np.flatnonzero(np.frombuffer(rows, np.uint8) == _LINE_FEED)
    before = np.searchsorted(np.asarray(Quotes().feed(rows).toggles, np.int64), feeds)
    ends: NDArray[np.int64] = feeds[before & 1 == 0] + 1
    return ends


@dataclass(frozen=True, slots=True)
class CsvComplaint:
    """A ``row`` as Arrow counts them, from 1, and the ``column`` and ``value`` in it, as far as they are known."""

    text: str
    row: int | None = None
    column: int | None = None
    value: str | None = None

    @classmethod
    def of(cls, error: pa.ArrowInvalid, namer: str) -> CsvComplaint:
        """The complaint that an error is; ``namer`` is what names the columns."""
        text = str(error)
        if found := _BAD_VALUE.match(text):
            value = _VALUE.search(found[3])
            return cls(found[3], int(found[2]), int(found[1]), None if value is None else value[1])
        if found := _BAD_ROW.match(text):
            values = "1 value" if found[3] == "1" else f"{found[3]} values"
            row = printable(short(found[4]))
            return cls(f"{values}, but {namer} names {found[2]}: {row}", int(found[1]))
        return cls(printable(short(text, _LONGEST)))

    def sentence(self, names: Sequence[str], types: Sequence[object]) -> str:
        """The complaint, by all columns' names and types."""
        if self.column is None:
            return self.text
        wanted = types[self.column]
        if self.text.startswith("invalid UTF8"):
            return (
                f"column {shown_names([names[self.column]])}: a value is not UTF-8: write the file in UTF-8"
            )
        said = (
            f"{self.text} (the column is {wanted})"
            if self.value is None
            else wrong_value(repr(short(self.value)), wanted)
        )
        return f"column {shown_names([names[self.column]])}: {said}"


def null_groups(schema: pa.Schema, *, split: bool) -> list[tuple[list[str], bool]]:
    """The columns that Arrow reads together, and whether a null of these may be in quotes.

    A text in quotes is a text. In other columns it is not a value, so it may be a null; Arrow has one rule for all, so
    that they are read separately from strings, ``split``, where there is such a null.
    """
    texts = [each.name for each in schema if pa.types.is_string(each.type) or pa.types.is_binary(each.type)]
    others = [name for name in schema.names if name not in texts]
    if split and texts and others:
        return [(texts, False), (others, True)]
    return [(schema.names, not texts)]


class CsvLines:
    """Rows of a schema, whose columns have its order; what is in ``nulls`` is null, but for texts in quotes.

    A blank line is a row where there is one column, and passed over where there are more.
    """

    def __init__(self, schema: pa.Schema, nulls: Sequence[str], timestamps: Timestamps) -> None:
        self._schema = schema
        self._nulls = list(nulls)
        self._timestamps = timestamps
        # Arrow has to know in advance if there is a zone: timestamps are read as strings.
        self._parsed = {
            field.name: pa.string() if pa.types.is_timestamp(field.type) else field.type for field in schema
        }
        self._takes_quoted_nulls = False

    def read(self, block: bytes, *, begins: bool) -> pa.RecordBatch:
        """The rows of a block, which ``begins`` the stream or not. Raises RowInvalid with the line in the block."""
        try:
            return self._read(block, begins=begins)
        except (pa.ArrowInvalid, TimestampInvalid) as error:
            raise self._blame(block, error, begins=begins) from error

    def _blame(self, block: bytes, error: Exception, *, begins: bool) -> RowInvalid:
        """The first row with which the block cannot be read, by halves."""
        ends = [0, *row_ends(block).tolist()]
        good, bad = 0, len(ends) - 1  # so many rows can be read; so many cannot
        while bad - good > 1:
            middle = (good + bad) // 2
            try:
                self._read(block[ends[good] : ends[middle]], begins=begins and not good)
                good = middle
            except (pa.ArrowInvalid, TimestampInvalid) as found:
                bad, error = middle, found
        return RowInvalid(block.count(b"\n", 0, ends[good]), self._sentence(error))

    def _sentence(self, error: Exception) -> str:
        if isinstance(error, TimestampInvalid):
            return str(error)
        types = [type_name(each) for each in self._schema.types]
        return CsvComplaint.of(error, "the schema").sentence(self._schema.names, types)

    def _read(self, block: bytes, *, begins: bool) -> pa.RecordBatch:
        if not begins and block.startswith(UTF8_MARK):
            block = UTF8_MARK + block  # a mark at the begin of a stream, and of a value elsewhere
        if not self._takes_quoted_nulls:
            try:
                return self._read_parts(block, split=False)
            except pa.ArrowInvalid:
                if len(null_groups(self._schema, split=True)) == 1:
                    raise
        rows = self._read_parts(block, split=True)
        self._takes_quoted_nulls = True
        return rows

    def _read_parts(self, block: bytes, *, split: bool) -> pa.RecordBatch:
        columns = {}
        for names, quoted_nulls in null_groups(self._schema, split=split):
            table = self._table(block, names, quoted_nulls=quoted_nulls).combine_chunks()
            for name in names:
                column = table.column(name)
                columns[name] = column.chunk(0) if column.num_chunks else pa.array([], column.type)
        made = [
            instants_or_nulls(columns[field.name], field, self._nulls, self._timestamps)
            if pa.types.is_timestamp(field.type)
            else columns[field.name]
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(made, schema=self._schema)

    def _table(self, block: bytes, names: Sequence[str], *, quoted_nulls: bool) -> pa.Table:
        return pa.csv.read_csv(
            pa.BufferReader(block),
            # In one block, or Arrow would take a line feed within quotes for a row's end, or drop it.
            read_options=pa.csv.ReadOptions(
                column_names=self._schema.names, use_threads=False, block_size=len(block) + 1
            ),
            parse_options=pa.csv.ParseOptions(
                newlines_in_values=True, ignore_empty_lines=len(self._schema) > 1
            ),
            convert_options=pa.csv.ConvertOptions(
                column_types={name: self._parsed[name] for name in names},
                include_columns=names,
                null_values=self._nulls,
                strings_can_be_null=True,
                quoted_strings_can_be_null=quoted_nulls,
            ),
        )
