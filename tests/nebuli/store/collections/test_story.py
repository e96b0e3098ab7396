"""Stories of several clients on a store that fails now and then, by a seed, against a model of what they did."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from nebuli import Collections
from nebuli.store import Store
from nebuli.store.backends import backends_at
from nebuli.store.collections.clock import now_ms
from nebuli.store.collections.errors import (
    CollectionError,
    CollectionExists,
    CollectionUnknown,
    RenditionRefused,
    TooLate,
)
from nebuli.store.errors import StorageError, StoreFailed, Unclear
from nebuli.store.shards.payloads import INLINE_BYTES
from tests.nebuli.store.collections.leftovers import left_over
from tests.nebuli.store.collections.rows import SCHEMA, Accumulated, batch, present
from tests.support.sizes import seeds
from tests.support.stores import Faulty

T = TypeVar("T")
Contents = Counter[tuple[Any, ...]]

_STORY_S = 0.6
_HISTORY_S = 0.15


@dataclass
class Weather:
    """What becomes of calls to the seams: one in so many is late, fails before it is made, or after it."""

    draw: random.Random
    fails: float
    late: float
    is_calm: bool = False
    seen: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def around(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        with self._lock:
            late, before, after = (self.draw.random() for _ in range(3))
            pause = self.draw.uniform(0, 0.005)
        if self.is_calm:
            return call(*arguments)
        if late < self.late:
            time.sleep(pause)
        if before < self.fails:
            raise self._error(name, "before")
        came = call(*arguments)
        if after < self.fails:
            raise self._error(name, "after")
        return came

    def _error(self, name: str, when: str) -> StorageError:
        self.seen[f"{name} {when}"] += 1
        if name == "append":
            return Unclear("writing", "the weather")
        return StoreFailed("the store", name, "the weather")


@dataclass
class Model:
    """What a collection is, by those who changed it: rows by time, and what it became by handovers."""

    inserted: list[tuple[int, Contents]] = field(default_factory=list)
    handed_over: list[tuple[int, Contents]] = field(default_factory=list)
    unsure: set[tuple[Any, ...]] = field(default_factory=set)
    """Rows of which nobody was told whether they were inserted: they are there once, or not."""
    acknowledged: int = 0

    def at(self, when: int) -> Contents:
        begin, found = max(
            ((at, rows) for at, rows in self.handed_over if at <= when), default=(-1, Counter())
        )
        found = Counter(found)
        for at, rows in self.inserted:
            if begin <= at <= when:
                found.update(rows)
        return present(found)

    def check(self, when: int, found: Contents) -> None:
        assert all(found[row] in (0, 1) for row in self.unsure)
        sure = Counter({row: weight for row, weight in found.items() if row not in self.unsure})
        assert sure == self.at(when)

    def times(self) -> set[int]:
        changed = {at for at, _ in (*self.inserted, *self.handed_over)}
        return changed | {at - 1 for at in changed}


class Story:
    """Clients, and what each of them does until it is over."""

    def __init__(self, seed: int, clients: list[Collections]) -> None:
        self.seed = seed
        self.clients = clients
        self.model = Model()
        self.read: list[tuple[int, Contents]] = []
        self.followers: list[Accumulated] = []
        self.over = asyncio.Event()
        self.until: int | None = None
        self._numbers = iter(range(1 << 40))

    def draw(self, who: str) -> random.Random:
        return random.Random(f"{self.seed} {who}")

    def rows(self, draw: random.Random, mark: str) -> list[tuple[str, int]]:
        large = draw.random() < 0.05
        pad = mark + "x" * (2 * INLINE_BYTES) if large else mark
        return [(pad, next(self._numbers)) for _ in range(draw.randrange(1, 4))]

    # -- who does what

    async def insert(self, number: int) -> None:
        draw, client = self.draw(f"insert {number}"), self.clients[number % len(self.clients)]
        sequence = 0
        last = 0
        while not self.over.is_set():
            rows = self.rows(draw, f"i{number}")
            if draw.random() < 0.5:
                sequence += 1
                at = await self._repeated(client, draw, rows, f"p{number}", sequence)
            else:
                at = await self._once(client, rows)
            if at is not None:
                assert at > last, "the clock goes back"
                last = at
                self.model.acknowledged = max(self.model.acknowledged, at)
            await asyncio.sleep(draw.choice([0, 0.001, 0.01]))

    async def _repeated(
        self,
        client: Collections,
        draw: random.Random,
        rows: list[tuple[str, int]],
        producer: str,
        sequence: int,
    ) -> int:
        async def insert() -> int:
            who = draw.choice(self.clients)
            return await who.insert("sales", batch(*rows), producer=producer, sequence=sequence)

        at = await insisted(insert)
        if draw.random() < 0.3:
            assert await insisted(insert) == at
        self.model.inserted.append((at, Counter(rows)))
        return at

    async def _once(self, client: Collections, rows: list[tuple[str, int]]) -> int | None:
        try:
            at = await client.insert("sales", batch(*rows))
        except Unclear:
            self.model.unsure.update(rows)
            return None
        except StoreFailed:
            return None  # and it did not happen
        self.model.inserted.append((at, Counter(rows)))
        return at

    async def snapshot(self, number: int) -> None:
        draw, client = self.draw(f"snapshot {number}"), self.clients[number % len(self.clients)]
        latest = 0
        while not self.over.is_set():
            await asyncio.sleep(draw.uniform(0, 0.02))
            before = max(self.model.acknowledged, latest)
            with suppress(StoreFailed, Unclear):
                latest = await client.latest("sales")
                assert latest >= before, "the clock goes back"
                as_of = draw.choice([None, latest - draw.randrange(100), latest])
                try:
                    at, found = await self._snapshot(client, as_of)
                except TooLate:
                    assert as_of is not None
                    continue
                self.read.append((at, found))

    async def _snapshot(self, client: Collections, as_of: int | None) -> tuple[int, Contents]:
        if as_of is None:
            await client.snapshot("sales")  # which is at a time that is not said
            as_of = await client.latest("sales")
        found = await client.snapshot("sales", as_of, weighted=True)
        *columns, weights = found.to_pydict().values()
        return as_of, Counter(dict(zip(zip(*columns, strict=True), weights, strict=True)))

    async def follow(self, number: int, pause_s: float) -> None:
        """A subscriber with a hold of its own, which goes on where it was when it fails."""
        client = self.clients[number % len(self.clients)]
        follower = Accumulated()
        self.followers.append(follower)

        async def begin() -> int:
            start = await client.latest("sales")
            await client.hold("sales", f"follower {number}", start)
            return start

        start = await insisted(begin, TooLate)
        while self.until is None or follower.upper <= self.until:
            as_of = follower.upper - 1 if follower.spans else start
            with suppress(StoreFailed, Unclear):
                async with aclosing(client.subscribe("sales", as_of, snapshot=not follower.spans)) as spans:
                    async for span in spans:
                        follower.take(span)
                        if self.until is not None and follower.upper > self.until:
                            break
                        await asyncio.sleep(pause_s)
                        await client.hold("sales", f"follower {number}", follower.upper - 1)

    async def hand_over(self) -> None:
        draw, client = self.draw("handover"), self.clients[-1]
        number = 1
        while not self.over.is_set():
            await asyncio.sleep(draw.uniform(0, 0.2))
            number += 1
            name, shards = f"n{number}", draw.randrange(1, 4)
            rows = self.rows(draw, name)
            await self._become(client, name, shards, rows, is_twice=draw.random() < 0.3)

    async def _become(
        self, client: Collections, name: str, shards: int, rows: list[tuple[str, int]], *, is_twice: bool
    ) -> None:
        await insisted(lambda: client.new_rendition("sales", rendition=name, shards=shards), RenditionRefused)
        if is_twice:  # another one of its name
            await insisted(lambda: client.drop_rendition("sales", name), CollectionError)
            await insisted(lambda: client.new_rendition("sales", rendition=name, shards=4), RenditionRefused)
        await insisted(lambda: client.write("sales", [(5, batch(*rows))], 0, 10, rendition=name))
        await insisted(lambda: client.handover("sales", name), RenditionRefused)
        status = await insisted(lambda: client.describe("sales"))
        assert status.active == name
        begin = next(each.begin for each in status.renditions if each.name == name)
        catalog = await insisted(client._open.space.catalog)
        said = catalog.entries["sales"].renditions[name].begin
        assert begin is not None
        assert said is not None
        assert begin >= said
        self.model.handed_over.append((said, Counter(rows)))

    async def keep_house(self, number: int) -> None:
        draw, client = self.draw(f"house {number}"), self.clients[number % len(self.clients)]
        while not self.over.is_set():
            await asyncio.sleep(draw.uniform(0, 0.05))
            with suppress(StoreFailed, Unclear):
                await client.keep_house()
                collection = await client._open.space.opened("sales")
                for shard in draw.choice(list(collection.shards.values())):
                    with suppress(StorageError):
                        await shard.compact(full=draw.random() < 0.5)

    async def make_anew(self) -> None:
        """A collection that is dropped again and again, and is another one each time."""
        draw, client = self.draw("anew"), self.clients[0]
        life = 0
        while not self.over.is_set():
            life += 1
            await insisted(lambda: client.create("short", SCHEMA, shards=2), CollectionExists)
            inserted = 0
            for _ in range(draw.randrange(1, 6)):
                inserted += 1
                rows = batch((f"{life}", 2 * inserted), (f"{life}", 2 * inserted + 1))
                number = inserted

                async def insert(rows: pa.RecordBatch = rows, number: int = number) -> int:
                    who = draw.choice(self.clients)
                    return await who.insert("short", rows, producer="p", sequence=number)

                await insisted(insert)
            found = await insisted(lambda: draw.choice(self.clients).snapshot("short"))
            assert Counter(found["shop"].to_pylist()) == {f"{life}": 2 * inserted}
            await insisted(lambda: client.drop("short"), CollectionUnknown)

    async def read_what_is_dropped(self, number: int) -> None:
        draw, client = self.draw(f"dropped {number}"), self.clients[number % len(self.clients)]
        while not self.over.is_set():
            await asyncio.sleep(draw.uniform(0, 0.01))
            with suppress(StoreFailed, Unclear, CollectionUnknown, TooLate):
                found = await client.snapshot("short")
                assert found.num_rows % 2 == 0, "a part of it"
                assert len({*found["shop"].to_pylist()}) <= 1, "of two lives"


async def insisted(call: Callable[[], Awaitable[T]], done: type[Exception] | None = None) -> T:
    """Again until it has happened; once something has failed, the error ``done`` says that it had."""
    has_failed = False
    while True:
        try:
            return await call()
        except StorageError as error:
            if has_failed and done is not None and isinstance(error, done):
                return None  # type: ignore[return-value]
            if not isinstance(error, StoreFailed | Unclear):
                raise
            has_failed = True


@pytest.fixture
async def clients(folder: Path, stack: AsyncExitStack, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """Some with a clock of their own, whose calls fail now and then."""
    seed = request.getfixturevalue("seed")
    draw = random.Random(seed)
    fails = draw.choice([0.0, 0.005, 0.02])
    weather = Weather(draw, fails, late=0.05, is_calm=True)

    def clock(skew: int) -> Callable[[], int]:
        own = random.Random(f"{seed} clock {skew}")
        return lambda: now_ms() + skew - (own.randrange(30) if own.random() < 0.05 else 0)

    made = []
    for number in range(draw.choice([3, 4])):
        ordering, blobs = backends_at(folder)
        store = Store(Faulty(ordering, weather), Faulty(blobs, weather))
        made.append(await stack.enter_async_context(Collections(store, now=clock(7 * number), tick_s=0.02)))
    yield made, weather
    weather.is_calm = True


@pytest.mark.parametrize("seed", seeds(range(8)))
async def test_a_story_is_as_its_model(
    clients: tuple[list[Collections], Weather], seed: int, folder: Path
) -> None:
    """ST-COL-1, ST-COL-4, ST-COL-7, ST-REN-3, ST-REN-6, ST-SH-9: what anybody reads, at any time, is the model's."""
    made, weather = clients
    story = Story(seed, made)
    await made[0].create("sales", SCHEMA, shards=3, keep=_HISTORY_S)
    weather.is_calm = False
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        followers = [group.create_task(story.follow(n, pause)) for n, pause in enumerate((0, 0.002, 0.2))]
        doing = [
            group.create_task(each)
            for each in (
                *(story.insert(n) for n in range(4)),
                *(story.snapshot(n) for n in range(2)),
                *(story.read_what_is_dropped(n) for n in range(1, 3)),
                *(story.keep_house(n) for n in range(2)),
                story.hand_over(),
                story.make_anew(),
            )
        ]
        await asyncio.sleep(_STORY_S)
        story.over.set()
        await asyncio.wait(doing)
        weather.is_calm = True
        story.until = await made[0].latest("sales")
        await asyncio.wait(followers)
    assert bool(weather.seen) == (weather.fails > 0)
    model = story.model
    assert len(model.inserted) > 5
    for at, found in story.read:
        model.check(at, found)
    for follower in story.followers:
        start = follower.spans[0].lower
        for at in sorted(
            each for each in {*model.times(), *follower.changes} if start <= each < follower.upper
        ):
            model.check(at, follower.at(at))
    await check_that_nothing_is_left(made, folder)


async def check_that_nothing_is_left(made: list[Collections], folder: Path) -> None:
    """Each file is of a part, once holds are let go, and all is compacted."""
    client = made[0]
    for name in (await client.describe("sales")).holds:
        if name.startswith(("follower", "reader")):  # of readers some could not let theirs go
            await client.release("sales", name)
    last = await client.insert("sales", batch(("last", -1)))
    await client.snapshot("sales", last + round(_HISTORY_S * 1000) + 50)
    await client.keep_house()
    status = await client.describe("sales")
    assert [each.name for each in status.renditions] == [status.active]
    assert await left_over(client, folder) == set()
