"""The state of a channel's folder for a restarted process, and its durable part (`netchannel.storage.layout`)."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from netchannel.values import Ending

from .failures import damaged, lost
from .files import read_all, write_all
from .layout import (
    BLOB,
    END,
    ENTRY_HEADER,
    ENTRY_MAGIC,
    FAIL,
    MESSAGES,
    NAME_BYTES,
    SEGMENT_HEADER,
    SUFFIX,
    Entry,
    content_name,
    entry_bytes,
    is_segment_header,
    pack_segment_header,
    salt_of,
    segment_name,
    unpack_entry,
)
from .manifest import MARKS, Mark
from .segment import Segment, read_payload, walk

if TYPE_CHECKING:
    from pathlib import Path

    from netchannel.errors import LogDamaged

    from .files import File, FileSystem

log = logging.getLogger("netchannel")

_CHUNK = 1 << 20
_NO_MARK = Mark()


@dataclass(slots=True)
class RecoveredLog:
    """The log as it was found; ``blobs`` maps names of contents to offsets in the last segment."""

    segments: list[Segment] = field(default_factory=list)
    blobs: dict[bytes, int] = field(default_factory=dict)
    ending: Ending | None = None


def recover(files: FileSystem, folder: Path, stream: str, mark: Mark) -> RecoveredLog:
    """Find the segments, cut off a torn tail, and make the rest durable.

    Raises MessagesLost if a file with messages that are not acknowledged by ``mark`` is missing; LogDamaged
    if anything else that was durable is missing or wrong, as far as headers show; OSError.
    """
    bases = _bases(files, folder)
    recovery = _Recovery(files, folder, stream, mark)
    if not bases:
        if mark.offset:
            raise lost(
                folder,
                mark.acknowledged,
                None,
                f"{segment_name(mark.base)} was recorded, but all segments are missing now",
            )
        return recovery.result  # the mark shows where numbers continue: `SegmentLog._start_over`
    for base in bases:
        recovery.refuse_foreign(base)
    if bases[0] > mark.acknowledged:
        raise _untrimmed(folder, bases[0], mark)
    for base, following in pairwise(bases):
        recovery.sealed(base, following)
    if mark.offset and mark.base > bases[-1]:
        recovery.sealed(bases[-1], mark.base)
        raise lost(folder, mark.base, None, f"{segment_name(mark.base)} was recorded, but is missing now")
    recovery.last(bases[-1])
    head = recovery.result.segments[-1].end if recovery.result.segments else mark.acknowledged
    if mark.acknowledged > head:
        raise damaged(
            folder / segment_name(bases[-1]),
            0,
            f"its messages end at number {head}, although all messages below {mark.acknowledged} are acknowledged",
        )
    return recovery.result


def _bases(files: FileSystem, folder: Path) -> list[int]:
    bases = []
    for name in files.list_directory(folder):
        if name.endswith(SUFFIX):
            number = name.removesuffix(SUFFIX)
            if not number.isdecimal() or segment_name(int(number)) != name:
                raise damaged(
                    folder / name, 0, "its name is not the name of a segment", "take it out of the folder"
                )
            bases.append(int(number))
    return sorted(bases)


def _untrimmed(folder: Path, base: int, mark: Mark) -> LogDamaged:
    """The error where the first segment starts beyond what is acknowledged: a mark is settled before one is deleted."""
    if mark == _NO_MARK:
        what = f"it no longer shows whether the messages below number {base} were acknowledged or are lost"
        return damaged(folder / MARKS, 0, what)
    what = f"the first segment starts at number {base}, and acknowledged messages end at {mark.acknowledged}"
    return lost(folder, mark.acknowledged, base, what)


class _Recovery:
    def __init__(self, files: FileSystem, folder: Path, stream: str, mark: Mark) -> None:
        self._files = files
        self._folder = folder
        self._stream = content_name(stream.encode())
        self._mark = mark
        self.result = RecoveredLog()

    def refuse_foreign(self, base: int) -> None:
        """A header that is whole, and another segment's, was left by no crash."""
        path = self._folder / segment_name(base)
        file = self._files.open(path)
        try:
            header = read_all(file, SEGMENT_HEADER, 0)
        finally:
            file.close()
        if is_segment_header(header) and header != pack_segment_header(base, self._stream):
            what = "its header has another stream or another first number"
            raise damaged(path, 0, what, "take it out of the folder if it was copied there")

    def sealed(self, base: int, following: int) -> None:
        """A segment with a successor was durable as a whole before that was made."""
        path = self._folder / segment_name(base)
        file = self._files.open(path)
        try:
            size = file.size()
            salt = self._salt(file, base)
            if salt is None:
                raise damaged(path, 0, "the header is not that of a segment of this stream")
            segment = self._read(file, Segment(path, base, salt), size, proven=size)
        finally:
            file.close()
        if segment.size != size:
            raise damaged(path, segment.size, "the next entry is missing, although a later segment exists")
        if segment.end < following:
            what = f"{path.name} ends at number {segment.end}, and the next segment starts at {following}"
            raise lost(self._folder, segment.end, following, what)
        if segment.end > following:
            what = f"it ends at number {segment.end}, and the next segment starts at {following}"
            raise damaged(path, size, what)
        segment.durable = size
        self.result.segments.append(segment)
        self.result.blobs.clear()  # of use only in the segment that continues

    def last(self, base: int) -> None:
        """The segment that was written last may end in anything, beyond what was durable of it."""
        path = self._folder / segment_name(base)
        proven = self._mark.offset if self._mark.base == base else 0
        file = self._files.open(path)
        try:
            salt = self._salt(file, base)
            if salt is not None:
                self.result.segments.append(self._last(file, Segment(path, base, salt), proven))
                return
            # The header is known without reading it, and so is what the entries' checksums start from.
            salt = salt_of(pack_segment_header(base, self._stream))
            proven = max(proven, durable_upto(file, salt, file.size()))
        finally:
            file.close()
        if proven:
            raise damaged(path, 0, "the header is not that of a segment of this stream")
        log.info("%s is removed: nothing in it was durable when its writer stopped", path)
        self._files.unlink(path)
        self._files.sync_directory(self._folder)

    def _salt(self, file: File, base: int) -> int | None:
        header = pack_segment_header(base, self._stream)
        return salt_of(header) if read_all(file, SEGMENT_HEADER, 0) == header else None

    def _last(self, file: File, segment: Segment, proven: int) -> Segment:
        size = file.size()
        proven = max(proven, durable_upto(file, segment.salt, size))
        self._read(file, segment, size, proven)
        if segment.size < proven:
            raise damaged(
                segment.path,
                segment.size,
                f"the next entry is missing, although the file was durable up to byte {proven}",
            )
        if segment.size < size:
            log.warning(
                "%s: cut off %d bytes after byte %d, which were not yet durable when their writer stopped; "
                "messages continue at number %d",
                segment.path, size - segment.size, segment.size, segment.end,
            )  # fmt: skip
            file.truncate(segment.size)
        if segment.size > proven:
            write_again(file, proven, segment.size)
        # Always: an opener before us may have been stopped between its cut and its sync.
        # Names are durable already: `claim` synced the directory.
        file.fdatasync()
        segment.durable = segment.size
        return segment

    def _read(self, file: File, segment: Segment, size: int, proven: int) -> Segment:
        """Index the entries. Payloads are checked from ``proven`` on, and the first bad one ends the segment."""
        for offset, entry in walk(file, segment.salt, SEGMENT_HEADER, size):
            unproven = offset >= proven
            payload = None
            if unproven or entry.kind not in MESSAGES:
                payload = read_payload(file, offset, entry)
                if payload is None and unproven:
                    break
                if payload is None:
                    raise damaged(segment.path, offset, "the payload does not match its checksum")
            self._follow(segment, offset, entry, payload)
            segment.add(entry)
        return segment

    def _follow(self, segment: Segment, offset: int, entry: Entry, payload: memoryview | None) -> None:
        if self.result.ending is not None:
            raise damaged(segment.path, offset, "an entry follows the end of the stream")
        if entry.kind != BLOB and entry.first != segment.end:
            raise damaged(
                segment.path, offset, f"number {entry.first} was found where {segment.end} was expected"
            )
        if payload is None:
            return
        if entry.kind == BLOB:
            self.result.blobs[bytes(payload[:NAME_BYTES])] = offset
        elif entry.kind in (END, FAIL):
            message = bytes(payload).decode() if entry.kind == FAIL else None
            self.result.ending = Ending(segment.end, message)


def write_again(file: File, start: int, stop: int) -> None:
    """Let the next sync write what nothing proves to be durable.

    After a sync that failed it can be read from the kernel's cache, and would never be written.
    """
    for offset in range(start, stop, _CHUNK):
        write_all(file, [read_all(file, min(_CHUNK, stop - offset), offset)], offset)


def durable_upto(file: File, salt: int, size: int) -> int:
    """Return how far a segment was durable by its entries, those after a damaged place too."""
    durable, offset = 0, SEGMENT_HEADER
    while offset < size:
        for at, entry in walk(file, salt, offset, size):
            durable = max(durable, entry.durable)
            offset = at + entry_bytes(entry.length)
        offset = _find(file, salt, offset, size)
    return durable


def _find(file: File, salt: int, start: int, size: int) -> int:
    """Return the offset of the next valid header after the damaged one at ``start``; ``size`` if there is none."""
    for base in range(start, size, _CHUNK):
        data = read_all(file, _CHUNK + ENTRY_HEADER, base)
        at = data.find(ENTRY_MAGIC)
        while 0 <= at < _CHUNK:
            offset, head = base + at, data[at : at + ENTRY_HEADER]
            if offset % 8 == 0 and offset > start and unpack_entry(head, offset, salt) is not None:
                return offset
            at = data.find(ENTRY_MAGIC, at + 1)
    return size
