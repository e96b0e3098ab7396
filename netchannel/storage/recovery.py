"""What a restarted process finds in a channel's folder, and what of it was durable (`netchannel.storage.layout`)."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from .faults import damaged
from .files import read_all, write_all
from .layout import (
    BLOB,
    END,
    ENTRY_HEADER,
    ENTRY_MAGIC,
    FAIL,
    NAME_BYTES,
    RECORD,
    SEGMENT_HEADER,
    SUFFIX,
    Entry,
    content_name,
    entry_bytes,
    pack_segment_header,
    salt_of,
    segment_name,
    unpack_entry,
)
from .segment import Ending, Segment, read_payload, walk

if TYPE_CHECKING:
    from pathlib import Path

    from .files import File, FileSystem
    from .manifest import Mark

log = logging.getLogger("netchannel")

_CHUNK = 1 << 20


@dataclass(slots=True)
class Recovered:
    """The log as it was found; ``blobs`` maps names of contents to offsets in the last segment."""

    segments: list[Segment] = field(default_factory=list)
    blobs: dict[bytes, int] = field(default_factory=dict)
    ending: Ending | None = None


def recover(files: FileSystem, folder: Path, stream: str, mark: Mark) -> Recovered:
    """Find the segments, cut off a torn tail, and make the rest durable.

    Raises LogDamaged if anything that was durable is missing or wrong, as far as headers tell; OSError.
    """
    names = sorted(name for name in files.list_directory(folder) if name.endswith(SUFFIX))
    bases = [int(name.removesuffix(SUFFIX)) for name in names]
    if not bases and mark.offset:
        raise damaged(folder / segment_name(mark.base), 0, "the segment is missing")
    recovery = _Recovery(files, folder, stream, mark)
    for base, following in pairwise(bases):
        recovery.sealed(base, following)
    if bases:
        recovery.last(bases[-1], sole=len(bases) == 1)
    # Without a segment, the mark says where numbers go on: `SegmentLog._start_over`.
    head = recovery.result.segments[-1].end if recovery.result.segments else mark.acknowledged
    if mark.acknowledged > head:
        raise damaged(
            folder / segment_name(bases[-1] if bases else 0),
            0,
            f"its messages end at number {head}, acknowledged are {mark.acknowledged}",
        )
    return recovery.result


class _Recovery:
    def __init__(self, files: FileSystem, folder: Path, stream: str, mark: Mark) -> None:
        self._files = files
        self._folder = folder
        self._stream = content_name(stream.encode())
        self._mark = mark
        self.result = Recovered()

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
            raise damaged(path, segment.size, "no entry is there, but a later segment is")
        if segment.end != following:
            missing = f"it ends at number {segment.end}, and the next segment starts at {following}"
            raise damaged(path, size, f"{missing}: what was between them is missing")
        segment.durable = size
        self.result.segments.append(segment)
        self.result.blobs.clear()  # of use in the segment that goes on only

    def last(self, base: int, *, sole: bool) -> None:
        """The segment that was written last may end in anything, beyond what was durable of it."""
        path = self._folder / segment_name(base)
        if self._mark.offset and self._mark.base > base:
            raise damaged(self._folder / segment_name(self._mark.base), 0, "the segment is missing")
        # Earlier segments are deleted only after this one was durable, or after the mark said that it was to come.
        announced = self._mark.base == base and not self._mark.offset
        proven = SEGMENT_HEADER if sole and base and not announced else 0
        if self._mark.base == base:
            proven = max(proven, self._mark.offset)
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
        log.info("%s was not yet written when its writer stopped: removed", path)
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
                segment.path, segment.size, f"no entry is there, but the file was durable up to byte {proven}"
            )
        if segment.size < size:
            log.warning(
                "%s: cut off %d bytes after byte %d, which were not yet durable when their writer stopped; "
                "messages go on at number %d",
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
            if unproven or entry.kind != RECORD:
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
            raise damaged(segment.path, offset, f"number {entry.first} is where {segment.end} was due")
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
    """How far the entries of a segment say that it was durable, those after a damaged place too."""
    durable, offset = 0, SEGMENT_HEADER
    while offset < size:
        for at, entry in walk(file, salt, offset, size):
            durable = max(durable, entry.durable)
            offset = at + entry_bytes(entry.length)
        offset = _find(file, salt, offset, size)
    return durable


def _find(file: File, salt: int, start: int, size: int) -> int:
    """The offset of the next valid header after the damaged one at ``start``; ``size`` if there is none."""
    for base in range(start, size, _CHUNK):
        data = read_all(file, _CHUNK + ENTRY_HEADER, base)
        at = data.find(ENTRY_MAGIC)
        while 0 <= at < _CHUNK:
            offset = base + at
            if offset % 8 == 0 and offset > start and unpack_entry(data, at, offset, salt) is not None:
                return offset
            at = data.find(ENTRY_MAGIC, at + 1)
    return size
