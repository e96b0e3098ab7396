"""`Staging`: rows that clients bring in pieces, durable and not visible, until all of them are pushed at once.

A piece is a blob, whose name describes it: its producer, number, time, size and checksum. So
nothing else has to be written, and a process that begins knows what the one before it had.

Dropped pieces are lost to readers at once, and deleted after that. Until it is deleted it counts, and failed deletions
are tried again: no call has to wait for that, or fails with it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xxhash import xxh3_64_intdigest, xxh3_128_hexdigest

from nebuli.store.errors import BlobDamaged, StagedLost, StagingFull, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    import pyarrow as pa

    from nebuli.store.blobs.blob_folder import BlobFolder

_log = logging.getLogger("nebuli.store")
KEPT_S = 6 * 3600.0
"""Pieces that are not pushed for so long are deleted at the next check: see `Staging.forget_old`."""
MOST_BYTES = 8 << 30
"""So much is staged at a member at most."""
_FAILURES = 3
"""After so many deletes that failed, which each may take long, the rest waits for the next time."""
_NAME = re.compile(
    r"([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{1,12})-([0-9a-f]{1,12})-([0-9a-f]{16})-[0-9a-f]{16}"
)


@dataclass(frozen=True, slots=True)
class _Piece:
    """The contents of a blob's name; ``owner`` stands for the producer."""

    owner: str
    number: int
    since: int
    size: int
    checksum: int


class Staging:
    """The pieces that are there for one log; closed by it."""

    def __init__(
        self,
        folder: BlobFolder,
        *,
        kept_s: float = KEPT_S,
        max_bytes: int = MOST_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._kept_s = kept_s
        self._max_bytes = max_bytes
        self._clock = clock
        self._pieces: dict[str, _Piece] = {}
        self._dropped: dict[str, int] = {}
        """Those that are to be deleted, with their sizes."""
        self._putting: dict[str, asyncio.Task[None]] = {}
        """They continue when the staging task is cancelled."""
        self._sweeping: asyncio.Task[None] | None = None
        self._cannot_delete = False
        self._closed = False
        self.bytes = 0
        """How much is staged, or on its way, or not deleted yet."""

    async def catch_up(self) -> None:
        """Learn what is there, and forget what is old, or nothing of ours."""
        for name in await self._folder.names():
            piece = _read(name)
            if piece is None:
                self._dropped.setdefault(name, 0)
            elif name not in self._pieces and name not in self._dropped:
                self._pieces[name] = piece
                self.bytes += piece.size
        self.forget_old()

    async def close(self) -> None:
        """Wait for what is on its way; what is not deleted yet, the next process deletes when it is old."""
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        if self._putting:
            await asyncio.wait([*self._putting.values()])

    async def stage(self, producer: str, number: int, rows: bytes) -> str:
        """Keep rows for a number of a producer, durably: the name of the piece, which is another one each time.

        Raises StagingFull; StagedLost if it was dropped on its way; StorageError. After a cancel it is kept, until it
        is dropped or old.
        """
        self.forget_old()
        if self.bytes + len(rows) > self._max_bytes and self._dropped:
            await self.swept()
        if self.bytes + len(rows) > self._max_bytes:
            raise StagingFull(self.bytes, self._max_bytes)
        checksum = xxh3_64_intdigest(rows)
        since, random = int(self._clock()), secrets.token_hex(8)
        name = f"{_owner(producer)}-{number:016x}-{since:x}-{len(rows):x}-{checksum:016x}-{random}"
        self._pieces[name] = _Piece(_owner(producer), number, since, len(rows), checksum)
        self.bytes += len(rows)
        putting = self._putting[name] = asyncio.create_task(self._put(name, rows))
        putting.add_done_callback(_heard)
        await asyncio.wait([putting])
        putting.result()
        return name

    async def _put(self, name: str, rows: bytes) -> None:
        try:
            await self._folder.put(name, [rows])
        except FileNotFoundError:  # deleted on its way
            self._drop([name])
        except BaseException:
            self._drop([name])  # it is there or not
            raise
        finally:
            del self._putting[name]
            self._sweep_soon()
        if name not in self._pieces:
            raise StagedLost(name)

    def size(self, producer: str, number: int, pieces: Sequence[str]) -> int:
        """How many bytes the pieces have together. Raises StagedLost for one that is not this number's."""
        if len(set(pieces)) != len(pieces):
            raise StagedLost(next(each for each in pieces if pieces.count(each) > 1))
        found = [(name, self._pieces.get(name)) for name in pieces]
        for name, piece in found:
            if piece is None or (piece.owner, piece.number) != (_owner(producer), number):
                raise StagedLost(name)
        return sum(piece.size for _, piece in found if piece is not None)

    async def read(self, name: str) -> pa.Buffer:
        """The rows of a piece. Raises StagedLost, BlobDamaged, StorageError."""
        piece = self._pieces.get(name)
        if piece is None:
            raise StagedLost(name)
        try:
            rows = await self._folder.get(name)
        except FileNotFoundError:
            self._drop([name])
            self._sweep_soon()
            raise StagedLost(name) from None
        found = xxh3_64_intdigest(rows)
        if found != piece.checksum or rows.size != piece.size:
            raise BlobDamaged("staged rows", name, piece.checksum, found)
        return rows

    def drop(self, producer: str, pieces: Iterable[str]) -> None:
        """Forget pieces of a producer; it does not matter whether they are there."""
        owner = _owner(producer)
        self._drop([name for name in pieces if name in self._pieces and self._pieces[name].owner == owner])
        self._sweep_soon()

    def drop_up_to(self, producer: str, number: int) -> None:
        """Forget all that is staged for a number of a producer, or for one before it."""
        owner = _owner(producer)
        self._drop(
            [name for name, each in self._pieces.items() if each.owner == owner and each.number <= number]
        )
        self._sweep_soon()

    def forget_old(self) -> None:
        """Delete pieces that are not pushed for too long, and retry failed deletions."""
        before = self._clock() - self._kept_s
        self._drop([name for name, each in self._pieces.items() if each.since < before])
        self._sweep_soon()

    def _drop(self, names: Iterable[str]) -> None:
        for name in names:
            piece = self._pieces.pop(name, None)
            if piece is not None:
                self._dropped[name] = piece.size

    # -- deleting

    async def swept(self) -> None:
        """Wait until what is dropped by now is deleted, or could not be."""
        if self._sweeping is not None:
            await asyncio.wait([self._sweeping])

    def _sweep_soon(self) -> None:
        if not self._closed and self._sweeping is None and self._first_to_delete() is not None:
            self._sweeping = asyncio.create_task(self._sweep())

    def _first_to_delete(self, failed: Collection[str] = ()) -> str | None:
        """A piece that is being written is deleted once it is there, or it would appear after that."""
        return next(
            (name for name in self._dropped if name not in self._putting and name not in failed), None
        )

    async def _sweep(self) -> None:
        """Delete what is dropped, also meanwhile, until too much fails."""
        failed: set[str] = set()
        try:
            while len(failed) < _FAILURES and (name := self._first_to_delete(failed)) is not None:
                try:
                    await self._folder.delete([name])
                except StorageError as error:
                    if not self._cannot_delete:
                        _log.warning("unused staged rows cannot be deleted yet: %s", error)
                    self._cannot_delete = True
                    failed.add(name)
                    self._dropped[name] = self._dropped.pop(name)  # after the others, also the next time
                else:
                    self.bytes -= self._dropped.pop(name)
        finally:
            self._sweeping = None
        self._cannot_delete = bool(failed)


def _heard(putting: asyncio.Task[None]) -> None:
    """Take note of how it ended: the caller may have been cancelled."""
    if not putting.cancelled():
        putting.exception()


def _owner(producer: str) -> str:
    return xxh3_128_hexdigest(producer.encode())


def _read(name: str) -> _Piece | None:
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    owner, *numbers = found.groups()
    return _Piece(owner, *(int(each, 16) for each in numbers))
