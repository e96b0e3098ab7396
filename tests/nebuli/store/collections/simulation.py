"""Several clients of one collection over a store that fails, all in virtual time: a run is a function of its seed.

Three write, one makes renditions and hands over to them, one looks after the collection and keeps a hold, and two read;
what the readers saw is compared with a model.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from nebuli import Collections
from nebuli.store import Span
from nebuli.store.collections.errors import (
    HandoverLate,
    RenditionRefused,
    RenditionUnknown,
    TooLate,
)
from nebuli.store.errors import StoreFailed, Unclear
from tests.nebuli.store.collections.acknowledged import Model, Row, Violation
from tests.nebuli.store.collections.rows import SCHEMA, Accumulated, zset
from tests.support.simulated_store import SimulatedStore
from tests.support.virtual_time import VirtualLoop

T = TypeVar("T")

_HISTORY_S = 1.0
_TICK_S = 0.3
_SKEW_MS = 400
"""The clocks of two machines differ by no more."""
_DEADLINE_S = 3600.0
"""Virtual seconds within which a run ends."""
_VERSION_ROWS = 5
TROUBLES = StoreFailed, Unclear
"""What a store that fails may have a client be told; nothing else is."""


@dataclass(frozen=True, slots=True)
class Report:
    """What there was in a run."""

    times: int
    acknowledged: int
    unclear: int
    handovers: int
    late: int
    faults: Counter[str]
    virtual_s: float


def simulate(seed: int) -> Report:
    """One run. Raises Violation, or what should not be raised to a client."""
    loop = VirtualLoop()
    store = SimulatedStore(loop, seed)
    with asyncio.Runner(loop_factory=lambda: loop) as runner, store.in_place():
        try:
            return runner.run(Simulation(store, seed).run())
        except ExceptionGroup as group:
            raise group.exceptions[0] from group


class Simulation:
    """The clients, and the model."""

    def __init__(self, store: SimulatedStore, seed: int) -> None:
        self.store = store
        self.seed = seed
        self.model = Model()
        self.unclear = self.handovers = self.late = 0

    async def run(self) -> Report:
        """All of it."""
        async with asyncio.timeout(_DEADLINE_S), AsyncExitStack() as stack:
            self.store.calm = True
            clients = [await stack.enter_async_context(self.client(number)) for number in range(7)]
            await clients[0].create("sales", SCHEMA, shards=3, keep=_HISTORY_S)
            self.store.calm = False
            async with asyncio.TaskGroup() as group:
                for number in range(3):
                    group.create_task(self.write(clients[number], clients[number - 1], f"writer {number}"))
                group.create_task(self.hand_over(clients[3]))
                keeping = group.create_task(self.keep_house(clients[4]))
                auditing = group.create_task(self.audit(clients[4]))
                readers = [
                    group.create_task(self.read(clients[5 + each], f"reader {each}")) for each in (0, 1)
                ]
                await asyncio.wait(readers)
                keeping.cancel()
                auditing.cancel()
            self.store.calm = True
            await self.snapshot(clients[6], "the last reader", None)
            times = self.model.check()
        return Report(
            times,
            sum(each.lowest == each.highest < math.inf for each in self.model.changes),
            self.unclear,
            self.handovers,
            self.late,
            self.store.seen,
            self.store.loop.now,
        )

    def client(self, number: int) -> Collections:
        """One whose clock is its own."""
        skew_ms = self.draw(f"clock {number}").randrange(_SKEW_MS)
        return Collections(
            self.store.opened(),
            now=lambda: 1_700_000_000_000 + round(self.store.loop.now * 1000) + skew_ms,
            tick_s=_TICK_S,
        )

    def draw(self, who: str) -> Random:
        """What is drawn by one, whatever the others do."""
        return Random(f"{self.seed} {who}")

    # -- writing

    async def write(self, client: Collections, other: Collections, who: str) -> None:
        """Insert with a producer's numbers, and without; repeat what is unclear, or leave it so."""
        draw = self.draw(who)
        own: list[Row] = []
        for sequence in range(20):
            await asyncio.sleep(draw.choice([0.0, 0.01, 0.1, 0.6]) * draw.random())
            name = f"{who}: {sequence}"
            added = [(name, number) for number in range(draw.choice([1, 2, 3, 40]))]
            taken = [own.pop(draw.randrange(len(own))) for _ in range(draw.randrange(3)) if own]
            rows = Counter(dict.fromkeys(added, 1))
            rows.update(dict.fromkeys(taken, -1))
            both = [client, other] if draw.random() < 0.2 else [client]
            producer = who if draw.random() < 0.8 else None
            if await self.insert(rows, (name, 0), both if producer else [client], producer, sequence, draw):
                own += added[1:]

    async def insert(
        self,
        rows: Counter[Row],
        mark: Row,
        clients: list[Collections],
        producer: str | None,
        sequence: int,
        draw: Random,
    ) -> bool:
        """Whether it was acknowledged; by several clients at once it is inserted once."""
        change = self.model.asked(rows, mark)
        given = zset(*((*row, weight) for row, weight in rows.items()))
        is_unclear = False
        while True:
            numbered = {} if producer is None else {"producer": producer, "sequence": sequence}
            answers = await asyncio.gather(
                *(each.insert("sales", given, **numbered) for each in clients), return_exceptions=True
            )
            for each in answers:
                if isinstance(each, int):
                    self.model.happened(change, each)
                elif not isinstance(each, TROUBLES):
                    raise each
            if any(isinstance(each, int) for each in answers):
                return True
            if any(isinstance(each, Unclear) for each in answers):
                is_unclear = True
                self.unclear += 1
            if producer is None or draw.random() < 0.1:
                if not is_unclear:
                    change.has_not_happened()
                return False
            await asyncio.sleep(0.1 * draw.random())

    # -- renditions, holds, and what is forgotten

    async def hand_over(self, client: Collections) -> None:
        """Make renditions of the collection as it was, and hand over to them, or drop them."""
        draw = self.draw("controller")
        before: Counter[Row] = Counter()
        for number in range(2, 6):
            await asyncio.sleep(draw.random())
            name = f"r{number}"
            at = await self.held(client, "builder")
            old = await self.snapshot(client, "controller", at)
            await again(lambda name=name: made(client, name, draw.randint(1, 4)))
            if draw.random() < 0.2:
                await again(lambda name=name: dropped(client, name))
                continue
            version = Counter({(f"version {name}", each): 1 for each in range(_VERSION_ROWS)})
            rows = Counter({(f"rendition {name}", 0): 1, **version})
            rows.update(dict.fromkeys(before, -1))
            new = old + rows
            given = [(at, zset(*((*row, weight) for row, weight in new.items() if weight)))]
            await again(
                lambda name=name, at=at, given=given: client.write("sales", given, 0, at + 1, rendition=name)
            )
            change = self.model.asked(rows, (f"rendition {name}", 0))
            over = await self.handed_over(client, name, at, draw)
            self.handovers += 1
            if over is not None:
                self.model.happened(change, over)
            await again(lambda: client.release("sales", "builder"))
            before = version

    async def handed_over(self, client: Collections, name: str, at: int, draw: Random) -> int | None:
        """The time of a handover; None if only others know it."""
        while True:
            try:
                return await client.handover("sales", name, built_from=at, deadline_s=draw.choice([0.1, 5]))
            except HandoverLate:
                pass
            except RenditionRefused as error:
                if "is or was" not in str(error):
                    raise
                return None  # it has happened, and could not say so
            except TROUBLES:
                await asyncio.sleep(0.1 * draw.random())

    async def keep_house(self, client: Collections) -> None:
        """Forget and compact, until it is cancelled."""
        draw = self.draw("house")
        while True:
            await asyncio.sleep(0.5 * draw.random())
            with suppress(*TROUBLES):
                await client.keep_house(["sales"])

    async def audit(self, client: Collections) -> None:
        """What is held can be read for as long, whatever is forgotten."""
        draw = self.draw("auditor")
        while True:
            at = await self.held(client, "audit")
            for _ in range(2):
                await asyncio.sleep(3 * draw.random())
                await self.snapshot(client, "auditor", at)
            await again(lambda: client.release("sales", "audit"))

    async def held(self, client: Collections, hold: str) -> int:
        """A time from which on it can be read until the hold is released."""
        while True:
            at = await again(lambda: client.latest("sales"))
            try:
                await again(lambda at=at: client.hold("sales", hold, at))
            except TooLate:
                continue
            return at

    # -- reading

    async def read(self, client: Collections, who: str) -> None:
        """Snapshots and subscriptions at times that are drawn."""
        draw = self.draw(who)
        for _ in range(6):
            await asyncio.sleep(0.7 * draw.random())
            acknowledged = self.model.acknowledged
            latest = await again(lambda: client.latest("sales"))
            if latest < acknowledged:
                raise Violation(f"{who} finds {latest} the last time, and {acknowledged} was acknowledged")
            as_of = draw.choice([None, latest - draw.randrange(1500), latest + draw.randrange(300)])
            try:
                if draw.random() < 0.3:
                    await self.snapshot(client, who, as_of)
                else:
                    await self.subscribe(client, who, as_of, draw)
            except TooLate:
                self.late += 1
                forgotten = await again(lambda: client.latest("sales")) - _HISTORY_S * 1000
                if as_of is None or as_of >= forgotten:
                    raise Violation(
                        f"{who} cannot read {as_of}, and it is kept from {forgotten} on"
                    ) from None

    async def snapshot(self, client: Collections, who: str, as_of: int | None) -> Counter[Row]:
        """Contents at a time, or at the last one."""
        at = await again(lambda: client.latest("sales")) if as_of is None else as_of
        found = await again(lambda: client.snapshot("sales", at, weighted=True))
        reader = Accumulated()
        reader.take(Span(at, at + 1, [(at, each) for each in found.to_batches() if each.num_rows]))
        self.model.seen.append((f"a snapshot of {who}", reader))
        return reader.now

    async def subscribe(self, client: Collections, who: str, as_of: int | None, draw: Random) -> None:
        """Follow for a while, slowly at times; also if the store fails in the middle of it, what was told is right."""
        reader = Accumulated()
        try:
            async with aclosing(client.subscribe("sales", as_of, snapshot=True)) as spans:
                for _ in range(draw.randrange(2, 12)):
                    reader.take(await anext(spans))
                    await asyncio.sleep(draw.choice([0.0, 0.0, 0.1, 3 * _HISTORY_S]) * draw.random())
        except TooLate as error:
            if reader.spans:
                raise Violation(f"{who} has lost its hold: {error}") from None
            raise
        except TROUBLES:
            pass
        if reader.spans:
            self.model.seen.append((who, reader))


async def again(act: Callable[[], Awaitable[T]]) -> T:
    """Until the store does not fail it."""
    while True:
        try:
            return await act()
        except TROUBLES:
            await asyncio.sleep(0.01)


async def made(client: Collections, rendition: str, shards: int) -> None:
    """Make a rendition; it may be that it is made already."""
    try:
        await client.new_rendition("sales", rendition=rendition, shards=shards)
    except RenditionRefused as error:
        if f"already has a rendition {rendition}, " not in str(error):
            raise


async def dropped(client: Collections, rendition: str) -> None:
    """Drop a rendition; it may be that it is dropped already."""
    with suppress(RenditionUnknown):
        await client.drop_rendition("sales", rendition)
