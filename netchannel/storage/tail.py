"""The end of a log that is being written: one segment, its file, and what stands in it already."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .files import write_all
from .layout import (
    BLOB,
    NAME_BYTES,
    SEGMENT_HEADER,
    Entry,
    content_name,
    entry_bytes,
    pack_entry,
    pack_segment_header,
    salt_of,
    segment_name,
)
from .segment import Segment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .files import Buffer, File, FileSystem


class Content(NamedTuple):
    """A schema or a context, with its name."""

    name: bytes
    data: bytes


NO_CONTENT = Content(b"", b"")


class NewEntry(NamedTuple):
    """The input of `Tail.write`: an entry without its place, its payload, and the contents that it refers to."""

    entry: Entry
    payload: Sequence[Buffer]
    schema: Content
    context: Content


class ContentNames:
    """Names contents; one that comes again as the same object is not hashed again."""

    def __init__(self) -> None:
        self._last = NO_CONTENT

    def of(self, data: bytes) -> Content:
        """``data`` with its name."""
        if not data:
            return NO_CONTENT
        if data is not self._last.data:
            self._last = Content(content_name(data), data)
        return self._last


class Tail:
    """Entries are written at ``segment.size``. Methods raise OSError, and then nothing is counted as written.

    ``synced`` is False while the file differs from what is on the disk.
    """

    def __init__(self, file: File, segment: Segment, blobs: dict[bytes, int], *, synced: bool) -> None:
        self.file = file
        self.segment = segment
        self.synced = synced
        self._blobs = blobs

    @property
    def has_records(self) -> bool:
        """True if it holds any message."""
        return self.segment.end > self.segment.base

    def needed_bytes(self, length: int, contents: Sequence[Content]) -> int:
        """Return the size of an entry with ``length`` bytes of payload, and of its contents that are not there yet."""
        return entry_bytes(length) + _contents_bytes(set(contents), self._blobs)

    def write(self, writings: Sequence[NewEntry]) -> None:
        """Write entries one after the other, in one go with the contents that they refer to."""
        segment = self.segment
        added: list[Entry] = []
        buffers: list[Buffer] = []
        offset, blobs = segment.size, {b"": 0}
        for entry, payload, schema, context in writings:
            for content in (schema, context):
                at = self._blobs.get(content.name, blobs.get(content.name))
                if at is None:
                    at = offset
                    length = NAME_BYTES + len(content.data)
                    blob = Entry(BLOB, 0, length, 0, 0, 0, 0, 0, 0, 0, segment.durable, 0)
                    buffers += pack_entry(blob, content, offset, segment.salt)
                    added.append(blob)
                    offset += entry_bytes(length)
                blobs[content.name] = at
            placed = entry._replace(
                schema=blobs[schema.name], context=blobs[context.name], durable=segment.durable
            )
            buffers += pack_entry(placed, payload, offset, segment.salt)
            added.append(placed)
            offset += entry_bytes(entry.length)
        self.synced = False
        write_all(self.file, buffers, segment.size)
        for each in added:
            segment.add(each)
        del blobs[b""]
        self._blobs.update(blobs)

    def take_back(self) -> None:
        """Cut off everything after the last entry: a failed `write` may have written it."""
        self.file.truncate(self.segment.size)

    def sync(self) -> None:
        """Make all of it durable, its name apart."""
        self.file.fdatasync()
        self.synced = True


def _contents_bytes(contents: set[Content], known: dict[bytes, int]) -> int:
    return sum(
        entry_bytes(NAME_BYTES + len(content.data))
        for content in contents
        if content.name and content.name not in known
    )


def first_bytes(length: int, contents: Sequence[Content]) -> int:
    """Return `Tail.needed_bytes` for a segment that has yet to be made, its header included."""
    return SEGMENT_HEADER + entry_bytes(length) + _contents_bytes(set(contents), {})


def create_tail(files: FileSystem, folder: Path, stream: str, base: int) -> Tail:
    """A new segment, not durable yet. Raises OSError, and then removes the file if it can."""
    path = folder / segment_name(base)
    header = pack_segment_header(base, content_name(stream.encode()))
    file = files.create(path)
    try:
        write_all(file, [header], 0)
    except OSError:
        file.close()
        files.unlink(path)
        # For good: the segment before may grow beyond this number yet.
        files.sync_directory(folder)
        raise
    return Tail(file, Segment(path, base, salt_of(header)), {}, synced=False)
