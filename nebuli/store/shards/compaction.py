"""The choice of a shard's parts that are worth being one, and making it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nebuli.store.shards.payloads import merged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nebuli.store.shards.payloads import Runs, Update
    from nebuli.store.shards.shard_state import Part, ShardState

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


def is_due(state: ShardState) -> bool:
    """True if the shard's log is long enough; where compaction fails, it is tried again as much later."""
    entries = state.sequence - state.compacted
    return entries > 0 and entries % ENTRIES == 0


def is_overdue(state: ShardState) -> bool:
    """True if it was due, and the client that appended then has not done it, as it had ended, for instance."""
    return state.sequence - state.compacted >= ENTRIES


def is_dead(state: ShardState) -> bool:
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


def settled(state: ShardState) -> Sequence[Part]:
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


def compacted(runs: Sequence[Runs], state: ShardState) -> tuple[list[Update], bool]:
    """The updates of the new part, and whether they are consolidated ones of a single time."""
    updates = merged(runs, state.since, keeps_contents=state.keeps_contents)
    consolidated = state.keeps_contents and len(updates) <= 1 and all(at == state.since for at, _ in updates)
    return updates, consolidated
