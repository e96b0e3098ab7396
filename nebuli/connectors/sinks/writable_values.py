"""Values that a format cannot hold so that they are read back: they are refused where they are written."""

from __future__ import annotations

from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nebuli.connectors.errors import OutputError, short, shown_names

__all__ = ["ValueUnwritable", "check_texts", "check_times"]

_EPOCH = date(1970, 1, 1)
_FIRST_DAY, _LAST_DAY = ((each - _EPOCH).days for each in (date.min, date.max))
_DAY_US = 86_400_000_000
_FIRST_US, _LAST_US = _FIRST_DAY * _DAY_US, (_LAST_DAY + 1) * _DAY_US - 1


class ValueUnwritable(Exception):
    """A value of a column that cannot be written. ``row`` counts from 0."""

    def __init__(self, row: int, column: str, why: str) -> None:
        super().__init__(f"column {shown_names([column])}: {why}")
        self.row = row

    def at(self, place: str, written: int) -> OutputError:
        """Return the error, if so many rows were written before."""
        return OutputError(f"{place}, row {written + self.row + 1}, {self}")


def check_texts(rows: pa.RecordBatch) -> None:
    """Raise ValueUnwritable for bytes in a text that are not UTF-8: Arrow takes them over from where it reads."""
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if pa.types.is_string(field.type):
            try:
                column.validate(full=True)
            except pa.ArrowInvalid:
                row, text = _first_bad_text(column)
                raise ValueUnwritable(
                    row, field.name, f"{text} is not UTF-8: correct the value at its source"
                ) from None


def check_times(rows: pa.RecordBatch | pa.Table) -> None:
    """Raise ValueUnwritable for a date or timestamp that has no form as a text: years are 1 to 9999."""
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if pa.types.is_date(field.type):
            units, first, last = column.cast(pa.int32()), _FIRST_DAY, _LAST_DAY
        elif pa.types.is_timestamp(field.type):
            units, first, last = column.cast(pa.int64()), _FIRST_US, _LAST_US
        else:
            continue
        bounds = pc.min_max(units).as_py()
        if bounds["min"] is not None and not first <= bounds["min"] <= bounds["max"] <= last:
            bad = pc.or_(pc.less(units, first), pc.greater(units, last)).fill_null(False)
            row = int(np.flatnonzero(bad.to_numpy(zero_copy_only=False))[0])
            raise ValueUnwritable(
                row, field.name, f"{_shown(units[row].as_py(), field.type)} is outside the years 1 to 9999"
            )


def _shown(units: int, type_: pa.DataType) -> str:
    """A time by what it counts, as a calendar has no name for it."""
    return f"{units:,} {'days' if pa.types.is_date(type_) else 'microseconds'} from 1970-01-01"


def _first_bad_text(column: pa.StringArray) -> tuple[int, str]:
    for row, value in enumerate(column.view(pa.binary())):
        try:
            (value.as_py() or b"").decode()
        except UnicodeDecodeError:
            return row, repr(short(value.as_py().decode(errors="backslashreplace")))
    raise AssertionError("a string is not UTF-8")
