"""Timestamps in texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from nebuli.connectors.errors import short, shown_names
from nebuli.dataflow.types import type_name

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ZONE", "TimestampInvalid", "instants", "instants_or_nulls"]

ZONE = r"[T ].*(Z|[+-]\d\d(:?\d\d)?)$"
"""How a text ends that names its zone."""
_FORMS = (
    "expected a form such as 2024-01-31, 2024-01-31T10:00:00, "
    "2024-01-31T10:00:00Z or 2024-01-31T10:00:00+02:00"
)


class TimestampInvalid(Exception):
    """A text of a column is no timestamp. ``row`` counts from 0."""

    def __init__(self, field: pa.Field, text: str, row: int) -> None:
        super().__init__(
            f"column {shown_names([field.name])}: {short(text)!r} is no {type_name(field.type)}; {_FORMS}"
        )
        self.row = row


def instants(texts: pa.Array, type_: pa.TimestampType) -> pa.Array:
    """Timestamps, each with a zone or, as UTC, without. Raises pyarrow.ArrowInvalid for what is none."""
    zoned = pc.match_substring_regex(texts, ZONE)
    none = pa.scalar(None, pa.string())
    with_zone = pc.if_else(zoned, texts, none).cast(type_)
    without = pc.if_else(zoned, none, texts).cast(pa.timestamp(type_.unit)).cast(type_)
    return pc.coalesce(with_zone, without)


def instants_or_nulls(texts: pa.Array, field: pa.Field, nulls: Sequence[str]) -> pa.Array:
    """The same for the texts of a column, some of which stand for a null. Raises TimestampInvalid for the first bad."""
    null = pc.is_in(texts, pa.array(nulls, pa.string()))
    if pc.any(null).as_py():
        texts = pc.if_else(null, pa.scalar(None, pa.string()), texts)
    try:
        return instants(texts, field.type)
    except pa.ArrowInvalid:
        row = _first_bad(texts, field.type)
        raise TimestampInvalid(field, texts[row].as_py(), row) from None


def _first_bad(texts: pa.Array, type_: pa.TimestampType) -> int:
    low, high = 0, len(texts)  # the first bad value is in texts[low:high]
    while high - low > 1:
        middle = (low + high) // 2
        try:
            instants(texts.slice(low, middle - low), type_)
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low
