"""Timestamps in texts."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["ZONE", "instants"]

ZONE = r"[T ].*(Z|[+-]\d\d(:?\d\d)?)$"
"""How a text ends that names its zone."""


def instants(texts: pa.Array, type_: pa.TimestampType) -> pa.Array:
    """Timestamps, each with a zone or, as UTC, without. Raises pyarrow.ArrowInvalid for what is none."""
    zoned = pc.match_substring_regex(texts, ZONE)
    none = pa.scalar(None, pa.string())
    with_zone = pc.if_else(zoned, texts, none).cast(type_)
    without = pc.if_else(zoned, none, texts).cast(pa.timestamp(type_.unit)).cast(type_)
    return pc.coalesce(with_zone, without)
