"""One attempt of a staged group on disk: a segment of its own numbers, which is not read before it is committed."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from netchannel.storage.failures import NO_SPACE, broken, damaged, no_space
from netchannel.storage.files import abandon_in_children, nbytes, read_all, write_all
from netchannel.storage.layout import (
    BLOB,
    END,
    NAME_BYTES,
    RECORD,
    SEALED,
    SEGMENT_HEADER,
    UNSEALED,
    Entry,
    content_name,
    entry_bytes,
    pack_segment_header,
    padding,
    salt_of,
)
from netchannel.storage.recovery import log
from netchannel.storage.segment import Segment, read_payload, walk
from netchannel.storage.tail import ContentNames, NewEntry, Tail
from netchannel.values import AttemptKey

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from netchannel.storage.files import Buffer, File, FileSystem

    from .spares import Spare, Spares


@dataclass(frozen=True, slots=True)
class SealedAttempt:
    """An attempt that is on the disk as a whole: ``count`` messages of ``size`` bytes, with the caller's sum."""

    key: AttemptKey
    count: int
    size: int
    checksum: int
    schema: bytes
    segment: Segment

    @property
    def path(self) -> Path:
        """The path of its file."""
        return self.segment.path

    @property
    def file_bytes(self) -> int:
        """The size of its file."""
        return self.segment.size


_HASTE_BYTES = 1 << 20


def file_name(key: AttemptKey) -> str:
    """The name of an attempt's file, without its ending."""
    return content_name(key.stream.encode()).hex()


class AttemptFile:
    """An attempt that is written, by one thread at a time. Nothing of it lasts before `seal`.

    An error is final, that of a full disk too: the attempt is to be discarded then.
    """

    def __init__(self, files: FileSystem, folder: Path, key: AttemptKey, spares: Spares) -> None:
        self.key = key
        self._files = files
        self._folder = folder
        self._spares = spares
        self._tail: Tail | None = None
        self._spare: Spare | None = None  # which is the file
        self._large = False
        self._schemas, self._contexts = ContentNames(), ContentNames()
        self._bytes = 0
        self._hastened = 0  # bytes of the file
        abandon_in_children(self)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return 0 if self._tail is None else self._tail.segment.size

    def append(
        self,
        count: int,
        buffers: Sequence[Buffer],
        *,
        timestamp: int = 0,
        flags: int = 0,
        size: int = 0,
        digest: int = 0,
        schema: bytes = b"",
        context: bytes = b"",
    ) -> None:
        """Write ``count`` messages of ``size`` bytes. Raises StorageFull, LogBroken.

        ``digest`` is XXH3-64 of all ``buffers``, if it is known: it need not be computed again.
        """
        first = 0 if self._tail is None else self._tail.segment.end
        length = sum(map(nbytes, buffers))
        payload_sum = 0 if padding(length) else digest & 0xFFFFFFFF
        entry = Entry(RECORD, flags, length, first, first + count, timestamp, size, 0, 0, 0, 0, payload_sum)
        self._bytes += size
        self._write(entry, buffers, schema, context)
        self._go_on_in_a_spare()
        self._hasten()

    def _go_on_in_a_spare(self) -> None:
        """Continue, once it is large, in a file that has memory and blocks already, if there is one."""
        tail = self._tail
        assert tail is not None
        if self._spare is not None:
            self._spare.used = self.size
        if self._large or not self._spares.worth(self.size):
            return
        self._large = True
        if (taken := self._spares.take()) is None:
            return
        spare, file = taken
        try:
            write_all(file, [read_all(tail.file, self.size, 0)], 0)
            self._files.rename(spare.path, tail.segment.path)
        except OSError:  # it stays in its file
            file.close()
            self._spares.give_back(spare)
            return
        tail.file.close()
        tail.file, self._spare, spare.used = file, spare, self.size

    def _hasten(self) -> None:
        """Have the disk write while more comes: what is left is waited for when it is sealed."""
        assert self._tail is not None
        size = self.size
        if size - self._hastened >= _HASTE_BYTES:
            self._tail.file.hasten(self._hastened, size - self._hastened)
            self._hastened = size

    def seal(self, checksum: int, schema: bytes = b"") -> SealedAttempt:
        """Make all of it durable, and give it the name of a sealed one. Raises StorageFull, LogBroken."""
        count = 0 if self._tail is None else self._tail.segment.end
        payload = json.dumps([*self.key, checksum], ensure_ascii=False).encode()
        self._write(
            Entry(END, 0, len(payload), count, count, 0, self._bytes, 0, 0, 0, 0, 0), [payload], schema
        )
        assert self._tail is not None
        tail, segment = self._tail, self._tail.segment
        path = self._folder / (file_name(self.key) + SEALED)
        try:
            tail.take_back()  # data of another attempt in a spare file, after its end
            tail.sync()
            self._check_free(path)
            # Only now: under this name all data is on the disk.
            self._files.rename(segment.path, path)
            segment.path = path
            self._files.sync_directory(self._folder)
        except OSError as error:
            raise broken(segment.path, 0, "sealing", error) from error
        self.close()
        segment.durable = segment.size
        return SealedAttempt(self.key, count, self._bytes, checksum, schema, segment)

    def _check_free(self, path: Path) -> None:
        """A rename would replace what another attempt has under the name. Raises OSError."""
        try:
            self._files.open(path).close()
        except FileNotFoundError:
            return
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    def discard(self) -> None:
        """Remove what there is of it, sealed or not."""
        self.close()
        if self._tail is not None:
            path = self._tail.segment.path
            try:
                self._files.unlink(path)
            except FileNotFoundError:
                pass  # the process that opened the folder since has removed it
            except OSError as error:
                log.warning("%s cannot be deleted (%s), and still takes up disk space", path, error)

    def close(self) -> None:
        """Give the descriptor back."""
        if self._tail is not None:
            self._tail.file.close()
        spare, self._spare = self._spare, None
        if spare is not None:
            self._spares.settle(spare)

    def abandon(self) -> None:
        """Close the descriptor and do nothing else: for a forked child, whose parent continues with the file."""
        if self._tail is not None:
            self._tail.file.close()

    def _write(self, entry: Entry, payload: Sequence[Buffer], schema: bytes, context: bytes = b"") -> None:
        writing = NewEntry(entry, payload, self._schemas.of(schema), self._contexts.of(context))
        try:
            try:
                self._opened().write([writing])
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                self._spares.clear()
                self._opened().write([writing])
        except OSError as error:
            if error.errno in NO_SPACE:
                raise no_space(self._folder, entry_bytes(entry.length), error) from error
            raise broken(self._folder / (file_name(self.key) + UNSEALED), 0, "writing", error) from error

    def _opened(self) -> Tail:
        header = pack_segment_header(0, content_name(self.key.stream.encode()))
        if self._tail is None:
            path = self._folder / (file_name(self.key) + UNSEALED)
            file = self._files.create(path)
            self._tail = Tail(file, Segment(path, 0, salt_of(header)), {}, synced=False)
        if self.size == SEGMENT_HEADER:  # nothing follows it, and it may not be there yet
            write_all(self._tail.file, [header], 0)
        return self._tail


def read_sealed(files: FileSystem, path: Path) -> SealedAttempt:
    """The attempt in ``path``, as far as the headers of its entries show. Raises LogDamaged, OSError."""
    file = files.open(path)
    try:
        return _read_sealed(file, path)
    finally:
        file.close()


def _read_sealed(file: File, path: Path) -> SealedAttempt:
    header, size = read_all(file, SEGMENT_HEADER, 0), file.size()
    if len(header) < SEGMENT_HEADER or header != pack_segment_header(0, header[16:32]):
        raise damaged(path, 0, "the header is not that of an attempt")
    segment = Segment(path, 0, salt_of(header))
    end: Entry | None = None
    for offset, entry in walk(file, segment.salt, SEGMENT_HEADER, size):
        if entry.kind != BLOB and entry.first != segment.end:
            raise damaged(path, offset, f"number {entry.first} was found where {segment.end} was expected")
        if entry.kind == END:
            end = entry
        segment.add(entry)
    if segment.size != size or end is None:
        raise damaged(
            path, segment.size, "the next entry is missing, although the attempt was sealed after it"
        )
    start = size - entry_bytes(end.length)
    payload = read_payload(file, start, end)
    if payload is None:
        raise damaged(path, start, "the seal does not match its checksum")
    *key, checksum = json.loads(bytes(payload))
    sealed = SealedAttempt(
        AttemptKey(*key), end.end, end.size, checksum, _read_schema(file, segment, end), segment
    )
    if (
        path.name != file_name(sealed.key) + SEALED
        or content_name(sealed.key.stream.encode()) != header[16:32]
    ):
        raise damaged(path, start, f"it contains attempt {sealed.key.attempt}, whose file has another name")
    segment.durable = size
    return sealed


def _read_schema(file: File, segment: Segment, end: Entry) -> bytes:
    if not end.schema:
        return b""
    blob = next(walk(file, segment.salt, end.schema, segment.size), None)
    payload = None if blob is None or blob[1].kind != BLOB else read_payload(file, *blob)
    if payload is None:
        raise damaged(segment.path, end.schema, "the schema does not match its checksum")
    return bytes(payload[NAME_BYTES:])
