"""The promises of a staged channel, as entries of one small file (`netchannel.storage.layout`)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from netchannel.storage.failures import NO_SPACE, broken, damaged, no_space
from netchannel.storage.files import read_all, write_all
from netchannel.storage.layout import (
    JOURNAL,
    SEGMENT_HEADER,
    Entry,
    content_name,
    entry_bytes,
    pack_segment_header,
    salt_of,
)
from netchannel.storage.manifest import Mark
from netchannel.storage.recovery import durable_upto, log, write_again
from netchannel.storage.segment import Segment, read_payload, walk
from netchannel.storage.tail import NO_CONTENT, NewEntry, Tail

if TYPE_CHECKING:
    from pathlib import Path

    from netchannel.errors import LogBroken
    from netchannel.storage.files import File, FileSystem
    from netchannel.storage.manifest import Marks

STATE, COMMIT, FORGET = 16, 17, 18
"""Kinds of entries: all that holds, and what was committed since, or forgotten."""
_NEW = "journal.new"
_GROWTH = 4
_SMALL = 1 << 16
"""The journal is rewritten once it is larger than this, and than so many times its initial size."""

Fields = dict[str, Any]


class Journal:
    """Appended to by one thread at a time. An entry is on the disk when `append` has returned."""

    def __init__(self, files: FileSystem, folder: Path, marks: Marks, tail: Tail, began_bytes: int) -> None:
        self._files = files
        self._folder = folder
        self._marks = marks
        self._tail = tail
        self._began_bytes = began_bytes
        self.doubtful = False  # which of two is found by the next one to open it is not known
        self._broken: LogBroken | None = None

    @classmethod
    def create(cls, files: FileSystem, folder: Path, stream: str, marks: Marks, state: Fields) -> Journal:
        """The first of a folder. Raises OSError."""
        tail = _prepared(files, folder, stream, 1, state)
        try:
            _install(files, folder)
        except OSError:
            tail.file.close()
            raise
        return cls(files, folder, marks, tail, tail.segment.size)

    @property
    def mark(self) -> Mark:
        """How far it is durable."""
        return Mark(self._marks.last.acknowledged, self._tail.segment.base, self._tail.segment.durable)

    @property
    def overgrown(self) -> bool:
        """True if it is worth rewriting."""
        return self._tail.segment.size > max(_SMALL, _GROWTH * self._began_bytes)

    def append(self, kind: int, fields: Fields) -> None:
        """Write an entry, and make it durable.

        Raises StorageFull, and nothing has changed; LogBroken, and whether it is there shows after a restart.
        """
        if self._broken is not None:
            raise self._broken
        tail, payload = self._tail, _packed(fields)
        before = tail.segment.size
        entry = Entry(kind, 0, len(payload), 0, 0, 0, 0, 0, 0, 0, 0, 0)
        try:
            tail.write([NewEntry(entry, [payload], NO_CONTENT, NO_CONTENT)])
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise self._break("writing", before, error) from error
            try:
                tail.take_back()
            except OSError as failure:
                raise self._break("cutting", before, failure) from error
            raise no_space(self._folder, entry_bytes(len(payload)), error) from error
        try:
            tail.sync()
        except OSError as error:
            raise self._break("syncing", before, error) from error
        tail.segment.durable = tail.segment.size
        self._marks.write(self.mark)

    def replace(self, stream: str, state: Fields) -> None:
        """Rewrite it, with ``state`` in the place of all entries.

        Raises StorageFull, LogBroken: it continues as it was, unless it is ``doubtful`` then.
        """
        if self._broken is not None:
            raise self._broken
        before = self._tail
        try:
            tail = _prepared(self._files, self._folder, stream, before.segment.base + 1, state)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise no_space(self._folder, before.segment.size, error) from error
            raise broken(self._folder / _NEW, 0, "writing", error) from error
        try:
            _install(self._files, self._folder)
        except OSError as error:
            tail.file.close()
            self.doubtful = True
            raise self._break("replacing", 0, error) from error
        before.file.close()
        self._tail, self._began_bytes = tail, tail.segment.size

    def close(self) -> None:
        """Give the descriptor back."""
        self._tail.file.close()

    def _break(self, doing: str, offset: int, cause: OSError) -> LogBroken:
        self._broken = broken(self._folder / JOURNAL, offset, doing, cause)
        return self._broken


def _packed(fields: Fields) -> bytes:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def _prepared(files: FileSystem, folder: Path, stream: str, generation: int, state: Fields) -> Tail:
    """A journal that begins with ``state``, on the disk under another name. Raises OSError."""
    new = folder / _NEW
    if _NEW in files.list_directory(folder):
        files.unlink(new)
    header = pack_segment_header(generation, content_name(stream.encode()))
    file = files.create(new)
    try:
        segment = Segment(folder / JOURNAL, generation, salt_of(header))
        tail = Tail(file, segment, {}, synced=False)
        payload = _packed(state)
        write_all(file, [header], 0)
        entry = Entry(STATE, 0, len(payload), 0, 0, 0, 0, 0, 0, 0, 0, 0)
        tail.write([NewEntry(entry, [payload], NO_CONTENT, NO_CONTENT)])
        tail.sync()
    except OSError:
        file.close()
        raise
    segment.durable = segment.size
    return tail


def _install(files: FileSystem, folder: Path) -> None:
    """Put it in the place of the one before. Raises OSError, and then either may be found later."""
    files.rename(folder / _NEW, folder / JOURNAL)
    files.sync_directory(folder)


def recover_journal(
    files: FileSystem, folder: Path, stream: str, marks: Marks
) -> tuple[Journal, list[tuple[int, Fields]]]:
    """The journal that is there, and its entries; a torn tail is cut off. Raises LogDamaged, OSError."""
    path = folder / JOURNAL
    if _NEW in files.list_directory(folder):
        files.unlink(folder / _NEW)
    file = files.open(path)
    try:
        segment = _segment(file, path, stream, marks.last)
        entries, began = _entries(file, segment, marks.last)
    except BaseException:
        file.close()
        raise
    tail = Tail(file, segment, {}, synced=True)
    return Journal(files, folder, marks, tail, began), entries


def _segment(file: File, path: Path, stream: str, mark: Mark) -> Segment:
    header = read_all(file, SEGMENT_HEADER, 0)
    generation = int.from_bytes(header[8:16], "little")
    if header != pack_segment_header(generation, content_name(stream.encode())):
        raise damaged(path, 0, "the header is not that of this channel's journal")
    if mark.base > generation:
        raise damaged(
            path, 0, f"it is journal number {generation}, older than the recorded number {mark.base}"
        )
    return Segment(path, generation, salt_of(header))


def _entries(file: File, segment: Segment, mark: Mark) -> tuple[list[tuple[int, Fields]], int]:
    size = file.size()
    entries: list[tuple[int, Fields]] = []
    began = 0
    proven = max(durable_upto(file, segment.salt, size), mark.offset if mark.base == segment.base else 0)
    for offset, entry in walk(file, segment.salt, SEGMENT_HEADER, size):
        payload = read_payload(file, offset, entry)
        if payload is None:
            break
        entries.append((entry.kind, json.loads(bytes(payload))))
        segment.add(entry)
        # It was durable before it had its name.
        began = began or segment.size
    proven = max(proven, began)
    if not entries or segment.size < proven:
        raise damaged(
            segment.path,
            segment.size,
            f"the next entry is missing, although the file was durable up to byte {proven}",
        )
    if segment.size < size:
        log.warning(
            "%s: cut off %d bytes after byte %d, which were not yet durable when their writer stopped",
            segment.path, size - segment.size, segment.size,
        )  # fmt: skip
        file.truncate(segment.size)
    write_again(file, proven, segment.size)
    file.fdatasync()
    segment.durable = segment.size
    return entries, began
