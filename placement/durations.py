"""Durations as people write them in a query: ``10 minutes``."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

_UNITS = {
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
}
_MAX_DAYS = 36_500  # a century: instants and clocks can be computed with
_PATTERN = rf"^\d{{1,9}} ({'|'.join(_UNITS)})s?$"


def microseconds(text: str) -> int:
    """Return the length of a duration; ``ValueError`` names the expected form."""
    if not re.match(_PATTERN, text):
        raise ValueError(
            f"expected a whole number and a unit ({', '.join(f'{unit}s' for unit in _UNITS)}), got {text!r}"
        )
    number, unit = text.split()
    length = int(number) * _UNITS[unit.removesuffix("s")]
    if length > _MAX_DAYS * _UNITS["day"]:
        raise ValueError(f"expected {_MAX_DAYS} days at most, got {text!r}")
    return length


def _check(text: str) -> str:
    microseconds(text)
    return text


Duration = Annotated[str, AfterValidator(_check), Field(json_schema_extra={"pattern": _PATTERN})]
"""A whole number and a unit, as in ``1 hour`` or ``250 milliseconds``."""
