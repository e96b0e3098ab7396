"""A shard against a model of it, with several handles that each know something else: as several processes do.

ST-SH-3, ST-SH-9, ST-SH-11: whatever is appended, held and compacted, reads from the since on are those of the model.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nebuli.store import FINISHED, Shard, Store
from nebuli.store.errors import SinceMismatch, UpperMismatch
from nebuli.store.shards.payloads import INLINE_BYTES
from nebuli.store.store_url import StoreUrl
from tests.support.sizes import examples
from tests.support.stores import (
    SCHEMA,
    Away,
    Here,
    Place,
    blobs_at,
    by_time,
    listened,
    store_at,
    weights,
    zset,
)
from tests.support.unsteady import Way

pytestmark = pytest.mark.long

_HANDLES = st.integers(0, 2)
_NAMES = st.sampled_from("abc")
_CHANGES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(-2, 2)), max_size=6)
"""At which of the append's times, which row, by how much."""
_PADDINGS = st.sampled_from([0, 0, INLINE_BYTES])


class ShardAgainstModel(RuleBasedStateMachine):
    """``changes`` are all that were appended: time, row, weight."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.place = self.new_place()
        self.changes: list[tuple[int, int, int]] = []
        self.upper = self.since = 0
        self.holds: dict[str, int] = {}
        self.repeatable: tuple[Any, ...] | None = None

    def new_place(self) -> Place:
        """Return a place that no other example has."""
        return Here(Path(tempfile.mkdtemp()))

    @initialize(keeps=st.sampled_from(["contents", "updates"]))
    def create(self, keeps: Any) -> None:
        self.keeps = keeps
        self.stores: list[Store] = []
        self.shards: list[Shard] = []
        for _ in range(3):
            self.stores.append(store_at(self.place))
            self.run(self.stores[-1].__aenter__())
            self.shards.append(self.run(self.stores[-1].create_shard("s", SCHEMA, keeps=keeps)))

    def run(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)

    def teardown(self) -> None:
        for store in getattr(self, "stores", []):
            self.run(store.__aexit__(None, None, None))
        self.runner.close()
        if isinstance(self.place, Here):
            shutil.rmtree(self.place.folder)

    # -- writing

    @rule(
        handle=_HANDLES, changes=_CHANGES, padding=_PADDINGS, width=st.integers(4, 8), off=st.integers(-2, 2)
    )
    def append(
        self, handle: int, changes: list[tuple[int, int, int]], padding: int, width: int, off: int
    ) -> None:
        expected = max(0, min(self.upper, FINISHED - 20) + (off if abs(off) == 2 else 0))
        new = [(expected + offset, row, weight) for offset, row, weight in changes]
        updates = [(at, zset((row, weight), padding=padding)) for at, row, weight in new]
        id_ = b"%d" % len(self.changes) + bytes([handle, self.upper % 256, len(changes)])
        call = self.shards[handle].compare_and_append(updates, expected, expected + width, append_id=id_)
        if expected != self.upper:
            with pytest.raises(UpperMismatch) as raised:
                self.run(call)
            assert (raised.value.expected, raised.value.found) == (expected, self.upper)
            return
        self.run(call)
        self.changes += new
        self.upper = expected + width
        self.repeatable = updates, expected, self.upper, id_

    @precondition(lambda self: self.repeatable)
    @rule(handle=_HANDLES)
    def repeat(self, handle: int) -> None:
        assert self.repeatable is not None
        updates, expected, upper, id_ = self.repeatable
        self.run(self.shards[handle].compare_and_append(updates, expected, upper, append_id=id_))

    @precondition(lambda self: len(self.changes) > 20)
    @rule(handle=_HANDLES)
    def finish(self, handle: int) -> None:
        if self.upper < FINISHED:
            self.run(self.shards[handle].finish(self.upper))
            self.upper = FINISHED

    @rule(handle=_HANDLES, name=_NAMES, at=st.integers(0, 60))
    def hold(self, handle: int, name: str, at: int) -> None:
        call = self.shards[handle].hold(name, at)
        if at < self.since:
            with pytest.raises(SinceMismatch):
                self.run(call)
            return
        self.run(call)
        self.holds[name] = at
        self.since = max(self.since, min(self.holds.values()))

    @rule(handle=_HANDLES, name=_NAMES)
    def release(self, handle: int, name: str) -> None:
        self.run(self.shards[handle].release(name))
        self.holds.pop(name, None)
        self.since = max(self.since, min(self.holds.values(), default=0))

    @rule(handle=_HANDLES, full=st.booleans())
    def compact(self, handle: int, full: bool) -> None:
        self.run(self.shards[handle].compact(full=full))

    @rule(handle=_HANDLES)
    def reopen(self, handle: int) -> None:
        self.run(self.stores[handle].__aexit__(None, None, None))
        self.stores[handle] = store_at(self.place)
        self.run(self.stores[handle].__aenter__())
        self.shards[handle] = self.run(self.stores[handle].open_shard("s"))
        assert (self.shards[handle].since, self.shards[handle].upper) == (self.since, self.upper)

    # -- reading

    def contents(self, *, until: int, first: int = 0) -> dict[int, int]:
        found: dict[int, int] = {}
        for at, row, weight in self.changes:
            if first <= at < until:
                found[row] = found.get(row, 0) + weight
        return {row: weight for row, weight in found.items() if weight}

    @precondition(lambda self: self.upper)
    @rule(handle=_HANDLES, data=st.data())
    def snapshot(self, handle: int, data: st.DataObject) -> None:
        as_of = data.draw(st.integers(0, min(self.upper - 1, 70)))
        shard = self.shards[handle]
        if (self.keeps == "contents" and as_of >= self.since) or not self.since:
            found = self.run(shard.snapshot(as_of))
            assert weights(found) == self.contents(until=as_of + 1)
            assert found.num_rows == len(set(zip(*found.to_pydict().values(), strict=True)))
            return
        self.run(shard.refresh())
        with pytest.raises(SinceMismatch):
            self.run(shard.snapshot(as_of))

    @precondition(lambda self: self.upper)
    @rule(handle=_HANDLES, data=st.data())
    def listen(self, handle: int, data: st.DataObject) -> None:
        first = data.draw(st.integers(0, min(self.upper - 1, 70)))
        shard = self.shards[handle]
        if first > self.since or (first == self.since and (self.keeps == "updates" or not self.since)):
            found = by_time(self.run(listened(shard, first, self.upper)))
            times = {at for at, _, _ in self.changes if at >= first}
            each = {at: self.contents(first=at, until=at + 1) for at in sorted(times)}
            assert found == {at: changed for at, changed in each.items() if changed}
            return
        self.run(shard.refresh())
        with pytest.raises(SinceMismatch):
            self.run(cast("Any", anext(shard.listen(first))))

    @invariant()
    def no_blob_is_lost_or_left(self) -> None:
        """The stores are idle: all that is there is of a part, but for what a compaction that was second left."""
        if not hasattr(self, "stores"):
            return
        self.run(self.shards[0].refresh())
        state = self.shards[0]._tracked.state
        assert {each.blob for each in state.parts if each.blob} == set(blobs_at(self.place))
        assert (state.since, state.upper) == (self.since, self.upper)
        assert {name: each.time for name, each in state.held.items()} == self.holds


TestShardAgainstModel = ShardAgainstModel.TestCase
TestShardAgainstModel.settings = settings(
    max_examples=examples(150), stateful_step_count=40, suppress_health_check=list(HealthCheck), deadline=None
)


class ShardOfServersAgainstModel(ShardAgainstModel):
    """In a database and a bucket, which answer late, with an error, or not at all, though it has happened."""

    url: ClassVar[StoreUrl]
    numbers = count()

    def new_place(self) -> Place:
        return Away(self.url / f"example-{next(self.numbers)}")


@pytest.mark.processes(2)
class TestShardOfServersAgainstModel(ShardOfServersAgainstModel.TestCase):  # type: ignore[misc, valid-type]
    """Every kind of fault comes at the database, and some at the bucket."""

    settings = settings(TestShardAgainstModel.settings, max_examples=examples(6), stateful_step_count=30)

    @pytest.fixture(autouse=True)
    def servers(self, unsteady_url: StoreUrl, unsteady_ways: tuple[Way, Way]) -> Iterator[None]:
        ShardOfServersAgainstModel.url = unsteady_url
        yield
        database, bucket = unsteady_ways
        assert {*database.seen} == {"lost", "unclear", "slow"}
        assert {*bucket.seen} & {"lost", "unclear", "refused"}  # it has fewer requests
