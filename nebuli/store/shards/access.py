"""Access to a store's shards: what is known of them, appends, reads, and compaction.

`Waking` wakes all that wait for changes of a store, when any process has appended something. At the end of the module
are the choice of a shard's parts that are worth being one, and making it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from nebuli.store.errors import ShardUnknown, StorageError, Unclear
from nebuli.store.store_threads import StoreThreads

from . import payloads
from .ledger import Ledger, ShardTracker, key_of
from .shard_state import AppendPart, Compact, Fenced, Superseded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    import pyarrow as pa

    from nebuli.store.blobs import Blobs
    from nebuli.store.ordering import Bell, Ordering

    from .payloads import Runs, Update
    from .shard_state import Decision, Part, Payload, ShardState


_FALLBACK_S = 1.0
"""A process that is killed between an append and the bell is noticed by the others after as long."""
ENTRIES = 256
"""Entries after which a shard is compacted, by the client that appended the last of them."""
_RATIO = 2
"""A part is left as it is if it is more than so many times as large as all that came after it."""
LARGE_BYTES = 1 << 26
"""Parts of a log are not merged to more bytes: nothing would become smaller, and a reader of one reads all of it."""
_DEAD_BYTES = 1 << 24
"""Bytes of no use that are worth a compaction before it is due."""
_LOOSE_BYTES = 1 << 16
"""Bytes below the since that may be of no use, and are left as they are."""


class Waking:
    """Calls ``look`` whenever the bell has rung, once a task has waited. Closed by the store."""

    def __init__(self, bell: Callable[[], Bell], look: Callable[[], Awaitable[None]]) -> None:
        self._make_bell = bell
        self._look = look
        self._rung = asyncio.Event()
        self._bell: Bell | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin, as a task waits. Raises StoreUnusable."""
        if self._bell is None:
            self._bell = self._make_bell()
            loop = asyncio.get_running_loop()
            loop.add_reader(self._bell.fileno(), self._heard)
            self._task = loop.create_task(self._watch())

    def _heard(self) -> None:
        if self._bell is not None:
            self._bell.silence()
        self._rung.set()

    async def _watch(self) -> None:
        while True:
            with suppress(
                StorageError
            ):  # waiting tasks wait until their deadlines: the next look may find more
                await self._look()
            with suppress(TimeoutError):  # not by wait_for, which may lose a cancel
                async with asyncio.timeout(_FALLBACK_S):
                    await self._rung.wait()
            self._rung.clear()

    async def close(self) -> None:
        """Wake no task any more."""
        bell, self._bell = self._bell, None
        if bell is not None and self._task is not None:
            asyncio.get_running_loop().remove_reader(bell.fileno())
            bell.close()
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


_log = logging.getLogger("nebuli.store")


@dataclass(frozen=True, slots=True)
class NewPart:
    """Data to append to a shard: updates in the order of their times, none without rows.

    Or, if that is given, the ``payload`` that was stored before; the code that has stored it drops it.
    """

    shard: ShardTracker
    updates: Sequence[Update]
    lower: int
    upper: int
    holds: Mapping[str, int] = field(default_factory=dict)
    payload: Payload | None = None


class ShardAccess:
    """Made on the event loop that all its methods are called on. Closed by the store."""

    def __init__(self, ordering: Ordering, blobs: Blobs) -> None:
        loop = asyncio.get_running_loop()
        self.blobs = blobs
        self.work = StoreThreads()
        self._ordering = ordering
        self._ledger = Ledger(ordering, partial(_tell, loop, self._changed))
        self._waking = Waking(ordering.bell, self._look)
        self._tracked: dict[str, ShardTracker] = {}
        self._compacting: dict[str, asyncio.Task[None]] = {}
        self._last_read: dict[str, tuple[Part, list[Runs]]] = {}

    async def open(self) -> None:
        """Open the store. Raises StoreUnusable, StoreFull."""
        try:
            await self.work.in_order(self._ordering.open)
        except BaseException:
            await self.work.close(self._ordering.close)
            raise

    async def close(self) -> None:
        """Close, once running calls have ended; waiting ones get StoreClosed."""
        self._ordering.hurry()
        await self._waking.close()
        for task in self._compacting.values():
            task.cancel()
        await asyncio.gather(*self._compacting.values(), return_exceptions=True)
        await self.work.close(self._ordering.close)
        for each in self._tracked.values():
            each.close()

    # -- what is known

    async def names(self) -> list[str]:
        """The names of all shards."""
        return await self.work.in_order(self._ledger.names)

    async def track(self, name: str) -> ShardTracker:
        """The shard as it is followed here. Raises ShardUnknown."""
        return self._followed(name, await self.work.in_order(self._ledger.known, name))

    async def track_all(self, names: Sequence[str]) -> list[ShardTracker]:
        """The same of several, of which what is not there is left out."""
        states = await self.work.in_order(self._ledger.all_known, names)
        return [self._followed(name, states[name]) for name in names if name in states]

    def _followed(self, name: str, state: ShardState) -> ShardTracker:
        tracked = self._tracked.setdefault(name, ShardTracker(name, state))
        _bring_up_to(tracked, state)
        return tracked

    async def refresh(self, shards: Sequence[ShardTracker]) -> None:
        """Bring some up to date, as they are at one moment or later."""
        states = await self.work.in_order(self._ledger.all_known, [each.name for each in shards])
        for each in shards:
            if each.name in states:
                _bring_up_to(each, states[each.name])

    async def known_behind(
        self, first: ShardTracker, others: Sequence[ShardTracker]
    ) -> tuple[ShardState, list[ShardState]]:
        """Return the state of one, and after it those of others, which are of that moment or later.

        Raises ShardUnknown.
        """
        names = [each.name for each in others]
        known, states = await self.work.in_order(self._ledger.known_behind, first.name, names)
        for tracked, state in zip([first, *others], [known, *states], strict=True):
            _bring_up_to(tracked, state)
        return known, states

    async def refreshed(self, shard: ShardTracker) -> ShardState:
        """The state that the ordering has now, which may be a newer one than that of the shard."""
        return await self.work.in_order(self._ledger.known, shard.name)

    async def reach(self, shard: ShardTracker, time: int, deadline_s: float | None) -> None:
        """Wait until the shard's upper is above ``time``. Raises NotYet."""
        with shard.awaited():
            if shard.state.upper <= time:
                self._waking.begin()
                await self.refreshed(shard)
            await shard.reach(time, deadline_s)

    async def _look(self) -> None:
        awaited = [name for name, each in self._tracked.items() if each.is_awaited]
        if awaited:
            await self.work.in_order(self._ledger.refresh_if_changed, awaited)

    def _changed(self, name: str, state: ShardState) -> None:
        if name in self._tracked:
            self._tracked[name].changed(state)

    # -- writing

    async def change(self, decisions: Sequence[Decision]) -> None:
        """Make all of them, or raise what one of them raises and make none."""
        await self.work.in_order(self._ledger.change, decisions)

    async def append(
        self,
        parts: Sequence[NewPart],
        append_id: bytes | None,
        also: Sequence[Decision] = (),
        *,
        is_first: bool = False,
    ) -> None:
        """Append to all of the shards, and make what else is decided of others; or none of it.

        ``is_first``: nothing was tried by this id before. Raises Fenced if a given payload has to be stored again.
        """
        id_ = append_id or os.urandom(16)
        may_have_happened = append_id is not None and not is_first
        while not await self._appended(parts, id_, also, may_have_happened=may_have_happened):
            await self.refresh([each.shard for each in parts])
        for each in parts:
            self.compact_if_due(each.shard)

    async def _appended(
        self, parts: Sequence[NewPart], id_: bytes, also: Sequence[Decision], *, may_have_happened: bool
    ) -> bool:
        """True if it was appended, and need not be done again with other blobs."""
        kept: list[Payload | None] = []
        try:
            for each in parts:
                kept.append(await self._kept(each))  # noqa: PERF401 - what was kept is dropped if the next fails
            await self.change(
                [
                    AppendPart(
                        each.shard.name, id_, each.lower, each.upper, payload, each.holds, may_have_happened
                    )
                    for each, payload in zip(parts, kept, strict=True)
                ]
                + list(also)
            )
        except Fenced:
            await self._drop_unused(parts, kept)
            if any(each.payload is not None for each in parts):
                raise
            return False
        except Unclear as error:
            raise Unclear("the append", error, id_) from error
        except StorageError:
            await self._drop_unused(parts, kept)
            raise
        await self._drop_unused(parts, kept)  # of an append that had happened before, with other blobs
        return True

    async def _kept(self, part: NewPart) -> Payload | None:
        if part.payload is not None or not part.updates:
            return part.payload
        state = part.shard.state
        if sum(rows.nbytes for _, rows in part.updates) <= payloads.INLINE_BYTES:
            # At once: to wake another thread, and be woken by it, takes longer.
            payload = payloads.inlined(state.schema, part.updates)
            if payload is not None:
                return payload
        return await self.work.on_blobs(payloads.kept, self.blobs, part.shard.name, state, part.updates)

    async def _drop_unused(self, parts: Sequence[NewPart], kept: Sequence[Payload | None]) -> None:
        for each, payload in zip(parts, kept, strict=False):
            if payload is not None and each.payload is None and not _is_used(each.shard.state, payload):
                await self.work.on_blobs(payloads.drop, self.blobs, each.shard.name, payload)

    async def keep(self, shard: ShardTracker, rows: pa.RecordBatch) -> Payload:
        """Rows, kept so that they can be appended at any one time. Raises Fenced."""
        return await self.work.on_blobs(payloads.kept, self.blobs, shard.name, shard.state, [(0, rows)])

    async def drop_payload(self, shard: ShardTracker, payload: Payload) -> None:
        """Delete what was kept, if it is of no part."""
        if not await self._is_used_now(shard, payload):
            await self.work.on_blobs(payloads.drop, self.blobs, shard.name, payload)

    async def delete_dropped(self, names: Sequence[str]) -> None:
        """Delete what is left of shards that were dropped; killed in the middle, it can be done again."""
        for name in names:
            await self.work.in_order(self._ledger.truncate, name)
            # Waiting tasks are notified by now.
            self._tracked.pop(name, None)
            self._last_read.pop(name, None)
            blobs = await self.work.on_blobs(self.blobs.names, key_of(name))
            await self.work.on_blobs(self.blobs.delete, key_of(name), blobs)

    # -- reading

    async def read(
        self, shard: ShardTracker, select: Callable[[ShardState], Sequence[Part]]
    ) -> list[tuple[Part, list[Runs]]]:
        """The parts that are selected of the shard's state, or of a newer one.

        Raises what ``select`` does; ShardUnknown, Damaged.
        """
        state = shard.state
        while True:
            if state.dropped:  # which has no parts, and is not empty
                raise ShardUnknown(shard.name)
            parts = select(state)
            try:
                return [(part, await self._runs(shard.name, state, part)) for part in parts]
            except payloads.BlobGone:
                older, state = state, await self.refreshed(shard)
                if state.sequence == older.sequence:
                    raise self._missing(shard.name, parts) from None

    async def _runs(self, name: str, state: ShardState, part: Part) -> list[Runs]:
        if part.inline is not None:
            return payloads.read(self.blobs, name, state.schema, part)
        last = self._last_read.get(name)
        if last is not None and last[0].blob == part.blob:  # a log is read step by step
            return last[1]
        runs = await self.work.on_blobs(payloads.read, self.blobs, name, state.schema, part)
        if part.size <= LARGE_BYTES and not state.keeps_contents:
            self._last_read[name] = part, runs
        return runs

    # -- compaction

    def compact_if_due(self, shard: ShardTracker) -> None:
        """Begin to compact, if the log is long enough."""
        if _is_due(shard.state):
            self._begin_compacting(shard)

    def compact_if_dead(self, shard: ShardTracker) -> None:
        """Begin to compact, if that frees much of the disk."""
        if _is_dead(shard.state):
            self._begin_compacting(shard)

    def _begin_compacting(self, shard: ShardTracker) -> None:
        if shard.name not in self._compacting:
            task = asyncio.get_running_loop().create_task(self._compact_quietly(shard))
            self._compacting[shard.name] = task
            task.add_done_callback(lambda _: self._compacting.pop(shard.name))

    async def _compact_quietly(self, shard: ShardTracker) -> None:
        due = shard.state.upper
        try:
            while await self.compact(shard, full=False) and is_left(await self.refreshed(shard), due):
                pass
        except ShardUnknown:
            pass  # it was dropped: nothing is left to be compacted
        except StorageError as error:
            _log.warning("the compaction of shard %s failed, and is retried later: %s", shard.name, error)

    async def compact_overdue(self, shards: Sequence[ShardTracker]) -> None:
        """Compact those whose log is long, and return when it is done."""
        await self.refresh(shards)
        for each in shards:
            if _is_overdue(each.state):
                self._begin_compacting(each)
        begun = [self._compacting[each.name] for each in shards if each.name in self._compacting]
        await asyncio.gather(*begun, return_exceptions=True)

    async def compact_settled(self, shard: ShardTracker) -> None:
        """Merge the parts below the since, if that is of use. Raises ShardUnknown."""
        state = await self.refreshed(shard)
        if parts := _settled(state):
            await self._compact(shard, state, parts)

    async def compact(self, shard: ShardTracker, *, full: bool) -> bool:
        """Make fewer parts and a short log; whether it was this compaction that did it.

        If it is killed at any point, nothing is lost, and the next one deletes its remains.
        """
        state = await self.refreshed(shard)
        return await self._compact(shard, state, plan(state, full=full))

    async def _compact(self, shard: ShardTracker, state: ShardState, parts: Sequence[Part]) -> bool:
        if not await self._replaced(shard, state, parts):
            return False
        await self.work.in_order(self._ledger.truncate, shard.name)
        names = await self.work.on_blobs(self.blobs.names, key_of(shard.name))
        state = await self.refreshed(shard)
        await self.work.on_blobs(payloads.sweep, self.blobs, shard.name, names, state, parts)
        return True

    async def _replaced(self, shard: ShardTracker, state: ShardState, parts: Sequence[Part]) -> bool:
        try:
            payload = await self.work.on_blobs(self._merged, shard.name, state, parts)
        except Fenced:
            return False  # another compaction was first
        except payloads.BlobGone:
            if {each.number for each in parts} <= {
                each.number for each in (await self.refreshed(shard)).parts
            }:
                raise self._missing(shard.name, parts) from None
            return False  # another compaction was first
        try:
            await self.change([Compact(shard.name, state.sequence, [each.number for each in parts], payload)])
        except Superseded:
            if payload is not None and payload.blob and await self._is_used_now(shard, payload):
                return True  # it had happened, and could not report it
            await self.work.on_blobs(payloads.drop, self.blobs, shard.name, payload)
            return False
        except Unclear:
            raise
        except StorageError:
            await self.work.on_blobs(payloads.drop, self.blobs, shard.name, payload)
            raise
        return True

    async def _is_used_now(self, shard: ShardTracker, payload: Payload) -> bool:
        try:
            return _is_used(await self.refreshed(shard), payload)
        except ShardUnknown:  # it was dropped: no other process deletes blobs that were stored after that
            return payload.blob is None

    def _merged(self, name: str, state: ShardState, parts: Sequence[Part]) -> Payload | None:
        """The parts as one. Blocking."""
        runs = [each for part in parts for each in payloads.read(self.blobs, name, state.schema, part)]
        updates, consolidated = _compacted(runs, state)
        if not updates:
            return None
        return payloads.kept(self.blobs, name, state, updates, consolidated=consolidated)

    def _missing(self, name: str, parts: Sequence[Part]) -> StorageError:
        there = set(self.blobs.names(key_of(name)))
        part = next((each for each in parts if each.blob is not None and each.blob not in there), parts[0])
        return payloads.missing(name, part)


def _bring_up_to(tracked: ShardTracker, state: ShardState) -> None:
    """Have it know this state: updates of a shard before it was followed here are not repeated."""
    if tracked.state.sequence < state.sequence:
        tracked.changed(state)


def _is_used(state: ShardState, payload: Payload) -> bool:
    return payload.blob is None or any(each.blob == payload.blob for each in state.parts)


def _tell(
    loop: asyncio.AbstractEventLoop, changed: Callable[[str, ShardState], None], name: str, state: ShardState
) -> None:
    """Notify the loop of a state, from another thread."""
    loop.call_soon_threadsafe(changed, name, state)


# -- the parts to merge


def _is_due(state: ShardState) -> bool:
    """True if the shard's log is long enough; where compaction fails, it is tried again as much later."""
    entries = state.sequence - state.compacted
    return entries > 0 and entries % ENTRIES == 0


def _is_overdue(state: ShardState) -> bool:
    """True if it was due, and the client that appended then has not done it, as it had ended, for instance."""
    return state.sequence - state.compacted >= ENTRIES


def _is_dead(state: ShardState) -> bool:
    """True if much is of no use any more, and still there; or may be, where rows are not added up yet."""
    if state.keeps_contents:
        whole = sum(each.size for each in state.parts if each.consolidated)
        return sum(each.size for each in state.parts) >= 2 * whole + _DEAD_BYTES
    return sum(each.size for each in state.parts if not state.alive(each)) >= _DEAD_BYTES


def plan(state: ShardState, *, full: bool) -> Sequence[Part]:
    """Return the parts to merge, in their order: the newest, up to one that is much larger than they are.

    So a row is written again only a few times, however many are appended. For a log, as many of them as do not make a
    large part together.
    """
    alive = [each for each in state.parts if state.alive(each)]
    chosen = alive if full else _newest(alive, state)
    return chosen if _is_of_use(state, chosen) else []


def _settled(state: ShardState) -> Sequence[Part]:
    """The parts below the since, if merging them is worthwhile, regardless of later ones.

    Times are not distinguished there.

    So what adds up to nothing takes no more room than half of what is left, and a little.
    """
    if not state.keeps_contents:
        return []
    below = [each for each in state.parts if each.upper <= state.since + 1]
    whole = max((each.size for each in below if each.consolidated), default=0)
    rest = sum(each.size for each in below) - whole
    return below if rest > max(whole // _RATIO, _LOOSE_BYTES) else []


def _newest(alive: Sequence[Part], state: ShardState) -> Sequence[Part]:
    if state.keeps_contents:
        return alive[_beginning(alive, None) :]
    return _together(alive[_beginning(alive, LARGE_BYTES) :])


def _beginning(parts: Sequence[Part], large: int | None) -> int:
    """Return the first of the parts to merge."""
    beginning, newer = len(parts), 0
    for place in range(len(parts) - 1, -1, -1):
        part = parts[place]
        if large is not None and part.size >= large:
            break
        if part.inline is not None or part.size <= _RATIO * newer:
            beginning = place
        elif newer:
            break
        newer += part.size
    return beginning


def _together(parts: Sequence[Part]) -> Sequence[Part]:
    """The first neighbours that are not a large part together; a single part as it is."""
    for start in range(len(parts) - 1):
        end, size = start, 0
        while end < len(parts) and size + parts[end].size <= LARGE_BYTES:
            size += parts[end].size
            end += 1
        if end - start > 1:
            return parts[start:end]
    return parts if len(parts) == 1 else []


def _is_of_use(state: ShardState, chosen: Sequence[Part]) -> bool:
    if len(chosen) != 1:
        return bool(chosen)
    (part,) = chosen
    return (
        not part.consolidated and part.lower < state.since
        if state.keeps_contents
        else part.lower < state.since
    )


def is_left(state: ShardState, upper: int) -> bool:
    """True if there are parts below ``upper`` to merge after a compaction: they were more than a large part.

    Later appends have their turn when they are due: otherwise a compaction that lasts longer than an append has no end.
    """
    due = tuple(each for each in state.parts if each.upper <= upper)
    return len(plan(replace(state, parts=due), full=False)) > 1


def _compacted(runs: Sequence[Runs], state: ShardState) -> tuple[list[Update], bool]:
    """The updates of the new part, and whether they are consolidated ones of a single time."""
    updates = payloads.merged(runs, state.since, keeps_contents=state.keeps_contents)
    consolidated = state.keeps_contents and len(updates) <= 1 and all(at == state.since for at, _ in updates)
    return updates, consolidated
