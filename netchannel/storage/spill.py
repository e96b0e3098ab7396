"""What does not fit into memory, in files without names: gone with the process."""

from __future__ import annotations

import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .faults import NO_SPACE, LogBroken, broken, damaged, no_space, over_limit, unreadable
from .files import RealFiles, nbytes, read_all, write_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .files import Buffer, File, FileSystem

_SEGMENT_BYTES = 1 << 24
_SEGMENTS_PER_LIMIT = 8


class SpillHandle(NamedTuple):
    """Where something was put."""

    segment: int
    offset: int
    length: int
    crc: int


class _Segment:
    def __init__(self, file: File) -> None:
        self.file = file
        self.size = 0
        self.live = 0


class SpillFile:
    """Puts buffers on disk and gives them back, in any order; not durable.

    A ring of files: one is deleted when all that was put into it is freed, so space comes back fully if things are
    freed in about the order in which they came. ``directory`` is where temporary files go by default, which some
    hosts keep in memory. Belongs to one thread at a time.
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        max_disk_bytes: int | None = None,
        segment_bytes: int = _SEGMENT_BYTES,
        files: FileSystem | None = None,
    ) -> None:
        self._directory = Path(directory if directory is not None else tempfile.gettempdir())
        self._max_disk_bytes = max_disk_bytes
        self._segment_bytes = segment_bytes
        if max_disk_bytes is not None:
            self._segment_bytes = min(segment_bytes, max_disk_bytes // _SEGMENTS_PER_LIMIT)
        self._files = files or RealFiles()
        self._segments: dict[int, _Segment] = {}
        self._current = -1
        self._broken: LogBroken | None = None
        self.disk_bytes = 0

    def room(self, length: int) -> bool:
        """Whether ``max_disk_bytes`` admits ``length`` more bytes now; nothing is too large for an empty one."""
        limit = self._max_disk_bytes
        return limit is None or not self._segments or self.disk_bytes + length <= limit

    def append(self, buffers: Sequence[Buffer]) -> SpillHandle:
        """Put ``buffers`` away. Raises StorageFull, and nothing has changed; LogBroken if the disk fails."""
        if self._broken is not None:
            raise self._broken
        length = sum(map(nbytes, buffers))
        limit = self._max_disk_bytes
        if limit is not None and not self.room(length):
            raise over_limit(self._directory, length, self.disk_bytes, limit)
        try:
            segment = self._segment_for(length)
        except OSError as error:
            raise self._failed("making a file in", 0, length, error) from error
        crc = 0
        for buffer in buffers:
            crc = zlib.crc32(buffer, crc)
        try:
            write_all(segment.file, buffers, segment.size)
        except OSError as error:
            # What was written of it is overwritten by the next; its end is where `size` says.
            raise self._failed("writing", segment.size, length, error) from error
        handle = SpillHandle(self._current, segment.size, length, crc)
        segment.size += length
        segment.live += 1
        self.disk_bytes += length
        return handle

    def read(self, handle: SpillHandle) -> memoryview:
        """What was put there. Raises LogDamaged if it is not there any more."""
        file = self._segments[handle.segment].file
        try:
            data = read_all(file, handle.length, handle.offset)
        except OSError as error:
            raise unreadable(self._directory, handle.offset, error) from error
        if len(data) != handle.length or zlib.crc32(data) != handle.crc:
            raise damaged(
                self._directory, handle.offset, f"{handle.length} spilled bytes do not match their checksum"
            )
        return memoryview(data)

    def free(self, handle: SpillHandle) -> None:
        """Forget what was put there; once for each handle."""
        segment = self._segments[handle.segment]
        segment.live -= 1
        if not segment.live:
            del self._segments[handle.segment]
            self.disk_bytes -= segment.size
            segment.file.close()

    def close(self) -> None:
        """Forget everything."""
        segments, self._segments = self._segments, {}
        self.disk_bytes = 0
        for segment in segments.values():
            segment.file.close()

    def _segment_for(self, length: int) -> _Segment:
        current = self._segments.get(self._current)
        if current is not None and current.size + length <= self._segment_bytes:
            return current
        self._current += 1
        segment = self._segments[self._current] = _Segment(self._files.temporary(self._directory))
        return segment

    def _failed(self, doing: str, offset: int, length: int, error: OSError) -> Exception:
        if error.errno in NO_SPACE:
            return no_space(self._directory, length, error)
        self._broken = broken(self._directory, offset, doing, error)
        return self._broken
