"""A folder's small files: its manifest and marks (`netchannel.storage.layout`), and any that is replaced whole."""

from __future__ import annotations

import json
import logging
import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

from xxhash import xxh3_64_intdigest

from .failures import NO_SPACE, broken, damaged, no_space
from .files import read_all, write_all
from .layout import FORMAT

if TYPE_CHECKING:
    from pathlib import Path

    from .files import File, FileSystem

log = logging.getLogger("netchannel")

MANIFEST, MARKS, LOCK = "manifest", "marks", "lock"
DISCARDED = "discarded"
NEW = ".new"
"""Suffix of a file's name until it is complete."""
_LARGEST_MANIFEST = 1 << 16

_MARK = struct.Struct("<QQQQ")
_CRC = struct.Struct("<I")
_SLOTS = (0, 4096)  # a page each: writing one can not tear the other
_SIZE = _SLOTS[1] + _MARK.size + _CRC.size
_SUM = struct.Struct("<Q")


class Manifest(NamedTuple):
    """The constant settings of a log."""

    channel_id: str
    stream: str
    codec: str


def write_manifest(files: FileSystem, folder: Path, manifest: Manifest) -> None:
    """Make the manifest, whole and durable or not at all."""
    values = {
        "format": FORMAT,
        "channel": manifest.channel_id,
        "stream": manifest.stream,
        "codec": manifest.codec,
    }
    line = json.dumps(values, ensure_ascii=False).encode() + b"\n"
    new = folder / (MANIFEST + NEW)
    if new.name in files.list_directory(folder):
        files.unlink(new)
    file = files.create(new)
    try:
        write_all(file, [line, b"%08x\n" % zlib.crc32(line)], 0)
        file.fdatasync()
    finally:
        file.close()
    files.rename(new, folder / MANIFEST)
    files.sync_directory(folder)


def read_manifest(files: FileSystem, folder: Path) -> Manifest:
    """The manifest of a folder. Raises LogDamaged if it is not what was written, or of another version."""
    path = folder / MANIFEST
    file = files.open(path)
    try:
        data = read_all(file, _LARGEST_MANIFEST, 0)
    finally:
        file.close()
    line, newline, crc = data.partition(b"\n")
    if crc != b"%08x\n" % zlib.crc32(line + newline):
        raise damaged(path, 0, "its checksum does not match")
    values = json.loads(line)
    if values["format"] != FORMAT:
        raise damaged(path, 0, f"its format is {values['format']}, but this version reads {FORMAT}")
    return Manifest(values["channel"], values["stream"], values["codec"])


class Mark(NamedTuple):
    """How far the stream is acknowledged, and how far it is durable: up to ``offset`` of the segment at ``base``."""

    acknowledged: int = 0
    base: int = 0
    offset: int = 0


class Marks:
    """The file of marks: the last settled one stays intact until the next one is settled, even through a crash.

    ``settled`` is on the disk; ``last`` is written, and may be lost. A write that failed is logged, once, and
    otherwise borne; ``error`` is why. The next `settle` tries again.
    """

    def __init__(self, files: FileSystem, folder: Path, stream: str) -> None:
        self._path = folder / MARKS
        self._salt = zlib.crc32(stream.encode())
        self._said = False
        self.error: OSError | None = None
        self.settled = Mark()
        known = MARKS in files.list_directory(folder)
        self._file: File = files.open(self._path) if known else files.create(self._path)
        try:
            if (size := self._file.size()) < _SIZE:
                # Takes its space now: later the disk may be full. The file may be the remains of a crash.
                write_all(self._file, [bytes(_SIZE - size)], size)
            if not known:
                files.sync_directory(folder)
            self._counter, self.last, self._slot = max((*self._read(slot), slot) for slot in _SLOTS)
        except OSError:
            self._file.close()
            raise
        if self._counter:
            # The same bytes in the same place: after a sync that failed they can be read from the kernel's cache,
            # and may not be on the disk.
            self._settle_in(self._slot)

    def _read(self, slot: int) -> tuple[int, Mark]:
        data = read_all(self._file, _MARK.size + _CRC.size, slot)
        body = data[: _MARK.size]
        if data[_MARK.size :] != _CRC.pack(zlib.crc32(body, self._salt)):
            return 0, Mark()
        counter, *values = _MARK.unpack(body)
        return counter, Mark(*values)

    def write(self, mark: Mark) -> None:
        """Write, not synced, next to the settled one."""
        if mark == self.last or self.error is not None:
            return
        self._counter += 1
        self.last = mark
        self._put(self._other_slot())

    def settle(self, mark: Mark) -> bool:
        """Write ``mark`` and make it durable, also one that was written before; whether that worked."""
        self._counter += 1
        self.last = mark
        self.error = None
        return self._settle_in(self._other_slot())

    def _settle_in(self, slot: int) -> bool:
        self._put(slot)
        self.sync()
        if self.error is not None:
            return False
        self._slot, self.settled, self._said = slot, self.last, False
        # And once more, in the kernel's time: a byte that goes bad on the disk later costs nothing then.
        self._put(self._other_slot())
        return True

    def _other_slot(self) -> int:
        return _SLOTS[self._slot == _SLOTS[0]]

    def _put(self, slot: int) -> None:
        body = _MARK.pack(self._counter, *self.last)
        try:
            write_all(self._file, [body + _CRC.pack(zlib.crc32(body, self._salt))], slot)
        except OSError as error:
            self._fail(error)

    def sync(self) -> None:
        """Make the last mark durable."""
        if self.error is None:
            try:
                self._file.fdatasync()
            except OSError as error:
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        self.error = error
        if not self._said:
            self._said = True
            log.warning(
                "%s cannot be written (%s): until it can be written again, the disk space of acknowledged "
                "messages is not freed, and after a restart these messages may be sent again",
                self._path, error,
            )  # fmt: skip

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def replace_file(files: FileSystem, path: Path, content: bytes) -> None:
    """Make ``content`` that of the file, durably: written under another name, synced, renamed.

    Raises StorageFull, and then the file is what it was; LogBroken.
    """
    beside = path.with_name(path.name + NEW)
    try:
        if beside.name in files.list_directory(path.parent):
            files.unlink(beside)
        file = files.create(beside)
        try:
            write_all(file, [_SUM.pack(xxh3_64_intdigest(content)), content], 0)
            file.fdatasync()
        finally:
            file.close()
        files.rename(beside, path)
        files.sync_directory(path.parent)
    except OSError as error:
        if error.errno in NO_SPACE:
            raise no_space(path.parent, len(content), error) from error
        raise broken(path, 0, "replacing", error) from error


def file_content(files: FileSystem, path: Path) -> bytes | None:
    """Return the last contents written by `replace_file`; None if there is none. Raises LogDamaged, LogBroken."""
    try:
        if path.name not in files.list_directory(path.parent):
            return None
        file = files.open(path)
        try:
            data = read_all(file, file.size(), 0)
        finally:
            file.close()
    except OSError as error:
        raise broken(path, 0, "reading", error) from error
    content = data[_SUM.size :]
    if len(data) < _SUM.size or _SUM.unpack_from(data)[0] != xxh3_64_intdigest(content):
        raise damaged(path, 0, "it does not match its checksum")
    return content
