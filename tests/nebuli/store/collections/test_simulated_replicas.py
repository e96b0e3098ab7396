"""Two replicas of one ingestion over a store that fails, of which each is killed and goes on, now ahead, now behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from random import Random

import pytest

from nebuli import Collections
from nebuli.store.collections.errors import ConflictingWrite
from nebuli.store.errors import StoreFailed, Unclear
from tests.nebuli.store.collections.rows import SCHEMA, Accumulated, zset
from tests.support.seeds import drawn_seed
from tests.support.simulated_store import SimulatedStore
from tests.support.sizes import seeds
from tests.support.virtual_time import VirtualLoop

_END = 60
_DIFFERENT = 30
_LATEST_S = 3600.0

Rows = Sequence[tuple[str, int, int]]
Decoder = Callable[[int], Rows]
"""The rows of a time."""


class Ingestion:
    """What there is of it in one run: the store, and a source that gives the same whoever reads it."""

    def __init__(self, seed: int, stack: AsyncExitStack, store: SimulatedStore) -> None:
        self._seed = seed
        self._stack = stack
        self.store = store
        draw = Random(f"{seed} source")
        self._source = [
            [
                (draw.choice("abc"), draw.randrange(4), draw.choice([1, 1, 2, -1]))
                for _ in range(draw.randrange(4))
            ]
            for _ in range(_END)
        ]
        self.kills = 0

    def rows(self, at: int) -> Rows:
        """As they are decoded rightly."""
        return self._source[at]

    def expected(self, decoder: Decoder) -> list[Counter[tuple[str, int]]]:
        """What changes at each time."""
        changes: list[Counter[tuple[str, int]]] = [Counter() for _ in range(_END)]
        for at, change in enumerate(changes):
            for shop, amount, weight in decoder(at):
                change[shop, amount] += weight
        return changes

    async def replica(self, who: str, decoder: Decoder, rendition: str, ahead_s: float) -> None:
        """Ingest all; killed at times that are drawn, it goes on there, or before. Raises ConflictingWrite."""
        draw = Random(f"{self._seed} {who} {rendition}")
        known = [0]
        lives = draw.randrange(4)
        await asyncio.sleep(ahead_s)
        while known[-1] < _END:
            client = await opened(self.store)
            threads = client._store.access.work
            life = asyncio.create_task(self._ingest(client, decoder, rendition, known, draw))
            if lives:
                lives -= 1
                await asyncio.wait([life], timeout=draw.random())
            else:
                await asyncio.wait([life])
            if life.done():
                self._stack.push_async_callback(client.__aexit__, None, None, None)
                life.result()
                return
            threads.kill()
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
            await client.__aexit__(None, None, None)
            self.kills += 1
            known.append(draw.choice(known))

    async def _ingest(
        self, client: Collections, decoder: Decoder, rendition: str, known: list[int], draw: Random
    ) -> None:
        while (at := known[-1]) < _END:
            upper = min(at + draw.randint(1, 6), _END)
            updates = [(time, zset(*decoder(time))) for time in range(at, upper)]
            try:
                await client.write("sales", updates, at, upper, rendition=rendition)
            except (StoreFailed, Unclear):
                await asyncio.sleep(0.05 * draw.random())
            else:
                known.append(upper)
            await asyncio.sleep(draw.choice([0.0, 0.0, 0.1]) * draw.random())


async def opened(store: SimulatedStore) -> Collections:
    """One more, once the store lets it be opened."""
    while True:
        client = Collections(store.opened(), tick_s=0.1)
        with suppress(StoreFailed, Unclear):
            return await client.__aenter__()
        await asyncio.sleep(0.05)


async def followed(client: Collections, until: Callable[[], int | None]) -> Accumulated:
    """All that somebody sees who begins anew where the store fails it, up to a time that is known at some time."""
    reader = Accumulated()
    while True:
        with suppress(StoreFailed, Unclear):
            start = reader.upper - 1 if reader.spans else 0
            async with aclosing(client.subscribe("sales", start, snapshot=not reader.spans)) as spans:
                async for span in spans:
                    reader.take(span)
                    end = until()
                    if end is not None and reader.upper > end:
                        return reader
        await asyncio.sleep(0.05)


async def unequal_ones(ingestion: Ingestion) -> int:
    """Two whose decoders differ from some time on, and what makes it good."""

    def decoder(name: str) -> Decoder:
        return lambda at: [*ingestion.rows(at), *([(name, at, 1)] if at >= _DIFFERENT else [])]

    over: list[int] = []
    async with AsyncExitStack() as stack:
        first, second = [await reading(ingestion, stack) for _ in range(2)]
        readers = [
            asyncio.create_task(followed(each, lambda: over[0] if over else None)) for each in (first, second)
        ]
        ended = await asyncio.gather(
            *(ingestion.replica(name, decoder(name), "r1", 0.0) for name in ("one", "other")),
            return_exceptions=True,
        )
        (conflict,) = [each for each in ended if each is not None]
        assert isinstance(conflict, ConflictingWrite), conflict
        assert (conflict.name, conflict.rendition) == ("sales", "r1")
        assert conflict.time >= _DIFFERENT
        won, lost = ("other", "one") if ended[0] is conflict else ("one", "other")
        at = conflict.time
        assert f"only in the rendition: ('{won}', {at}); only at this writer: ('{lost}', {at})" in str(
            conflict
        )
        assert "write a new rendition from scratch, and hand over to it" in str(conflict)
        ingestion.store.calm = True
        await first.new_rendition("sales", rendition="r2", shards=2)
        ingestion.store.calm = False
        await asyncio.gather(
            *(ingestion.replica(each, ingestion.rows, "r2", 0.0) for each in ("one", "other"))
        )
        ingestion.store.calm = True
        over.append(await second.handover("sales", "r2"))
        await first.write("sales", [], _END, over[0] + 1, rendition="r2")
        followed_by = await asyncio.gather(*readers)
    before = ingestion.expected(decoder(won))
    for reader in followed_by:
        assert [present_at(reader, at) for at in range(_END)] == [nonzero(each) for each in before]
        assert nonzero(reader.now) == nonzero(sum_of(ingestion.expected(ingestion.rows)))
    return ingestion.kills


def sum_of(changes: Sequence[Counter[tuple[str, int]]]) -> Counter[tuple[str, int]]:
    """All of them."""
    found: Counter[tuple[str, int]] = Counter()
    for each in changes:
        for row, weight in each.items():
            found[row] += weight
    return found


async def reading(ingestion: Ingestion, stack: AsyncExitStack) -> Collections:
    """One more that reads; the collection is there."""
    client = await opened(ingestion.store)
    stack.push_async_callback(client.__aexit__, None, None, None)
    ingestion.store.calm = True
    if not await client.list():
        await client.create("sales", SCHEMA, shards=3, timed="writers")
    ingestion.store.calm = False
    return client


def simulated(seed: int, story: Callable[[Ingestion], object]) -> object:
    """What comes of a story, in virtual time."""
    loop = VirtualLoop()
    store = SimulatedStore(loop, seed)

    async def run() -> object:
        async with asyncio.timeout(_LATEST_S), AsyncExitStack() as stack:
            try:
                return await story(Ingestion(seed, stack, store))  # type: ignore[misc] # a coroutine
            finally:
                store.calm = True

    with asyncio.Runner(loop_factory=lambda: loop) as runner, store.in_place():
        return runner.run(run())


async def equal_ones(ingestion: Ingestion) -> int:
    """Two that write the same; how often one of them was killed."""
    async with AsyncExitStack() as stack:
        client = await reading(ingestion, stack)
        reader, *_ = await asyncio.gather(
            followed(client, lambda: _END - 1),
            ingestion.replica("one", ingestion.rows, "r1", 0.0),
            ingestion.replica("other", ingestion.rows, "r1", 0.3),
        )
        ingestion.store.calm = True
    expected = ingestion.expected(ingestion.rows)
    assert [present_at(reader, at) for at in range(_END)] == [nonzero(each) for each in expected]
    return ingestion.kills


def present_at(reader: Accumulated, at: int) -> dict[tuple[str, int], int]:
    """What has changed at a time."""
    return nonzero(reader.changes.get(at, Counter()))


def nonzero(rows: Counter[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Those that have changed."""
    return {row: weight for row, weight in rows.items() if weight}


@pytest.mark.long
def test_two_replicas_that_are_killed_and_go_on_write_as_one() -> None:
    """ST-COL-3, ST-SH-1: who follows sees each row of the source once, at its time; nobody is told of a conflict."""
    kills = sum(simulated(seed, equal_ones) for seed in seeds(range(10)))
    with drawn_seed() as seed:
        simulated(seed, equal_ones)
    assert kills


@pytest.mark.long
def test_two_replicas_that_differ_are_told_and_a_new_rendition_is_definite() -> None:
    """ST-SH-2, ST-COL-4, ST-REN-6: all see what the first wrote, and from the handover on what both write anew."""
    kills = sum(simulated(seed, unequal_ones) for seed in seeds(range(10)))
    with drawn_seed() as seed:
        simulated(seed, unequal_ones)
    assert kills
