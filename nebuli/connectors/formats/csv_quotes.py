"""Quotes in CSV: which bytes are within a value in quotes, and so which line breaks end a row.

The rule is Arrow's, which parses the rows: a double quote opens a value only at its begin, two within one stand for a
quote, and any other closes it; elsewhere a quote is a character like others.
"""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nebuli.connectors.formats.message_bytes import UTF8_MARK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["NEVER_CLOSED", "Quoted", "Quotes", "null_groups", "row_ends"]

NEVER_CLOSED = (
    "the quote that opens there is never closed: close it or, if it is part of the value, quote the value "
    "and write the quote twice"
)
_QUOTE, _LINE_FEED = ord('"'), ord("\n")
_BEFORE_VALUES = np.zeros(256, dtype=np.bool_)
_BEFORE_VALUES[list(b",\r\n")] = True


@dataclass(frozen=True, slots=True)
class Quoted:
    """Where in a piece quotes open or close values, and whether it begins within one."""

    toggles: Sequence[int] | NDArray[np.int64]
    begins_within: bool

    def last_row_end(self, piece: bytes) -> int:
        """Return the place after the last line feed that is not within quotes; 0: there is none."""
        until = len(piece)
        while (place := piece.rfind(b"\n", 0, until)) >= 0:
            before = bisect(self.toggles, place)
            if self.begins_within == bool(before & 1):
                return place + 1
            until = int(self.toggles[before - 1]) if before else 0
        return 0


class Quotes:
    """Follows the quotes of a stream that comes in pieces, however it is cut."""

    def __init__(self) -> None:
        self.is_open = False
        """True if a value in quotes has begun and not ended."""
        self.opened_at = 0
        """The byte of the stream at which the last one began, if it is open."""
        self._at = 0
        self._head = b""
        self._last_is_delimiter = True
        self._last_closes = False

    def feed(self, piece: bytes) -> Quoted:
        """Take the next piece."""
        begins_within = self.is_open
        if len(self._head) < len(UTF8_MARK):
            self._head = (self._head + piece)[: len(UTF8_MARK)]
        toggles = self._toggles(piece) if b'"' in piece else ()
        if piece:
            self._last_is_delimiter = bool(_BEFORE_VALUES[piece[-1]])
            self._last_closes = not self.is_open and len(toggles) > 0 and toggles[-1] == len(piece) - 1
        self._at += len(piece)
        return Quoted(toggles, begins_within)

    def _toggles(self, piece: bytes) -> Sequence[int] | NDArray[np.int64]:
        octets = np.frombuffer(piece, np.uint8)
        places = np.flatnonzero(octets == _QUOTE)
        # As a rule, every second quote is at the begin of a value, or right after the one that closed it.
        opening = places[int(self.is_open) :: 2]
        starts = self._starts(octets, opening)
        others = opening[~starts]
        reopens = octets[others - 1] == _QUOTE
        if len(others) and others[0] == 0:
            reopens[0] = self._last_closes
        if not reopens.all():
            return self._toggles_one_by_one(places.tolist(), self._starts(octets, places).tolist())
        if starts.any():
            self.opened_at = self._at + int(opening[starts][-1])
        self.is_open ^= bool(len(places) & 1)
        return places

    def _starts(self, octets: NDArray[np.uint8], places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return if a value may begin at each of these places."""
        starts: NDArray[np.bool_] = _BEFORE_VALUES[octets[places - 1]]
        if len(places) and places[0] == 0:
            starts[0] = self._last_is_delimiter
        if self._at <= len(UTF8_MARK) and self._head == UTF8_MARK:
            starts[places == len(UTF8_MARK) - self._at] = True
        return starts

    def _toggles_one_by_one(self, places: list[int], starts: list[bool]) -> list[int]:
        toggles = []
        closed_at = -1 if self._last_closes else -2
        for place, starts_value in zip(places, starts, strict=True):
            if self.is_open:
                closed_at = place
            elif starts_value:
                self.opened_at = self._at + place
            elif place != closed_at + 1:
                continue
            self.is_open = not self.is_open
            toggles.append(place)
        return toggles


def row_ends(rows: bytes) -> NDArray[np.int64]:
    """The places after all line feeds that end rows, of bytes that begin with a row."""
    feeds = np.flatnonzero(np.frombuffer(rows, np.uint8) == _LINE_FEED)
    before = np.searchsorted(np.asarray(Quotes().feed(rows).toggles, np.int64), feeds)
    ends: NDArray[np.int64] = feeds[before & 1 == 0] + 1
    return ends


def null_groups(schema: pa.Schema, *, split: bool) -> list[tuple[list[str], bool]]:
    """The columns that Arrow reads together, and whether a null of these may be in quotes.

    A text in quotes is a text. In other columns it is not a value, so it may be a null; Arrow has one rule for all, so
    that they are read separately from strings, ``split``, where there is such a null.
    """
    texts = [each.name for each in schema if pa.types.is_string(each.type) or pa.types.is_binary(each.type)]
    others = [name for name in schema.names if name not in texts]
    if split and texts and others:
        return [(texts, False), (others, True)]
    return [(schema.names, not texts)]
