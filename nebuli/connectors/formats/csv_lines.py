"""Rows of CSV without a header, from blocks of whole rows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv

from nebuli.connectors.errors import RowInvalid, printable, short, shown_names
from nebuli.connectors.formats.csv_quotes import null_groups, row_ends
from nebuli.connectors.formats.instants import TimestampInvalid, instants_or_nulls, wrong_value
from nebuli.connectors.formats.message_bytes import UTF8_MARK
from nebuli.dataflow.types import type_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from topology.built_in import Timestamps

__all__ = ["CsvComplaint", "CsvLines"]

_BAD_VALUE = re.compile(r"In CSV column #(\d+): Row #(\d+): CSV conversion error to [^:]*: (.*)", re.DOTALL)
_BAD_ROW = re.compile(r"CSV parse error: Row #(\d+): Expected (\d+) columns, got (\d+): (.*)", re.DOTALL)
_VALUE = re.compile(r"'(.*)'", re.DOTALL)
_LONGEST = 300


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
