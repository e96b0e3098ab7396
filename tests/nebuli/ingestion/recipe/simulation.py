"""Several instances of one ingestion over a store that fails, all in virtual time: a run is a function of its seed.

Messages come into a source that forgets what it is told that nobody needs; instances are killed and begin again; two
read what is written. At the end the recorded addresses say what the contents had to be at each time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from nebuli import Collections
from nebuli.ingestion.decoding.decoder import Facts
from nebuli.ingestion.decoding.typed_columns import TypedColumns
from nebuli.ingestion.errors import IngestionError, SourceConflict
from nebuli.ingestion.message_addresses import Messages
from nebuli.ingestion.readers.seen_files import SeenFiles
from nebuli.ingestion.recipe import turns as turns_of_all
from nebuli.ingestion.recipe.message_check import Checked
from nebuli.ingestion.recipe.reclocking import Remap
from nebuli.ingestion.recipe.stage import Stage, Target
from nebuli.ingestion.recipe.timed_messages import Reclocked
from nebuli.ingestion.recipe.turns import Turns
from nebuli.store.errors import StorageError, StoreFailed, Unclear
from tests.nebuli.ingestion.recipe.message_log import CARRIED, MessageLog, silent
from tests.nebuli.ingestion.recipe.pairs import Pairs, paired
from tests.nebuli.store.collections.rows import Accumulated
from tests.support.simulated_store import SimulatedStore
from tests.support.virtual_time import VirtualLoop

TROUBLES = StoreFailed, Unclear
_DEADLINE_S = 3600.0
_EPOCH_MS = 1_700_000_000_000
_PAIRS = 60
_LIVES = 4
_RELEASED_S = 120.0
"""Virtual seconds within which all instances are done, however the store fails them."""


class Violation(AssertionError):
    """A promise that was broken."""


@dataclass(frozen=True, slots=True)
class Report:
    """What there was in a run."""

    times: int
    kills: int
    failures: int
    released: int
    most_retained: int
    faults: Counter[str]
    virtual_s: float


def simulate(seed: int, *, instances: int = 3, back_ms: int = 0) -> Report:
    """One run; from its middle on the clocks are back by so much. Raises Violation."""
    loop = VirtualLoop()
    store = SimulatedStore(loop, seed)
    with (
        asyncio.Runner(loop_factory=lambda: loop) as runner,
        store.in_place(),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(turns_of_all, "random", Random(f"{seed} turns"))
        return runner.run(Simulation(store, seed, instances, back_ms).run())


class Salted(TypedColumns):
    """A decoder that draws: what it has drawn for some messages is a fact."""

    def __init__(self, draw: Random) -> None:
        super().__init__(CARRIED, source="out")
        self._draw = draw

    async def facts(self, messages: Messages, known: Mapping[str, bytes]) -> Facts:
        wanted = {salt_of(messages.part, int(address)) for address in messages.addresses}
        return {key: self._draw.randbytes(2) for key in sorted(wanted - {*known})}

    def decode(self, messages: Messages, facts: Mapping[str, bytes]) -> Messages:
        salts = [
            int.from_bytes(facts[salt_of(messages.part, int(address))]) for address in messages.addresses
        ]
        values = pc.add(messages.rows.column("value"), pa.array(salts, pa.int64()))
        return messages.made_of(messages.rows.set_column(1, "value", values))


def salt_of(part: str, address: int) -> str:
    """The key of the fact of a message; some have the same."""
    return f"salt of {part} {address // 10}"


class Simulation:
    """The source, the instances, the readers, and what is known of them."""

    def __init__(self, store: SimulatedStore, seed: int, instances: int, back_ms: int) -> None:
        self.store = store
        self.seed = seed
        self.instances = instances
        self.back_ms = back_ms
        self.log = MessageLog()
        self.kills = self.failures = 0
        self.most_retained = 0
        self.is_over = False
        self.lowest = 0

    async def run(self) -> Report:
        async with asyncio.timeout(_DEADLINE_S):
            self.store.calm = True
            async with self.client("maker") as maker:
                for name in ("out", "out.waiting"):
                    await maker.create(name, CARRIED, timed="writers", keep=3600)
                await Remap.opened(maker._store, "remap", maker.clock)
                await (await maker._store.open_shard("remap")).hold("audit", 0)
            self.store.calm = False
            async with asyncio.TaskGroup() as group:
                adding = group.create_task(self.add())
                living = [
                    group.create_task(self.instance(f"instance {each}")) for each in range(self.instances)
                ]
                readers = [group.create_task(self.read(f"reader {each}")) for each in range(2)]
                watching = group.create_task(self.watch())
                await adding
                await self.until_released()
                self.is_over = True
                seen = [await each for each in readers]
                for each in [*living, watching]:
                    each.cancel()
            return await self.check(seen)

    def draw(self, who: str) -> Random:
        return Random(f"{self.seed} {who}")

    def now(self, skew_ms: int = 0) -> int:
        passed = round(self.store.loop.now * 1000)
        return _EPOCH_MS + passed + skew_ms - (self.back_ms if passed > 6000 else 0)

    def client(self, who: str) -> Collections:
        skew_ms = self.draw(f"clock of {who}").randrange(300)
        return Collections(self.store.opened(), now=lambda: self.now(skew_ms), tick_s=0.3)

    async def opened(self, who: str) -> Collections:
        while True:
            client = self.client(who)
            with suppress(*TROUBLES):
                return await client.__aenter__()
            await asyncio.sleep(0.05)

    # -- the source

    async def add(self) -> None:
        """Two messages of each key, far apart, in one part or another."""
        draw = self.draw("source")
        numbers = [*range(_PAIRS)] * 2
        draw.shuffle(numbers)
        while numbers:
            some = [
                (f"k{numbers.pop()}", draw.randrange(1000))
                for _ in range(min(draw.choice([1, 2, 5]), len(numbers)))
            ]
            self.log.add(draw.choice("ab"), some, skip=draw.choice([0, 0, 3]))
            self.most_retained = max(self.most_retained, self.retained())
            await asyncio.sleep(draw.choice([0.0, 0.1, 0.5, 3.0]) * draw.random())

    def retained(self) -> int:
        return sum(
            address >= self.log.trimmed.get(part, 0)
            for part, messages in self.log.parts.items()
            for address, _ in messages
        )

    async def until_released(self) -> None:
        """ST-ING-3: at last the source need not keep anything."""
        async with asyncio.timeout(_RELEASED_S):
            while self.retained():  # noqa: ASYNC110 - nobody else says so
                await asyncio.sleep(0.1)

    # -- the instances

    async def instance(self, who: str) -> None:
        """Ingest; killed at times that are drawn, it begins anew."""
        draw = self.draw(who)
        lives = _LIVES
        await asyncio.sleep(2 * draw.random())
        while True:
            client = await self.opened(who)
            threads = client._store.access.work
            life = asyncio.create_task(self.live(client, draw))
            await asyncio.wait([life], timeout=6 * draw.random() if lives else None)
            if life.done():
                self.failures += 1
                with suppress(StorageError, IngestionError):
                    try:
                        life.result()
                    except SourceConflict as error:
                        raise Violation(f"{who} has made something else of the same messages") from error
                await client.__aexit__(None, None, None)
                await asyncio.sleep(0.2 * draw.random())
                continue
            lives -= 1
            self.kills += 1
            threads.kill()
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
            await client.__aexit__(None, None, None)

    async def live(self, client: Collections, draw: Random) -> None:
        turns = Turns()
        remap = await Remap.opened(client._store, "remap", client.clock)
        work = client._store.access.work
        decoders = {"data": Checked(Salted(draw), lambda _: None, work, raw_source="data", rendition="r1")}
        reader = self.log.reader(draw.randrange(1 << 30))
        await Stage(
            client._store,
            client,
            Target("out", "r1"),
            Reclocked(remap, {"data": lambda: reader}, decoders, turns, silent, seen={"data": SeenFiles()}),
            decoders=decoders,
            envelope=Pairs(),
            facts=remap,
            turns=turns,
        ).run()

    # -- what is seen

    async def watch(self) -> None:
        """ST-ING-22: the lowest write frontier never goes back."""
        client = await self.opened("watcher")
        while True:
            with suppress(*TROUBLES):
                found = [await client.describe(name) for name in ("out", "out.waiting")]
                lowest = min(each.renditions[0].upper for each in found)
                if lowest < self.lowest:
                    raise Violation(f"the frontier has gone back from {self.lowest} to {lowest}")
                self.lowest = lowest
            await asyncio.sleep(0.05)

    async def read(self, who: str) -> Accumulated:
        """All that is written, for as long as something is."""
        client = await self.opened(who)
        reader = Accumulated()
        while True:
            with suppress(*TROUBLES):
                start = reader.upper - 1 if reader.spans else 0
                async with aclosing(client.subscribe("out", start, snapshot=not reader.spans)) as spans:
                    async for span in spans:
                        reader.take(span)
                        if self.is_over and reader.upper > self.lowest:
                            await client.__aexit__(None, None, None)
                            return reader
            await asyncio.sleep(0.05)

    async def check(self, seen: list[Accumulated]) -> Report:
        """By the recorded addresses, at each time."""
        self.store.calm = True
        async with self.client("auditor") as client:
            remap = await client._store.open_shard("remap")
            await remap.refresh()
            known: dict[str, int] = {}
            salts: dict[str, int] = {}
            times = 0
            bindings = [(0, dict(known))]
            updates = await remap.between(0, remap.upper)
            for at, rows in sorted(updates, key=lambda each: each[0]):
                for row in sorted(
                    rows.to_pylist(), key=lambda row: (row["kind"] == "address", row["_weight"])
                ):
                    if row["kind"] == "fact":
                        salts.setdefault(row["source"], int.from_bytes(row["value"]))
                    elif row["_weight"] > 0:
                        part, address, before = row["part"], row["address"], known.get(row["part"], 0)
                        if before > address:
                            raise Violation(f"an address goes back at {at}")
                        for own, _ in self.log.parts[part]:
                            if before <= own < address and salt_of(part, own) not in salts:
                                raise Violation(
                                    f"ST-VAR-3: {part} {own} is there at {at}, and its fact is not"
                                )
                        known[part] = address
                bindings.append((at, dict(known)))
            all_ = {
                (part, address): (key, value + salts[salt_of(part, address)])
                for part, messages in self.log.parts.items()
                for address, (key, value) in messages
            }
            for reader in seen:
                for (at, addresses), (end, _) in zip(
                    bindings, [*bindings[1:], (reader.upper, {})], strict=True
                ):
                    available = [
                        row for (part, address), row in all_.items() if address < addresses.get(part, 0)
                    ]
                    for time in {at, end - 1}:
                        if time >= reader.upper or time < at:
                            continue
                        times += 1
                        if (found := reader.at(time)) != paired(available):
                            raise Violation(
                                f"at {time} there is {found - paired(available)} too much, and "
                                f"{paired(available) - found} is missing"
                            )
            final = Counter(tuple(row.values()) for row in (await client.snapshot("out")).to_pylist())
            if final != paired([*all_.values()]) or final.total() != 2 * _PAIRS:
                raise Violation(f"at the end there are {final.total()} rows")
            left = await client.snapshot("out.waiting")
            if left.num_rows:
                raise Violation(f"{left.num_rows} wait for ever")
        return Report(
            times, self.kills, self.failures, sum(self.log.trimmed.values()), self.most_retained,
            self.store.seen, self.store.loop.now,
        )  # fmt: skip
