"""`SeenFiles`: by what a source's files are known again, by one reader after the other."""

from __future__ import annotations

import struct
from collections import deque

_MARKS = 16
"""So many of a file are kept: a reader begins where something was recorded, which is some reads back at most."""
_ADDRESS = struct.Struct(">q")
Marks = deque[tuple[int, bytes]]
"""By ascending addresses, what a file has below each that another one has not."""


class SeenFiles:
    """The marks of files, by path, for the next reader of the same source: one is recorded with each address.

    They reveal a replaced file, also to a reader that has not read the first one.
    """

    def __init__(self) -> None:
        self._marks: dict[str, Marks] = {}

    def begin(self, path: str, at: int) -> Marks:
        """Return the initial marks of a file that is read from an address; later data may have been fixed."""
        self._marks[path] = marks = Marks(
            [each for each in self._marks.get(path, ()) if each[0] <= at], _MARKS
        )
        return marks

    def recorded(self, path: str, at: int) -> bytes:
        """Return the marks recorded with an address of a file: the last mark up to it; none if none is known."""
        known = [each for each in tuple(self._marks.get(path, ())) if each[0] <= at]
        return _ADDRESS.pack(known[-1][0]) + known[-1][1] if known else b""

    def know(self, path: str, recorded: bytes) -> None:
        """Have a file be the one with which that was recorded."""
        if recorded:
            (address,) = _ADDRESS.unpack_from(recorded)
            self._marks[path] = Marks([(address, recorded[_ADDRESS.size :])], _MARKS)
