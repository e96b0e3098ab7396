"""Arrow's complaints about CSV as sentences, with the names of columns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nebuli.connectors.errors import printable, short, shown_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

__all__ = ["CsvComplaint"]

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
            return cls(f"{values} where {namer} names {found[2]}: {row}", int(found[1]))
        return cls(printable(short(text, _LONGEST)))

    def sentence(self, names: Sequence[str], types: Sequence[object]) -> str:
        """The complaint, by all columns' names and types."""
        if self.column is None:
            return self.text
        wanted = types[self.column]
        said = (
            f"{self.text} (the column is {wanted})"
            if self.value is None
            else f"{short(self.value)!r} is no {wanted}"
        )
        return f"column {shown_names([names[self.column]])}: {said}"
