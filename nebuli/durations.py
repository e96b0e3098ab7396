"""Lengths of time as people give them: ``"1h"``, ``"90s"``, or a number of seconds."""

from __future__ import annotations

import re

_UNITS_S = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(rf"\s*(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS_S)})?\s*", re.ASCII)


def seconds_of(duration: str | float) -> float:
    """Return the seconds of a duration: a number, or a string of a number and ms, s, min, h or d.

    Raises ValueError.
    """
    if not isinstance(duration, str):
        return float(duration)
    found = _DURATION.fullmatch(duration)
    if found is None:
        raise ValueError(
            f"{duration!r} is not a length of time: give a number with one of {', '.join(_UNITS_S)}, as in '1h'"
        )
    return float(found[1]) * _UNITS_S[found[2] or "s"]
