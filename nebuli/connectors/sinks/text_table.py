"""Rows as a table that a person can read: aligned columns, numbers to the right."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.connectors.errors import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["TextTable"]

_NULL = "null"
_GAP = "  "


class TextTable:
    """A table whose rows come in batches; widths are those of the first, and grow where later rows need."""

    def __init__(self, schema: pa.Schema) -> None:
        self._names = [printable(name) for name in schema.names]
        self._right = [_is_number(type_) for type_ in schema.types]
        self._widths = [len(name) for name in self._names]
        self._has_header = False

    def lines(self, batch: pa.RecordBatch) -> list[str]:
        """The lines of these rows, below the header if they are the first."""
        if batch.num_rows == 0:
            return []
        columns = [[format_value(value) for value in column.to_pylist()] for column in batch.columns]
        self._widths = [
            max(width, *map(len, column)) for width, column in zip(self._widths, columns, strict=True)
        ]
        return [*self.header(), *(self._line(row) for row in zip(*columns, strict=True))]

    def header(self) -> list[str]:
        """The names and a rule below them, the first time."""
        if self._has_header:
            return []
        self._has_header = True
        return [self._line(self._names), _GAP.join("-" * width for width in self._widths)]

    def _line(self, cells: Sequence[str]) -> str:
        return _GAP.join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, self._widths, self._right, strict=True)
        ).rstrip()


def format_value(value: object) -> str:
    """One value: three decimals if they suffice, instants in UTC, no line breaks."""
    match value:
        case None:
            text = _NULL
        case bool():
            text = str(value).lower()
        case float():
            text = _format_float(value)
        case datetime():
            text = value.astimezone(UTC).isoformat(" ").replace("+00:00", "Z")
        case bytes():
            text = value.hex()
        case str():
            text = printable(value)
        case _:
            text = str(value)
    return text


def _format_float(value: float) -> str:
    if value == 0 or 1e-3 <= abs(value) < 1e15:
        return f"{value:.3f}"
    return f"{value:.4g}"


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_))
