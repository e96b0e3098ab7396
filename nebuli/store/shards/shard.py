"""A shard: a durable history of Z-sets over times, with distinguishable times from ``since`` up to ``upper``."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from nebuli.store.errors import FINISHED, SchemaMismatch, SinceMismatch, StorageError
from nebuli.store.shards.access import NewPart
from nebuli.store.shards.accumulation import Piece, each_once, none_taken_back
from nebuli.store.shards.shard_state import Hold, SetHolds
from netchannel.resumable import Resumable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    import pyarrow as pa

    from nebuli.store.shards.access import ShardAccess
    from nebuli.store.shards.ledger import ShardTracker
    from nebuli.store.shards.payloads import Update
    from nebuli.store.shards.shard_state import Part, ShardState

DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True)
class Span:
    """All updates from time ``lower`` up to but not including ``upper``, in the order of times."""

    lower: int
    upper: int
    updates: Sequence[Update]


class Shard:
    """Opened by a `Store`, and as long of use as that is entered."""

    def __init__(self, tracked: ShardTracker, access: ShardAccess) -> None:
        self._tracked = tracked
        self._access = access

    @property
    def tracked(self) -> ShardTracker:
        """The shard as its process follows it."""
        return self._tracked

    @property
    def name(self) -> str:
        """The name by which the store knows it."""
        return self._tracked.name

    @property
    def schema(self) -> pa.Schema:
        """The schema of its Z-sets; fixed."""
        return self._tracked.state.schema

    @property
    def since(self) -> int:
        """The lowest time that it can be read at, as far as is known here: see `refresh`."""
        return self._tracked.state.since

    @property
    def upper(self) -> int:
        """Return the next time to append at, as far as is known here; `FINISHED` once there is none."""
        return self._tracked.state.upper

    @property
    def holds(self) -> Mapping[str, Hold]:
        """The holds of current readers, with their times, as far as is known here."""
        return self._tracked.state.held

    @property
    def stored(self) -> Sequence[tuple[int, int]]:
        """Return its stored pieces: the first time and the bytes of each; as far as is known here."""
        state = self._tracked.state
        return [(each.lower, each.size) for each in state.parts if state.alive(each)]

    async def refresh(self) -> None:
        """Learn what other processes have done by now."""
        await self._access.refreshed(self._tracked)

    # -- writing

    async def compare_and_append(
        self,
        updates: Sequence[Update],
        expected_upper: int,
        new_upper: int,
        *,
        append_id: bytes | None = None,
    ) -> None:
        """Append updates at times from ``expected_upper`` up to but not including ``new_upper``; durable at return.

        If several expect the same upper, one wins; the others get UpperMismatch. After Unclear or a cancel it has
        happened or not: repeated with the same ``append_id`` it happens once. Raises SchemaMismatch.
        """
        await self._access.append([self.part(updates, expected_upper, new_upper)], append_id)

    async def finish(self, expected_upper: int) -> None:
        """End it: nothing can be appended ever again. Raises UpperMismatch."""
        await self.compare_and_append([], expected_upper, FINISHED)

    def part(
        self,
        updates: Sequence[Update],
        expected_upper: int,
        new_upper: int,
        holds: Mapping[str, int] | None = None,
    ) -> NewPart:
        """The append, checked. Raises SchemaMismatch."""
        if not 0 <= expected_upper < new_upper <= FINISHED:
            raise StorageError(
                f"cannot append to shard {self.name} with an upper of {expected_upper} before and {new_upper} after: "
                f"the upper must increase, from 0 to at most {FINISHED}"
            )
        for at, rows in updates:
            if not expected_upper <= at < new_upper:
                raise StorageError(
                    f"an update of shard {self.name} is at time {at}, but has to be from "
                    f"{expected_upper} up to {new_upper - 1}: give the update the time at which it happens"
                )
            if not rows.schema.equals(self.schema):
                raise SchemaMismatch(self.name, self.schema, rows.schema)
        some = sorted((each for each in updates if each[1].num_rows), key=lambda each: each[0])
        return NewPart(self._tracked, some, expected_upper, new_upper, holds or {})

    # -- reading

    async def snapshot(self, as_of: int, *, deadline_s: float | None = DEADLINE_S) -> pa.Table:
        """The contents at a time: a Z-set with every row once.

        Waits until the time is written. Raises SinceMismatch, NotYet, Damaged.
        """
        await self._access.reach(self._tracked, as_of, deadline_s)
        return await self.contents(as_of)

    async def contents(self, as_of: int) -> pa.Table:
        """The same, of what is known here to be written by now. Raises SinceMismatch, Damaged."""
        return await self._added_up(as_of, each_once)

    async def contents_as_written(self, as_of: int) -> pa.Table:
        """The same Z-set, where a row that was written several times may stand as often.

        So such a row need not be compared, unless it was retracted.
        """
        return await self._added_up(as_of, none_taken_back)

    async def _added_up(
        self, as_of: int, add_up: Callable[[Sequence[Piece], pa.Schema], pa.Table]
    ) -> pa.Table:
        def select(state: ShardState) -> list[Part]:
            if as_of < state.since or (state.since and not state.keeps_contents):
                raise SinceMismatch(self.name, as_of, state.since)
            return state.overlapping(0, as_of + 1)

        found = await self._access.read(self._tracked, select)
        # Several may be consolidated, each on its own.
        whole = max(
            (part for part, _ in found if part.consolidated), key=lambda part: part.rows, default=None
        )
        pieces = [
            Piece(rows, part is whole)
            for part, runs in found
            for each in runs
            if (rows := each.between(0, as_of + 1)).num_rows
        ]
        return await self._access.work.on_blobs(add_up, pieces, self.schema)

    async def written(self, at: int, *, deadline_s: float | None = DEADLINE_S) -> None:
        """Wait until the upper is above a time. Raises NotYet."""
        await self._access.reach(self._tracked, at, deadline_s)

    async def read(self, first: int, until: int) -> list[Update]:
        """The updates at times from ``first`` up to but not including ``until``, all of which are written.

        Raises SinceMismatch, NotYet, Damaged.
        """
        if until > self.upper:
            await self._access.reach(self._tracked, until - 1, 0.0)
        return await self.between(first, until)

    async def between(self, first: int, until: int) -> list[Update]:
        """The same, of what is known here to be written by now. Raises SinceMismatch, Damaged."""
        found = await self._access.read(self._tracked, lambda state: self._apart(state, first, until))
        return [update for _, runs in found for each in runs for update in each.updates(first, until)]

    def end_of_some(self, first: int, until: int, rows: int) -> int:
        """A time above ``first``, at most ``until``, up to which there are no more than so many rows, if it can be."""
        end, found = until, 0
        for part in self._tracked.state.overlapping(first, until):
            if found and found + part.rows > rows:
                break
            end, found = min(part.upper, until), found + part.rows
        else:
            return until
        return end

    def listen(self, first: int) -> AsyncGenerator[Span]:
        """All that changes from time ``first`` on, until the shard is finished; a snapshot at the time before lacks it.

        The first begins at ``first``, each of the others where the one before ended. Wants a hold below ``first``.
        A call of the iterator that is cancelled takes none: the next call gives it. Raises SinceMismatch if there was
        none, and the since has come too far; Damaged; StoreClosed.
        """
        return Resumable(self._listen(first))

    async def _listen(self, first: int) -> AsyncGenerator[Sequence[Span], None]:
        at = first
        while at < FINISHED:
            await self._access.reach(self._tracked, at, None)
            upper = self.upper
            found = await self._access.read(self._tracked, partial(self._first_apart, first=at, until=upper))
            end = found[0][0].upper if found else upper
            yield [
                Span(at, end, [each for _, runs in found for run in runs for each in run.updates(at, end)])
            ]
            at = end

    def _apart(self, state: ShardState, first: int, until: int) -> list[Part]:
        """Return the parts with these times, if they can be distinguished from lower ones."""
        lowest = state.since + 1 if state.keeps_contents and state.since else state.since
        if first < lowest:
            raise SinceMismatch(self.name, first, lowest)
        return state.overlapping(first, until)

    def _first_apart(self, state: ShardState, first: int, until: int) -> list[Part]:
        return self._apart(state, first, until)[:1]

    # -- holds

    async def hold(self, name: str, at: int, *, lease_s: float | None = None) -> None:
        """Keep the shard readable at time ``at``, or move the hold there; for so long, if that is given.

        The since is the lowest hold's time, once there is one, and never goes back. Raises SinceMismatch.
        """
        expires = None if lease_s is None else time.time() + lease_s
        await self._access.change([SetHolds(self.name, {name: Hold(at, expires)})])

    async def release(self, name: str) -> None:
        """The hold is not needed any more; it does not matter whether it was there."""
        await self._access.change([SetHolds(self.name, {}, [name])])

    async def compact(self, *, full: bool = False) -> bool:
        """Make fewer and consolidated rows below the since, and delete what is not used any more.

        Also happens automatically. ``full``: merge all of it. Returns true if this call did it: another process
        may have been first.
        """
        return await self._access.compact(self._tracked, full=full)

    def compact_soon(self) -> None:
        """Begin to compact, if much of the disk space is of no use any more; it is not waited for."""
        self._access.compact_if_dead(self._tracked)
