"""Each safeguard of the store and of its nodes, taken out: what the clients are told is not strictly serializable then.

With all of them in place the same nodes and clients are told nothing wrong.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from nebuli.store import Shard, Span
from nebuli.store.errors import Conflict
from nebuli.store.ordering import Change, Ordering
from nebuli.store.ordering.sqlite import SqliteOrdering
from nebuli.store.shards.payloads import Update
from nebuli.store.shards.shard_state import AppendPart, ShardState

from .checker import check
from .history import Append, Operation
from .lists import Lists
from .local import NeverAnswered, told

pytestmark = pytest.mark.long

_TRANSACTIONS = 200
_RUNS = 10
"""Until a violation is found."""


class Unconditional(SqliteOrdering):
    """An ordering that appends to what is there, whatever was expected."""

    def append(self, changes: Sequence[Change]) -> None:
        try:
            super().append(changes)
        except Conflict:
            heads = self.heads([each.key for each in changes])
            self.append([replace(each, expected=heads[each.key]) for each in changes])


class Careless(Lists):
    """Transactions that append what they have computed from something older, when another one was first."""

    async def _appended(self, changes: Sequence[Sequence[tuple[int, str, int]]], at: int) -> bool:
        while not await super()._appended(changes, at):
            await self.learn()
            at = self.upper
        return True


class Forgetful(Lists):
    """Appends that have another id when they are repeated."""

    def ids(self) -> Iterator[bytes]:
        for _ in super().ids():
            yield os.urandom(16)


class Incurious(Lists):
    """Reads of what is known, which others may have changed long ago."""

    async def learn(self) -> None:
        if not self._followers:
            await super().learn()


class Fleeting(Lists):
    """Holds that are over at once, and compaction all the time: the since passes whoever is behind."""

    moves = 3
    lease_s = 0.0

    async def _hold(self, upper: int) -> None:
        await super()._hold(upper)
        for each in self._shards:
            await each.compact(full=True)


class Hasty(Lists):
    """Reads of a transaction at several times."""

    async def transact(self, operations: Sequence[Operation]) -> tuple[Operation, ...]:
        if any(isinstance(each, Append) for each in operations):
            return await super().transact(operations)
        return tuple([done for each in operations for done in await super(Hasty, self).transact([each])])


def _no_upper_is_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AppendPart, "_lost", lambda self, state: None)


def _no_append_is_remembered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardState, "appended", lambda self, id_: False)


def _no_since_is_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Shard, "_apart", lambda self, state, first, until: state.overlapping(first, until))


def _listening_leaves_gaps(patch: pytest.MonkeyPatch) -> None:
    """Each span begins one time too late."""
    listen = Shard.listen

    async def gapped(shard: Shard, first: int) -> AsyncIterator[Span]:
        async for span in listen(shard, first):
            later = [(at, rows) for at, rows in span.updates if at > span.lower]
            yield Span(span.lower, span.upper, later)

    patch.setattr(Shard, "listen", gapped)


def _listening_overlaps(patch: pytest.MonkeyPatch) -> None:
    """Each span begins with what was the last of the one before."""
    listen = Shard.listen

    async def overlapping(shard: Shard, first: int) -> AsyncIterator[Span]:
        again: list[Update] = []
        async for span in listen(shard, first):
            yield Span(span.lower, span.upper, [*again, *span.updates])
            again = [(span.upper, rows) for _, rows in span.updates[-1:]]

    patch.setattr(Shard, "listen", overlapping)


@dataclass(frozen=True)
class Without:
    """What is left out: of the nodes, of the ordering, or by a patch. ``one_in``: of appends one is unclear."""

    lists: type[Lists] = Lists
    ordering: Callable[[Path], Ordering] = SqliteOrdering
    patch: Callable[[pytest.MonkeyPatch], None] = lambda patch: None
    one_in: int = 0


_WITHOUT = {
    "the ordering's compare": Without(ordering=Unconditional),
    "the shard's compare": Without(patch=_no_upper_is_compared),
    "computing anew after a mismatch": Without(lists=Careless),
    "the same append_id": Without(lists=Forgetful, one_in=8),
    "the ids of appends": Without(patch=_no_append_is_remembered, one_in=8),
    "a look before a read": Without(lists=Incurious),
    "reading at one time": Without(lists=Hasty),
    "the since": Without(lists=Fleeting, patch=_no_since_is_compared),
    "listening without a gap": Without(patch=_listening_leaves_gaps),
    "listening without an overlap": Without(patch=_listening_overlaps),
}


@pytest.mark.parametrize("safeguard", _WITHOUT)
async def test_without_a_safeguard_a_violation_is_found(
    safeguard: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = _WITHOUT[safeguard]
    without.patch(monkeypatch)
    for seed in range(_RUNS):
        try:
            history, _ = await told(
                seed,
                tmp_path / f"{seed}",
                _TRANSACTIONS,
                lists=without.lists,
                ordering=without.ordering,
                one_in=without.one_in,
            )
        except (
            NeverAnswered
        ):  # shards whose times have come apart: what was told is as it was, and no violation
            continue
        if check(history):
            return
    pytest.fail(f"{_RUNS} runs have found nothing without {safeguard}")


@pytest.mark.parametrize("lists", [Lists, Fleeting])
async def test_with_all_of_them_nothing_is_found(lists: type[Lists], tmp_path: Path) -> None:
    history, faults = await told(1, tmp_path / "store", _TRANSACTIONS, lists=lists, one_in=8)
    assert check(history) == []
    assert sum(faults.values()) > 5
