"""Pushes in pieces: many clients each stage some, and one has all of it logged at once."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.dataflow.zset import added
from nebuli.steps.member.calls import call_messages as ask
from nebuli.store.errors import SequencePassed, StagedLost, StagingFull, StorageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from nebuli.steps.member.member import Member

MOST_BYTES = 1 << 30
"""The bound on one push: all of it is in memory when it is logged, and when its step is made."""
_AT_ONCE = 4
"""So many pieces are read at once."""


class StagedPushes:
    """Answers for the log of one member; ``room`` waits until that takes more rows for an input.

    Waiting pushes are not in memory but in the store, and not read before their turn: one push at a time.
    """

    def __init__(
        self,
        member: Member,
        room: Callable[[str, float], Awaitable[ask.Full | None]],
    ) -> None:
        self._member = member
        self._room = room
        self._turns = {handle: asyncio.Lock() for handle in member.log.schemas}
        """A push that waits for room is the only one of its input: later ones then find how much there is."""
        self._reading = asyncio.Lock()

    async def answered(self, asked: ask.Stage | ask.PushStaged | ask.DropStaged) -> ask.Answer:
        """The answer, also where the store could not do it."""
        try:
            match asked:
                case ask.Stage():
                    return await self._stage(asked)
                case ask.PushStaged():
                    return await self._push(asked)
                case ask.DropStaged(handle, producer, pieces):
                    self._member.log.staging.drop(ask.log_name(handle, producer), pieces)
        except StagingFull as error:
            return ask.Crowded(error.staged_bytes, error.max_bytes)
        except StorageError as error:
            return ask.CouldNot(str(error))
        return ask.Noted()

    async def _stage(self, asked: ask.Stage) -> ask.Answer:
        log, name = self._member.log, ask.log_name(asked.handle, asked.producer)
        passed = await self._passed(name, asked.sequence)
        if passed is not None:
            return passed
        try:
            return ask.Staged(await log.staging.stage(name, asked.sequence, asked.rows))
        except (
            StagedLost
        ) as error:  # dropped on its way: by a push of its number, or a later one, or as it was old
            return await self._passed(name, asked.sequence) or ask.Lost(error.piece)

    async def _passed(self, name: str, number: int) -> ask.Passed | None:
        """True if a number, or one after it, is logged.

        Not before it is durable: a client that learns of it stages nothing, and if it failed, half of the rows were
        staged.
        """
        log = self._member.log
        try:
            return ask.Passed(log.next_sequence(name)) if await log.has_logged(name, number) else None
        except SequencePassed as error:
            return ask.Passed(error.expected)

    async def _push(self, asked: ask.PushStaged) -> ask.Answer:
        """Once it is logged, all that was staged for it is forgotten: also what attempts have left that lost.

        A push logged before is known by its number alone: its pieces are gone.
        """
        log, name, number = self._member.log, ask.log_name(asked.handle, asked.producer), asked.sequence
        earliest = log.last
        try:
            if not await log.has_logged(name, number):
                refusal = await self._log(asked, name)
                if refusal is not None:
                    return refusal
        except SequencePassed as error:
            return ask.Passed(error.expected)
        log.staging.drop_up_to(name, number)
        return ask.Logged(earliest)

    async def _log(self, asked: ask.PushStaged, name: str) -> ask.Answer | None:
        """Log what is staged: why not, if it is not logged now. Raises SequencePassed, StorageError."""
        log, number = self._member.log, asked.sequence
        if asked.handle not in log.schemas:
            return ask.CouldNot(
                f"there is no input {asked.handle!r} here: the inputs are {', '.join(log.schemas)}"
            )
        try:
            size = log.staging.size(name, number, asked.pieces)
            if size > MOST_BYTES:
                return ask.TooLarge(size, MOST_BYTES)
            async with self._turn(asked) as refusal:
                return refusal or await self._read_and_log(asked, name)
        except StagedLost as error:
            # Asked twice, the other one may have logged it meanwhile, and all pieces are forgotten then.
            return None if await log.has_logged(name, number) else ask.Lost(error.piece)

    @asynccontextmanager
    async def _turn(self, asked: ask.PushStaged) -> AsyncIterator[ask.Full | None]:
        """Wait until it may be read; why not, if it may not in time."""
        loop, turn = asyncio.get_running_loop(), self._turns[asked.handle]
        until = loop.time() + asked.within_s
        try:
            async with asyncio.timeout(asked.within_s):
                await turn.acquire()
        except TimeoutError:
            yield ask.Full(self._member.waiting_rows)
            return
        try:
            refusal = await self._room(asked.handle, max(until - loop.time(), 0.0))
            async with self._reading:
                yield refusal
        finally:
            turn.release()

    async def _read_and_log(self, asked: ask.PushStaged, name: str) -> ask.CouldNot | None:
        log, number = self._member.log, asked.sequence
        try:
            rows = await self._rows(asked)
        except (ValueError, OSError) as error:
            return ask.CouldNot(f"staged rows cannot be read: {error}")
        is_new = number >= log.next_sequence(name)
        await log.push_later(asked.handle, rows, producer=name, number=number)
        if is_new and rows.num_rows:
            self._member.arrived(rows.num_rows)
        return None

    async def _rows(self, asked: ask.PushStaged) -> pa.RecordBatch:
        """All rows, in the order of the pieces. Raises ValueError, OSError, StorageError."""
        log = self._member.log
        schema = log.schemas[asked.handle]
        batches = []
        for some in (asked.pieces[at : at + _AT_ONCE] for at in range(0, len(asked.pieces), _AT_ONCE)):
            for piece in await asyncio.gather(*map(log.staging.read, some)):
                batch = pa.ipc.read_record_batch(piece, schema)
                batch.validate()
                batches.append(batch)
        return added(batches, schema)
