"""Which parts of a log are put together, by their sizes alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nebuli.store.shards.access import ENTRIES, LARGE_BYTES, is_left, plan
from nebuli.store.shards.shard_state import Part, ShardState
from tests.support.stores import SCHEMA

KIB = 1 << 10


def part(number: int, lower: int, upper: int, size: int) -> Part:
    return Part(number, lower, upper, 1, size, 0, None, f"{number:016x}-0", consolidated=False)


def put_together(state: ShardState) -> ShardState:
    """As a compaction leaves it, and how much it wrote is the new part's size."""
    chosen = list(plan(state, full=False))
    place = state.parts.index(chosen[0])
    assert state.parts[place : place + len(chosen)] == tuple(chosen)
    size = sum(each.size for each in chosen)
    whole = part(chosen[-1].number, chosen[0].lower, chosen[-1].upper, size)
    return replace(state, parts=(*state.parts[:place], whole, *state.parts[place + len(chosen) :]))


@pytest.mark.parametrize("size", [100 * KIB, 400 * KIB, 3_000 * KIB, 20_000 * KIB, 50_000 * KIB])
def test_parts_of_a_log_become_fewer_and_none_too_large_to_be_read_for_one_step(size: int) -> None:
    """Whoever reads a log step by step reads a part as a whole: that of one step is not to be gigabytes."""
    state = ShardState(SCHEMA, keeps_contents=False)
    for time in range(16 * ENTRIES):
        state = replace(state, parts=(*state.parts, part(time, time, time + 1, size)))
        if not (time + 1) % ENTRIES:
            while is_left(state, time + 1):
                state = put_together(state)
                assert max(each.size for each in state.parts) <= max(LARGE_BYTES, size)
    fewest = 16 * ENTRIES * size / LARGE_BYTES
    assert len(state.parts) <= min(2 * fewest + 10, 16 * ENTRIES)


def test_what_comes_while_parts_are_put_together_waits_until_it_is_due() -> None:
    """Otherwise there is something left whenever an append is quicker than a compaction, and it begins again."""
    parts = [part(time, time, time + 1, KIB) for time in range(ENTRIES)]
    state = put_together(ShardState(SCHEMA, keeps_contents=False, parts=tuple(parts)))
    came = [replace(part(time, time, time + 1, KIB), inline=b"") for time in range(ENTRIES, ENTRIES + 5)]
    assert not is_left(replace(state, parts=(*state.parts, *came)), upper=ENTRIES)
