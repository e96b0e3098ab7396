"""A database with at most two versions: opened at one, committed as the next."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import msgpack
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from nebuli.store.errors import (
    BlobDamaged,
    BlobMissing,
    Damaged,
    DatabaseClosed,
    Locked,
    StorageError,
    StoreClosed,
    VersionUnavailable,
)
from nebuli.store.ordering import Change
from nebuli.store.ordering.single_append import append_once

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from nebuli.store.blobs import Blobs
    from nebuli.store.ordering import Entry, Lock, Ordering
    from nebuli.store.store_threads import StoreThreads

Key = tuple[str, bytes]
"""A table, and a key in it."""


@dataclass(frozen=True, slots=True)
class Value:
    """The place of a value, an entry or a blob, and the size and checksum that it was written with."""

    size: int
    checksum: int
    inline: bytes | None
    blob: str | None

    def pack(self) -> list[Any]:
        """The value as it is in an entry."""
        return [self.size, self.checksum, self.inline, self.blob]


@dataclass(frozen=True, slots=True)
class Version:
    """The whole of a database at one moment."""

    number: int = 0
    step: int = 0
    values: Mapping[Key, Value] = field(default_factory=dict)

    @property
    def blobs(self) -> set[str]:
        """The names of all blobs that it needs."""
        return {each.blob for each in self.values.values() if each.blob is not None}

    def with_changes(self, step: int, put: Mapping[Key, Value], deleted: Sequence[Key]) -> Version:
        """The next version, with these changes."""
        values = {**self.values, **put}
        for key in deleted:
            values.pop(key, None)
        return replace(self, number=self.number + 1, step=step, values=values)

    def pack(self, id_: bytes) -> bytes:
        """The whole of it, as an entry; the id distinguishes it from that of another opener."""
        whole = {"id": id_, "version": self.number, "step": self.step, "values": _packed(self.values)}
        packed: bytes = msgpack.packb({"whole": whole})
        return packed


def packed_commit(id_: bytes, step: int, put: Mapping[Key, Value], deleted: Sequence[Key]) -> bytes:
    """Return the changes of a version as an entry; the id distinguishes it from an equal one."""
    commit = {"id": id_, "step": step, "put": _packed(put), "deleted": [list(key) for key in deleted]}
    packed: bytes = msgpack.packb({"commit": commit})
    return packed


def read(database: str, entries: Sequence[Entry]) -> list[Version]:
    """The versions that can be opened, one or two. Raises Damaged."""
    found = [Version()]
    try:
        for entry in entries:
            said = msgpack.unpackb(entry.data)
            if "whole" in said:
                whole = said["whole"]
                found = [Version(whole["version"], whole["step"], _values(whole["values"]))]
            else:
                commit = said["commit"]
                deleted = [(table, key) for table, key in commit["deleted"]]
                found = [found[0], found[0].with_changes(commit["step"], _values(commit["put"]), deleted)]
    except (ValueError, TypeError, KeyError, msgpack.exceptions.UnpackException) as error:
        raise Damaged(
            f"an entry of database {database} is malformed ({error!r}): restore the store's folder from a "
            f"copy"
        ) from error
    return found


def _packed(values: Mapping[Key, Value]) -> list[Any]:
    return [[*key, each.pack()] for key, each in values.items()]


def _values(packed: Sequence[Any]) -> dict[Key, Value]:
    return {(table, key): Value(*value) for table, key, value in packed}


INLINE_BYTES = 1 << 12
"""Values of no more bytes are in the entry itself."""


class StateStore:
    """A database of a store, by its name."""

    def __init__(self, name: str, ordering: Ordering, blobs: Blobs, work: StoreThreads) -> None:
        self.name = name
        self._key = f"state/{name}"
        self._ordering = ordering
        self._blobs = blobs
        self._work = work

    async def versions(self) -> range:
        """The versions that can be opened: one or two."""
        found, _ = await self._work.in_order(self._read)
        return range(found[0].number, found[-1].number + 1)

    async def steps(self) -> dict[int, int]:
        """The step of each version that can be opened, see `Database.get_step`."""
        found, _ = await self._work.in_order(self._read)
        return {each.number: each.step for each in found}

    async def open(self, version: int) -> Database:
        """Open it at a version, and forget the other one.

        Only one may have it open; its holder loses it with the end of the process. After a cancel it is not open.
        Raises VersionUnavailable, Locked.
        """
        opening = asyncio.ensure_future(self._work.in_order(self._open, version))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close)  # it runs to its end, and would have the lock forever
            raise

    def _read(self) -> tuple[list[Version], int]:
        """The versions, and the last entry's sequence. Blocking, in order."""
        entries = self._ordering.scan(self._key, 0)
        return read(self.name, entries), entries[-1].sequence if entries else 0

    def _open(self, version: int) -> Database:
        lock = self._ordering.lock(self._key)
        try:
            found, last = self._read()
            opened = next((each for each in found if each.number == version), None)
            if opened is None:
                raise VersionUnavailable(self.name, version, range(found[0].number, found[-1].number + 1))
            # Always: a former holder that has lost the lock unnoticed cannot commit after this any more.
            self._append(last, opened.pack(os.urandom(16)))
            last += 1
            self._ordering.truncate(self._key, last)
            unused = [name for name in self._blobs.names(self._key) if name not in opened.blobs]
            self._blobs.delete(self._key, unused)
        except BaseException:
            lock.close()
            raise
        return Database(self, opened, last, lock)

    def _append(self, last: int, data: bytes) -> None:
        """Append durably, once. Blocking, in order. Raises Locked if another process has appended all the same."""
        other = Locked(self._key, "a process that opened it later")
        append_once(self._ordering, Change(self._key, last, data), other)

    # -- what a database asks for

    async def keep(self, number: int, content: Any) -> Value:
        """A value that is durable, at the latest with the version that has it."""
        view = memoryview(content).cast("B")
        if len(view) <= INLINE_BYTES:
            return Value(len(view), xxh3_64_intdigest(view), bytes(view), None)
        blob = f"{number:016x}-{os.urandom(8).hex()}"
        checksum = await self._work.on_blobs(self._write, blob, view)
        return Value(len(view), checksum, None, blob)

    def _write(self, blob: str, view: memoryview[Any]) -> int:
        """Write a blob; its checksum. Blocking."""
        checksum = xxh3_64_intdigest(view)
        self._blobs.put(self._key, blob, [view])
        return checksum

    async def content(self, value: Value) -> pa.Buffer:
        """The bytes of a value. Raises BlobMissing, BlobDamaged."""
        if value.blob is None:
            return pa.py_buffer(value.inline or b"")
        return await self._work.on_blobs(self._content, value, value.blob)

    def _content(self, value: Value, blob: str) -> pa.Buffer:
        try:
            buffer = self._blobs.get(self._key, blob)
        except FileNotFoundError:
            raise BlobMissing(f"database {self.name}", blob, value.checksum) from None
        found = xxh3_64_intdigest(buffer)
        if found != value.checksum or buffer.size != value.size:
            raise BlobDamaged(f"database {self.name}", blob, value.checksum, found)
        return buffer

    async def drop(self, value: Value | None) -> None:
        """Delete the blob of a value that is of no version."""
        if value is not None and value.blob is not None:
            with suppress(StorageError):  # the next opener tries again
                await self._work.on_blobs(self._blobs.delete, self._key, [value.blob])

    async def commit(self, last: int, data: bytes, lock: Lock) -> None:
        """Commit durably, once; no other process gets the lock before it is known."""
        committing = asyncio.ensure_future(self._work.in_order(self._commit, last, data, lock))
        try:
            await asyncio.shield(committing)
        except asyncio.CancelledError:
            # Were it cancelled before it began, nothing would give the lock back: it comes to its end.
            committing.add_done_callback(_known)
            raise
        except StoreClosed:
            lock.close()
            raise

    def _commit(self, last: int, data: bytes, lock: Lock) -> None:
        try:
            self._append(last, data)
        finally:
            lock.close()


def _known(committing: asyncio.Future[None]) -> None:
    if not committing.cancelled():
        committing.exception()  # it is no longer waited for


def _close(opening: asyncio.Future[Database]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


class Database:
    """A database that is open at a version. Written data is in the next one, if it is committed.

    Methods raise DatabaseClosed after `commit` and `close`.
    """

    def __init__(self, store: StateStore, version: Version, last: int, lock: Lock) -> None:
        self._store = store
        self._version = version
        self._last = last
        self._lock: Lock | None = lock
        self._step = version.step
        self._put: dict[Key, Value] = {}
        self._deleted: dict[Key, None] = {}

    @property
    def version(self) -> int:
        """The version that it was opened at."""
        return self._version.number

    async def get(self, table: str, key: bytes) -> pa.Buffer | None:
        """The value, or None. Raises Damaged."""
        value = self._found((table, key))
        return None if value is None else await self._store.content(value)

    async def put(self, table: str, key: bytes, value: Any) -> None:
        """Set a value, anything that has bytes. After an error or a cancel the key has the value that it had."""
        self._check_open()
        kept = await self._store.keep(self.version + 1, value)
        if self._lock is None:
            await self._store.drop(kept)
            raise DatabaseClosed(self._store.name)
        replaced = self._put.get((table, key))
        self._put[table, key] = kept
        self._deleted.pop((table, key), None)
        await self._store.drop(replaced)

    async def delete(self, table: str, key: bytes) -> None:
        """Delete a key; it does not matter whether it was there."""
        self._check_open()
        self._deleted[table, key] = None
        await self._store.drop(self._put.pop((table, key), None))

    def keys(self, table: str) -> list[bytes]:
        """All keys of a table, in order."""
        self._check_open()
        return sorted(key for each, key in self._values() if each == table)

    async def tables(self) -> dict[str, dict[bytes, pa.Buffer]]:
        """All values by table and key, both in order; blobs are read side by side, on the store's threads for them.

        Nothing is put or deleted meanwhile. Raises Damaged.
        """
        self._check_open()
        values = sorted(self._values().items())
        reading = [asyncio.ensure_future(self._store.content(value)) for _, value in values]
        try:
            contents = await asyncio.gather(*reading)
        finally:  # after an error, or a cancel
            for each in reading:
                each.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
        found: dict[str, dict[bytes, pa.Buffer]] = {}
        for ((table, key), _), content in zip(values, contents, strict=True):
            found.setdefault(table, {})[key] = content
        return found

    def get_step(self) -> int:
        """The step that is to be applied next; 0 in a new database."""
        self._check_open()
        return self._step

    def set_step(self, step: int) -> None:
        """Set the step that the next version has."""
        self._check_open()
        self._step = step

    async def commit(self) -> None:
        """Make all of it the next version, durably, in addition to the opened one, and close.

        After Unclear, or a cancel, `StateStore.versions` shows if the next version is there; after any other error it
        is not. The version that was opened is.
        """
        self._check_open()
        data = packed_commit(os.urandom(16), self._step, self._put, list(self._deleted))
        lock, self._lock = self._lock, None
        if lock is not None:
            await self._store.commit(self._last, data, lock)

    def close(self) -> None:
        """Close without a new version; may be called again."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    def _found(self, key: Key) -> Value | None:
        self._check_open()
        if key in self._deleted:
            return None
        return self._put.get(key) or self._version.values.get(key)

    def _values(self) -> dict[Key, Value]:
        every = {**self._version.values, **self._put}
        return {key: value for key, value in every.items() if key not in self._deleted}

    def _check_open(self) -> None:
        if self._lock is None:
            raise DatabaseClosed(self._store.name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
