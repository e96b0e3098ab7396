"""Lookups of keys of several members, each of which is at a step of its own when it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa

from nebuli.circuits.views.view_lookups import ViewLookups
from nebuli.steps.coordinator.call_connection import CallRoutes, Unpinned
from nebuli.steps.coordinator.circuit_run import AnyRun
from nebuli.steps.member.calls.call_messages import LookedUp
from nebuli.views.view_calls import Describe, Description, Found, Get, answer_of, batch_of, bytes_of
from placement import check_stepped, distribute
from tests.support.documents import op, query
from topology import parse_topology

TOPOLOGY = parse_topology("""
logical:
  - {name: numbers, schema: [{name: n, type: int64}, {name: step, type: int64}]}
nodes:
  - address: n:1
""")
KEYS = pa.schema([("n", pa.int64())])
ROWS = pa.schema([("n", pa.int64()), ("step", pa.int64())])
ZSET = ROWS.append(pa.field("_weight", pa.int64()))


@dataclass
class MemberConnection:
    """To a member whose view says of each key before which step it is read; ``firsts`` are where it is when asked."""

    epochs: list[int]
    firsts: list[int]
    asked: list[Any] = field(default_factory=list)
    held: set[str] = field(default_factory=set)

    async def look_up(self, view: str, keys: bytes, name: str, step: int, within_s: float) -> LookedUp:
        self.asked.append(step)
        if name:
            self.held.add(name)
        first = self.firsts.pop(0)
        assert first >= step
        return self._found(keys, first)

    async def look_up_pinned(self, view: str, keys: bytes, name: str, step: int) -> LookedUp:
        self.asked.append((step, name in self.held))
        if name not in self.held:
            raise Unpinned
        return self._found(keys, step)

    async def unpin(self, name: str) -> None:
        self.held.discard(name)

    def _found(self, keys: bytes, step: int) -> LookedUp:
        wanted = batch_of(keys, KEYS)
        count = wanted.num_rows
        rows = pa.record_batch(
            [wanted.column(0), pa.array([step] * count), pa.array([1] * count)], schema=ZSET
        )
        epoch = self.epochs[0] if len(self.epochs) == 1 else self.epochs.pop(0)
        return LookedUp(epoch, step, np.ones(count, dtype="<i4").tobytes(), bytes(rows.serialize()))


async def looked_up(*lines: MemberConnection, complete: int) -> tuple[int, Sequence[Any]]:
    operators = op("source", "in", logical="numbers"), op("view", "v", input="in", key=["n"])
    plan = distribute(check_stepped(query(*operators), TOPOLOGY), len(lines), {"in"})
    run = SimpleNamespace(
        plan=plan,
        calls=CallRoutes(cast(Any, lines)),
        coordinator=SimpleNamespace(complete=complete, epoch=1, phase=SimpleNamespace(value="running")),
    )
    lookups = ViewLookups(cast(AnyRun, run), "q")
    keys = pa.record_batch([pa.array(range(40), pa.int64())], schema=KEYS)
    described = lookups.answer("v", bytes_of(Describe()))
    assert isinstance(described, bytes)
    description = answer_of(described)
    assert isinstance(description, Description)
    get = Get(bytes(keys.serialize()), 5.0, again=False, known=description.known)
    answer = lookups.answer("v", bytes_of(get))
    found = answer_of(answer if isinstance(answer, bytes) else await answer)
    assert isinstance(found, Found)
    rows = batch_of(found.rows, ROWS)
    assert rows.column(0).to_pylist() == list(range(40)), "in the order of the keys"
    assert run.calls.seen == found.step
    for _ in range(5):  # what is released is told meanwhile
        await asyncio.sleep(0)
    assert not any(line.held for line in lines)
    await lookups.close()
    return found.step, rows.column(1).to_pylist()


async def test_members_at_one_step_are_asked_once() -> None:
    lines = MemberConnection([1], [7]), MemberConnection([1], [7])
    assert await looked_up(*lines, complete=7) == (7, [7] * 40)
    assert [line.asked for line in lines] == [[7], [7]]


async def test_who_has_read_before_a_step_that_another_has_done_is_asked_for_it_once_more() -> None:
    """And not the other one, who has read at it."""
    lines = MemberConnection([1], [7]), MemberConnection([1], [9]), MemberConnection([1], [8])
    assert await looked_up(*lines, complete=7) == (9, [9] * 40)
    assert [line.asked for line in lines] == [[7, (9, True)], [7], [7, (9, True)]]


async def test_answers_of_two_epochs_are_not_put_together() -> None:
    """A step of the one may be another one in the next, where not all had it."""
    lines = MemberConnection([1, 2], [7, 7]), MemberConnection([2], [7, 7])
    assert await looked_up(*lines, complete=7) == (7, [7] * 40)
    assert [line.asked for line in lines] == [[7, 7], [7, 7]]


async def test_one_member_has_all_keys_at_one_step_and_holds_nothing() -> None:
    line = MemberConnection([1], [4])
    assert await looked_up(line, complete=3) == (4, [4] * 40)
    assert line.asked == [3]
