"""What readers of texts raise for a row that they cannot read."""

from __future__ import annotations

__all__ = ["RowInvalid"]


class RowInvalid(Exception):
    """A row that is none of the schema; the message says why. ``row`` counts from 0 in what was given to be read."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row
