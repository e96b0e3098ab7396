"""Timestamps of sources as those of columns, which hold microseconds; the sentence for wrong values of any type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from nebuli.connectors.errors import short, shown_names
from nebuli.dataflow.types import type_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from topology.built_in import Timestamps

__all__ = [
    "ZONE",
    "TimestampInvalid",
    "TooFine",
    "instants",
    "instants_or_nulls",
    "whole_microseconds",
    "wrong_value",
]

ZONE = r"[T ].*(Z|[+-]\d\d(:?\d\d)?)$"
"""How a text ends that names its zone."""
_MICROSECONDS = r"^([^.]*\.\d{6})"
_FORMS = {
    "date": "; expected a form such as 2024-01-31",
    "timestamp": "; expected a form such as 2024-01-31, 2024-01-31T10:00:00, "
    "2024-01-31T10:00:00Z or 2024-01-31T10:00:00+02:00",
}


class TimestampInvalid(Exception):
    """A text of a column is not a timestamp, or too fine a one. ``row`` counts from 0."""

    def __init__(self, field: pa.Field, reason: str, row: int) -> None:
        super().__init__(f"column {shown_names([field.name])}: {reason}")
        self.row = row


class TooFine(pa.ArrowInvalid):  # type: ignore[misc]  # pyarrow has no types
    """A timestamp with digits below the microsecond, which are not to be cut."""

    def __init__(self, value: str, timestamps: Timestamps | None) -> None:
        remedy = (
            "" if timestamps is None else ", or set `timestamps: truncate` for the source to cut them off"
        )
        super().__init__(
            f"{short(value)!r} has digits below the microsecond, but a timestamp has at most six "
            f"decimals: write no more than six{remedy}"
        )


def wrong_value(shown: str, type_: object) -> str:
    """Format the error for a value that is not of a column's type, with the forms of dates and timestamps."""
    return f"{shown} is not a valid {type_}{_FORMS.get(str(type_), '')}"


def instants(texts: pa.Array, type_: pa.TimestampType, timestamps: Timestamps | None = None) -> pa.Array:
    """Timestamps, each with a zone or, as UTC, without; zeros below the microsecond are passed over.

    ``timestamps`` is the source's setting for other digits there, None where it has no such setting: then they are
    refused, too. Raises TooFine for them, and another pyarrow.ArrowInvalid for malformed ones.
    """
    try:
        return _parsed(texts, type_)
    except pa.ArrowInvalid:
        cut = pc.replace_substring_regex(texts, _MICROSECONDS + r"\d+", r"\1")
        made = _parsed(cut, type_)
        finer = texts.filter(pc.match_substring_regex(texts, _MICROSECONDS + r"\d*[1-9]"))
        if len(finer) and timestamps != "truncate":
            raise TooFine(finer[0].as_py(), timestamps) from None
        return made


def instants_or_nulls(
    texts: pa.Array, field: pa.Field, nulls: Sequence[str], timestamps: Timestamps | None = None
) -> pa.Array:
    """The same for the texts of a column, some of which stand for a null. Raises TimestampInvalid for the first bad."""
    null = pc.is_in(texts, pa.array(nulls, pa.string()))
    if pc.any(null).as_py():
        texts = pc.if_else(null, pa.scalar(None, pa.string()), texts)
    try:
        return instants(texts, field.type, timestamps)
    except pa.ArrowInvalid:
        row, reason = _first_bad(texts, field.type, timestamps)
        raise TimestampInvalid(field, reason, row) from None


def whole_microseconds(column: pa.Array, timestamps: Timestamps | None) -> pa.Array:
    """Timestamps in microseconds, without a zone. Raises TooFine for what is below them, unless it is to be cut."""
    plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    plain = plain.cast(pa.timestamp(plain.type.unit))
    if plain.type.unit == "ns":
        whole = pc.floor_temporal(plain, unit="microsecond")
        finer = plain.filter(pc.not_equal(whole, plain))
        if len(finer) and timestamps != "truncate":
            raise TooFine(finer[0].cast(pa.string()).as_py(), timestamps)
        plain = whole
    return plain.cast(pa.timestamp("us"))


def _parsed(texts: pa.Array, type_: pa.TimestampType) -> pa.Array:
    zoned = pc.match_substring_regex(texts, ZONE)
    none = pa.scalar(None, pa.string())
    with_zone = pc.if_else(zoned, texts, none).cast(type_)
    without = pc.if_else(zoned, none, texts).cast(pa.timestamp(type_.unit)).cast(type_)
    return pc.coalesce(with_zone, without)


def _first_bad(texts: pa.Array, type_: pa.TimestampType, timestamps: Timestamps | None) -> tuple[int, str]:
    """The row of the first bad text, and what is wrong with it."""
    low, high = 0, len(texts)  # it is in texts[low:high]
    while high - low > 1:
        middle = (low + high) // 2
        try:
            instants(texts.slice(low, middle - low), type_, timestamps)
            low = middle
        except pa.ArrowInvalid:
            high = middle
    try:
        instants(texts.slice(low, 1), type_, timestamps)
    except TooFine as error:
        return low, str(error)
    except pa.ArrowInvalid:
        pass
    return low, wrong_value(repr(short(texts[low].as_py())), type_name(type_))
