"""Lines of files that may grow: each is a message, at the byte where it begins."""

from __future__ import annotations

import logging
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from nebuli.ingestion.errors import AddressGone, SourceUnusable
from nebuli.ingestion.message_addresses import PAYLOAD, Messages

from .polled_files import Part, PolledFiles, look_of
from .seen_files import Marks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from nebuli.ingestion.definition import FileOrigin

    from .seen_files import SeenFiles

_log = logging.getLogger("nebuli.ingestion")

BLOCK_BYTES = 4 << 20
"""How much is read at once; more where a line is longer."""
LONGEST_LINE = 64 << 20
"""A line with more bytes is a mistake: a quote that is never closed, or a file of something else."""
UNENDED_S = 5.0
"""How long a last line may be without its end until a log line reports it."""
_TAIL_BYTES = 64
_IN_VAIN_TIMES = 50
"""So many times what it has cost to read the beginning of a line is waited until it is read once more."""
_LINE_END, _QUOTE = 10, 34
_SCHEMA = pa.schema([(PAYLOAD, pa.binary())])


class _File(Part):
    """``since`` is when a line was found at the next address that has no end yet."""

    __slots__ = ("is_told", "measured", "since")

    def __init__(self, path: str, at: int) -> None:
        super().__init__(path, at)
        self.since: float | None = None
        self.is_told = False
        self.measured = _Measured(at, 0, at)


class _Measured:
    """How far quotes are counted: up to ``at``, where there are ``odd`` of them open, and the last line end is."""

    __slots__ = ("at", "end", "odd")

    def __init__(self, at: int, odd: int, end: int) -> None:
        self.at = at
        self.odd = odd
        self.end = end


class LineFiles(PolledFiles[_File]):
    """Lines with their ends, as bytes; where they are ``quoted``, one does not end within double quotes (RFC 4180).

    A last line without its end is not a message until that has come. Lines may be added to a file; what was read is not
    to change. With ``quoted``, `ends` reads each byte of the files once more.
    """

    unit: ClassVar[str] = "bytes"

    def __init__(self, origin: FileOrigin, *, name: str, quoted: bool, seen: SeenFiles | None = None) -> None:
        super().__init__(origin.path, name=name, seen=seen)
        self._quoted = quoted

    @property
    def schema(self) -> pa.Schema:
        """One column of bytes."""
        return _SCHEMA

    def _new(self, path: str, at: int) -> _File:
        return _File(path, at)

    def _check(self, part: _File) -> None:
        with _descriptor(part.path) as file:
            self._check_place(part, file)

    def _check_place(self, part: _File, file: int) -> os.stat_result:
        """Raise AddressGone where what was read is not before the next address."""
        found = os.fstat(file)
        self._check_size(part, part.at, found.st_size)
        if any(os.pread(file, len(tail), at - len(tail)) != tail for at, tail in _tails(part)):
            raise AddressGone(
                f"{self._name}: {part.path} was read up to byte {part.at}, where no line ends "
                f"now: another file has replaced it; put the earlier file back, or start from scratch"
            )
        return found

    def _check_size(self, part: _File, at: int, size: int) -> None:
        if size < at:
            raise AddressGone(
                f"{self._name}: {part.path} was read up to byte {at}, but has only {size} bytes now: "
                f"another file has replaced it; put the earlier file back, or start from scratch"
            )

    def _read(self, part: _File) -> Messages | None:
        begun = time.monotonic()
        with _descriptor(part.path) as file:
            found = self._check_place(part, file)
            block, ends = self._block(part, file, found.st_size)
        if not len(ends):
            now = time.monotonic()
            part.seen, part.not_before = look_of(found), now + _IN_VAIN_TIMES * (now - begun)
            part.since = (part.since or now) if block else None
            return None
        messages = self._messages(part, block, ends)
        tail = block[max(0, int(ends[-1]) - _TAIL_BYTES) : int(ends[-1])]
        if part.marks and part.marks[-1][0] == part.at:  # more than one line, where it grows line by line
            tail = (part.marks[-1][1] + tail)[-_TAIL_BYTES:]
        part.at = messages.upper
        part.marks.append((part.at, tail))
        part.since, part.is_told = None, False
        if part.at == found.st_size:
            part.seen = look_of(found)
        return messages

    def _block(self, part: _File, file: int, size: int) -> tuple[bytes, NDArray[np.int64]]:
        """The bytes that come next, and in them the ends of lines; none where there is no whole line."""
        left = size - part.at
        wanted = min(BLOCK_BYTES, left)
        while True:
            block = os.pread(file, wanted, part.at)
            ends = line_ends(block, quoted=self._quoted)
            if len(ends) or wanted == left or len(block) < wanted:
                return block, ends
            # At the same size for every reader: the rows of a file must not depend on how it has grown.
            if wanted == LONGEST_LINE:
                raise SourceUnusable(self._too_long(part))
            wanted = min(2 * wanted, left, LONGEST_LINE)

    def _too_long(self, part: _File) -> str:
        why = "is a double quote never closed?" if self._quoted else "is this a file of lines?"
        return f"{self._name}: the line at byte {part.at} of {part.path} has no end within {LONGEST_LINE} bytes: {why}"

    def _messages(self, part: _File, block: bytes, ends: NDArray[np.int64]) -> Messages:
        offsets = np.empty(len(ends) + 1, np.int32)
        offsets[0] = 0
        offsets[1:] = ends
        lines = pa.BinaryArray.from_buffers(
            pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(block)], null_count=0
        )
        addresses = offsets[:-1] + np.int64(part.at)
        rows = pa.RecordBatch.from_arrays([lines], schema=_SCHEMA)
        return Messages(part.path, part.at, part.at + int(ends[-1]), addresses, rows)

    def _overdue(self, part: _File, now: float) -> None:
        if part.since is not None and not part.is_told and now > part.since + UNENDED_S:
            part.is_told = True
            left = (part.seen[1] if part.seen is not None else part.at) - part.at
            _log.warning(
                "%s: %s has %d bytes after its last line end, from byte %d: these bytes are read "
                "when their line is complete",
                *(self._name, part.path, left, part.at),
            )

    # -- where it ends

    def _end(self, part: _File) -> int:
        at = part.at  # which moves on meanwhile
        with _descriptor(part.path) as file:
            size = os.fstat(file).st_size
            self._check_size(part, at, size)
            return self._quoted_end(part, file, at, size) if self._quoted else _plain_end(file, at, size)

    def _quoted_end(self, part: _File, file: int, at: int, size: int) -> int:
        """Quotes before it have to be counted, each once: a line end may be within such."""
        known = part.measured
        # Small data is counted again: lines without an end may have been removed, and others written.
        if not at <= known.at <= size or size - at <= BLOCK_BYTES:
            known = _Measured(at, 0, at)
        while known.at < size:
            block = os.pread(file, min(BLOCK_BYTES, size - known.at), known.at)
            if not block:
                break
            odd = known.odd ^ (block.count(b'"') & 1)
            place = _last_end(block, odd)
            known = _Measured(known.at + len(block), odd, known.at + place if place else known.end)
        part.measured = known
        return max(known.end, at)


def _tails(part: _File) -> Marks:
    """Addresses, and what is before each, as far as that is known: what was read last, and a line end at least."""
    known = Marks([part.marks[-1]] if part.marks else [])
    if part.at and not (known and known[0][0] == part.at):
        known.append((part.at, b"\n"))
    return known


@contextmanager
def _descriptor(path: str) -> Iterator[int]:
    # A path that has become a pipe meanwhile must not be waited for.
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield file
    finally:
        os.close(file)


def _plain_end(file: int, at: int, size: int) -> int:
    upper = size
    while upper > at:
        lower = max(at, upper - BLOCK_BYTES)
        if (place := os.pread(file, upper - lower, lower).rfind(b"\n")) >= 0:
            return lower + place + 1
        upper = lower
    return at


def line_ends(block: bytes, *, quoted: bool) -> NDArray[np.int64]:
    """Return the places after the line ends of a block that begins with a line."""
    octets = np.frombuffer(block, np.uint8)
    places = np.flatnonzero(octets == _LINE_END)
    if quoted and len(places) and b'"' in block:
        begins = np.concatenate([[0], places[:-1] + 1])
        # Sums are modulo 256, of which only the last bit is looked at. Those of lines first: they are far fewer.
        quotes = np.add.reduceat((octets[: places[-1] + 1] == _QUOTE).view(np.uint8), begins, dtype=np.uint8)
        places = places[np.cumsum(quotes, dtype=np.uint8) & 1 == 0]
    return places + 1


def _last_end(block: bytes, odd: int) -> int:
    """Return the place after the last line end that is not within quotes, ``odd`` of which are open after it.

    0: none.
    """
    until = len(block)
    while (place := block.rfind(b"\n", 0, until)) >= 0:
        odd ^= block.count(b'"', place, until) & 1
        if not odd:
            return place + 1
        until = place
    return 0
