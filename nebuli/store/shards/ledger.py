"""A shard as its process knows it, and those that wait until it is another."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from nebuli.store.errors import Conflict, Damaged, NotYet, ShardUnknown, StorageError, StoreClosed, Unclear
from nebuli.store.ordering import Change

from .shard_state import ShardState, unpacked_first

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from nebuli.store.ordering import Ordering

    from .shard_state import Decision


class ShardTracker:
    """A shard's ``state``, which follows the ordering; it may lag, but is never ahead."""

    def __init__(self, name: str, state: ShardState) -> None:
        self.name = name
        self.state = state
        self._waiters: set[asyncio.Future[None]] = set()
        self._awaiting = 0
        self._closed = False

    @property
    def is_awaited(self) -> bool:
        """True if a task waits for another state, or is about to."""
        return self._awaiting > 0

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """A context, entered before the state is last brought up to date: what comes after it is not missed."""
        self._awaiting += 1
        try:
            yield
        finally:
            self._awaiting -= 1

    def changed(self, state: ShardState) -> None:
        """Take a newer state."""
        self.state = state
        self._wake()

    def close(self) -> None:
        """Have waiting and later tasks get StoreClosed."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def reach(self, time: int, deadline_s: float | None) -> None:
        """Wait until the upper is above ``time``. Raises NotYet, ShardUnknown, StoreClosed."""
        try:
            async with asyncio.timeout(deadline_s):
                while self.state.upper <= time and not self.state.dropped:
                    await self._next_state()
        except TimeoutError:
            raise NotYet(self.name, time, self.state.upper, deadline_s or 0.0) from None
        if self.state.dropped:
            raise ShardUnknown(self.name)
        if self._closed:
            raise StoreClosed

    async def _next_state(self) -> None:
        """Wait until there is a newer one. Raises StoreClosed."""
        if self._closed:
            raise StoreClosed
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)


_PREFIX = "shard/"
_PAUSES_S = (0.0, 0.01, 0.1, 0.5)
"""Seconds between attempts to learn what happened, after the system failed in the middle."""


class Ledger:
    """The states of shards, by one thread; calls block. ``changed`` is called with every new state."""

    def __init__(self, ordering: Ordering, changed: Callable[[str, ShardState], None]) -> None:
        self._ordering = ordering
        self._changed = changed
        self._states: dict[str, ShardState] = {}

    def names(self) -> list[str]:
        """The names of all shards."""
        names = [key.removeprefix(_PREFIX) for key in self._ordering.keys(_PREFIX)]
        self.refresh(names)
        return [name for name in names if not self._states[name].dropped]

    def known(self, shard: str) -> ShardState:
        """The shard's state as it is now. Raises ShardUnknown."""
        self.refresh([shard])
        state = self._states.get(shard)
        if state is None or state.dropped:
            raise ShardUnknown(shard)
        return state

    def all_known(self, shards: Sequence[str]) -> dict[str, ShardState]:
        """The states of those that there are, as they are now."""
        self.refresh(shards)
        found = {shard: self._states[shard] for shard in shards if shard in self._states}
        return {shard: state for shard, state in found.items() if not state.dropped}

    def known_behind(self, first: str, others: Sequence[str]) -> tuple[ShardState, list[ShardState]]:
        """Return the state of one, and then those of others as they are after it. Raises ShardUnknown."""
        before = self.known(first)
        known = self.all_known(others)
        for each in others:
            if each not in known:
                raise ShardUnknown(each)
        return before, [known[each] for each in others]

    def refresh(self, shards: Iterable[str]) -> None:
        """Learn what others have appended."""
        keys = {key_of(shard): shard for shard in shards}
        for key, last in self._ordering.heads(list(keys)).items():
            state = self._states.get(keys[key])
            if last > (state.sequence if state else 0):
                self._follow(keys[key], state)

    def refresh_if_changed(self, shards: Iterable[str]) -> None:
        """Do the same, at next to no cost when no other process has appended anything."""
        if not self._ordering.unchanged():
            self.refresh(shards)

    def _follow(self, shard: str, state: ShardState | None) -> None:
        entries = self._ordering.scan(key_of(shard), state.sequence if state else 0)
        if not entries:
            raise Damaged(
                f"the log of shard {shard} has lost its end: restore the store's folder from a copy"
            )
        for entry in entries:
            if state is None or entry.sequence != state.sequence + 1:
                state = unpacked_first(shard, entry.sequence, entry.data)
            else:
                state = state.after(entry.sequence, entry.data)
        self._know(shard, state)

    def _know(self, shard: str, state: ShardState | None) -> None:
        if state is not None:
            self._states[shard] = state
            self._changed(shard, state)

    def change(self, decisions: Sequence[Decision]) -> None:
        """Make all of them, or raise what one of them raises and make none."""
        shards = [each.shard for each in decisions]
        is_fresh = False
        failures = 0
        while True:
            try:
                changes = self._decided(decisions)
            except StorageError:
                if is_fresh:
                    raise
                self.refresh(shards)
                is_fresh = True
                continue
            if len(changes) < len(decisions) and not is_fresh:
                # Nothing to do by what was known, which may have been long ago.
                self.refresh(shards)
                is_fresh = True
                continue
            if not changes:
                return
            try:
                self._ordering.append(changes)
            except Conflict:
                self.refresh(shards)
                is_fresh = True
                continue
            except Unclear as error:
                failures += 1
                decisions = [each.again() for each in decisions]
                self._learn(shards, error)
                if failures == len(_PAUSES_S):
                    if not self._decided(decisions):
                        return
                    raise
                is_fresh = True
                continue
            self._took(changes)
            return

    def _decided(self, decisions: Sequence[Decision]) -> list[Change]:
        changes = []
        for each in decisions:
            state = self._states.get(each.shard)
            data = each.decide(None if state is None or state.dropped else state)
            if data is not None:
                changes.append(Change(key_of(each.shard), state.sequence if state else 0, data))
        return changes

    def _took(self, changes: Sequence[Change]) -> None:
        for each in changes:
            shard = each.key.removeprefix(_PREFIX)
            state = self._states.get(shard)
            if state is None:
                state = unpacked_first(shard, each.expected + 1, each.data)
            else:
                state = state.after(each.expected + 1, each.data)
            self._know(shard, state)

    def _learn(self, shards: Sequence[str], cause: Unclear) -> None:
        """Be up to date again after the system failed in the middle. Raises ``cause`` if that cannot be."""
        for pause in _PAUSES_S:
            time.sleep(pause)
            with suppress(StorageError):
                self.refresh(shards)
                return
        raise cause

    def truncate(self, shard: str) -> None:
        """Forget the entries that the last whole state has made superfluous."""
        self.refresh([shard])
        if shard in self._states:
            self._ordering.truncate(key_of(shard), self._states[shard].compacted)


def key_of(shard: str) -> str:
    """The key of its log."""
    return f"{_PREFIX}{shard}"
