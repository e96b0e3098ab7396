"""Views of a circuit of real processes: what is read is what a model has at the step that the answer names."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from nebuli import blocking
from nebuli.circuits import Circuit
from nebuli.circuits.served_run import served
from nebuli.circuits.views.served_lookups import served_lookups
from nebuli.rpc.trust import NO_TRUST
from nebuli.steps.local.local_run import LocalRun
from nebuli.steps.protocol.triggers import TriggerSettings
from nebuli.steps.stepped_query import stepped_query
from nebuli.views import Lookup, LookupTimedOut, UnknownView, Views, WrongKey, WrongView
from placement import parse_query
from tests.nebuli.circuits.conftest import Rows, added, batch, read_until, totals, zset
from topology import parse_topology

pytestmark = [pytest.mark.processes, pytest.mark.long]

SHOPS = [f"shop-{number}" for number in range(12)]
TOPOLOGY = """
logical:
  - {name: sales, schema: [{name: shop, type: string}, {name: amount, type: int64}]}
nodes:
  - address: 127.0.0.1:27900
    sinks: [{name: rows, type: "Null"}, {name: totals, type: CSV, path: totals.csv}]
"""
QUERY = """
{"operators": [
  {"id": "a", "type": "source", "logical": "sales"},
  {"id": "by-amount", "type": "view", "input": "a", "key": ["amount"]},
  {"id": "rows", "type": "sink", "input": "by-amount", "sink": "rows"},
  {"id": "by-shop", "type": "aggregate", "input": "a", "by": ["shop"],
   "aggregates": {"sales": "count(*)", "amount": "sum(amount)"}},
  {"id": "seen", "type": "view", "input": "by-shop", "key": ["shop"], "name": "shops"},
  {"id": "totals", "type": "sink", "input": "seen", "sink": "totals"}
]}
"""


@dataclass
class Here:
    """A run, and where it is called and read."""

    run: LocalRun
    address: str
    views: str

    def kill(self, member: int, number: signal.Signals = signal.SIGKILL) -> None:
        process = self.run.members.process(member)
        if process is not None:
            psutil.Process(process).send_signal(number)


Serve = Callable[..., AbstractAsyncContextManager[Here]]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serve:
    monkeypatch.chdir(tmp_path)

    @asynccontextmanager
    async def serving(members: int = 2, checkpoint_s: float | None = None) -> AsyncIterator[Here]:
        topology = parse_topology(TOPOLOGY, "topology.yaml")
        query = stepped_query(parse_query(QUERY, "sales", "query.json"), topology, members)
        run = LocalRun(query, tmp_path / "state", tmp_path, TriggerSettings(checkpoint_s=checkpoint_s))
        began: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()

        async def serve_it() -> None:
            at = "127.0.0.1:0"
            async with run, served(run, at, NO_TRUST) as address, served_lookups(run, at, NO_TRUST) as views:
                began.set_result((address, views))
                await run.until_shut_down()

        async with asyncio.timeout(150), asyncio.TaskGroup() as group:
            group.create_task(serve_it())
            yield Here(run, *await began)
            await run.shut_down()

    return serving


async def expected_at(circuit: Circuit, last: Rows) -> list[Rows]:
    """What all rows add up to before each step, by the output's log, which comes to ``last``."""
    changes = await read_until(circuit, "rows", last)
    assert [step for step, _ in changes] == list(range(len(changes)))
    found: list[Rows] = [Counter()]
    for _, change in changes:
        found.append(added(found[-1], change))
    return found


def shown(found: Lookup | pa.RecordBatch) -> Rows:
    rows = found.rows if isinstance(found, Lookup) else found
    return Counter(tuple(row.values()) for row in rows.to_pylist())


def of_shops(rows: Rows, shops: Sequence[str]) -> Rows:
    return Counter({row: weight for row, weight in totals(rows).items() if row[0] in shops})


@dataclass
class Reader:
    """Reads all the time, and keeps what it has read."""

    circuit: Circuit
    views: Views
    seed: int
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    pushed: Rows = field(default_factory=Counter)
    lookups: list[tuple[Sequence[str], Lookup]] = field(default_factory=list)
    amounts: list[tuple[Sequence[int], Lookup]] = field(default_factory=list)
    watched: list[tuple[int, Rows]] = field(default_factory=list)

    async def push(self) -> None:
        """Rows, some of which are taken back later."""
        choose, sequence = random.Random(self.seed), 0
        while not self.enough.is_set():
            change: Rows = Counter((choose.choice(SHOPS), choose.randrange(20)) for _ in range(5))
            there = sorted(row for row, weight in self.pushed.items() if weight > 0)
            change.subtract(choose.sample(there, min(2, len(there))))
            rows = [
                (str(shop), int(str(amount)), weight) for (shop, amount), weight in change.items() if weight
            ]
            await self.circuit.push(
                "a", zset(*rows), producer=f"p{sequence % 3}-{self.seed}", sequence=sequence // 3
            )
            self.pushed = added(self.pushed, change)
            sequence += 1

    async def look_up(self) -> None:
        choose = random.Random(self.seed + 1)
        while not self.enough.is_set():
            shops = choose.sample([*SHOPS, "nowhere"], choose.randint(1, 6))
            self.lookups.append((shops, await self.views.get("shops", shops, 60)))
            amounts = choose.sample(range(20), choose.randint(1, 6))
            self.amounts.append((amounts, await self.views.get("by-amount", amounts, 60)))

    async def watch(self) -> None:
        async with aclosing(self.views.watch_steps("shops", SHOPS[0])) as changes:
            async for step, rows in changes:
                self.watched.append((step, shown(rows)))
                if self.enough.is_set():
                    return

    def check(self, expected: Sequence[Rows]) -> None:
        """All that was read is what there was at the step that the answer has; and steps did not go back."""
        for shops, found in self.lookups:
            assert found.step is not None
            assert all(found.hits)
            assert shown(found) == of_shops(expected[found.step], shops), f"step {found.step}, {shops}"
        for amounts, found in self.amounts:
            assert found.step is not None
            rows = expected[found.step]
            assert shown(found) == Counter({row: n for row, n in rows.items() if row[1] in amounts})
        steps = [
            found.step or 0 for pair in zip(self.lookups, self.amounts, strict=False) for _, found in pair
        ]
        assert steps == sorted(steps)
        for step, rows in self.watched:
            assert rows == of_shops(expected[step], [SHOPS[0]])
        assert [step for step, _ in self.watched] == sorted({step for step, _ in self.watched})


@asynccontextmanager
async def reading(here: Here, seed: int) -> AsyncIterator[Reader]:
    """Pushes and reads, while the context is; then all that was read is checked."""
    async with Circuit(here.address) as circuit, Views(here.views) as views:
        reader = Reader(circuit, views, seed)
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(reader.watch())
            work = [group.create_task(each) for each in (reader.push(), reader.look_up())]
            yield reader
            reader.enough.set()
            await asyncio.gather(*work)
            watching.cancel()
        reader.check(await expected_at(circuit, reader.pushed))
        final = await views.get("shops", [*SHOPS, "nowhere"], 30)
        assert shown(final) == totals(reader.pushed)


async def made(here: Here, steps: int) -> None:
    """Wait until so many steps more are made."""
    until = here.run.coordinator.complete + steps
    async with asyncio.timeout(60):
        while here.run.coordinator.complete < until:  # noqa: ASYNC110 - of whichever coordinator there is
            await asyncio.sleep(0.05)


async def test_lookups_are_what_a_model_has_at_their_step_over_kills_and_other_members(serve: Serve) -> None:
    """Keys of both members at one step, beside steps and checkpoints; a member is killed, and others take over."""
    async with serve(members=2, checkpoint_s=0.3) as here:
        async with reading(here, seed=1) as reader:
            await made(here, 8)
            for member in (1, 0):
                here.kill(member)
                await made(here, 6)
            await reader.circuit.scale(3)
            await made(here, 6)
        owners = {found.step for shops, found in reader.lookups if len(shops) > 3}
        assert len(owners) > 5, "many keys were looked up at many steps"
        assert len(reader.watched) > 3


async def test_a_view_is_in_the_checkpoint_that_a_further_run_begins_with(serve: Serve) -> None:
    """Also with another number of members; SQL says the same at its step."""
    rows: Rows = Counter({(shop, number): 1 for number, shop in enumerate(SHOPS)})
    async with serve(members=2) as here, Circuit(here.address) as circuit:
        await circuit.push(
            "a", batch(*((str(shop), int(str(n))) for shop, n in rows)), producer="p", sequence=0
        )
        await read_until(circuit, "rows", rows)
    for members in (3, 2):
        async with (
            serve(members=members) as here,
            Circuit(here.address) as circuit,
            Views(here.views) as views,
        ):
            found = await views.get("shops", SHOPS, 30)
            assert shown(found) == totals(rows)
            step, table = await circuit.query("SELECT shop, sales, amount FROM seen")
            assert Counter(tuple(row.values()) for row in table.to_pylist()) == totals(rows)
            assert found.step is not None
            assert step >= found.step
            status, other = sorted(await views.statuses(5), key=lambda each: each.name, reverse=True)
            assert (status.name, status.partial, status.lookups, status.hits) == ("shops", False, 12, 12)
            assert status.bytes > 0
            assert other.lookups == 0


async def test_who_does_not_answer_is_said_and_a_lookup_goes_on_when_it_is_back(serve: Serve) -> None:
    """Members are stopped: those that are asked are named at the deadline; without one they are waited for."""
    async with serve(members=2) as here, Circuit(here.address) as circuit, Views(here.views) as views:
        await circuit.push("a", batch(*((shop, 1) for shop in SHOPS)), producer="p", sequence=0)
        await read_until(circuit, "rows", Counter({(shop, 1): 1 for shop in SHOPS}))
        here.kill(1, signal.SIGSTOP)
        with pytest.raises(LookupTimedOut, match=r"no answer from member 1 of 2;") as caught:
            await views.get("shops", SHOPS, 0.5)
        assert (caught.value.found.rows.num_rows, len(caught.value.missing)) == (0, len(SHOPS))
        waiting = asyncio.create_task(views.get("shops", SHOPS, 60))
        await asyncio.sleep(0.2)
        here.kill(1)
        assert (await waiting).rows.num_rows == len(SHOPS)
        with pytest.raises(WrongKey, match="is not a valid shop"):
            await views.get("shops", [7], 5)
        with pytest.raises(UnknownView):
            await views.get("seen", ["x"], 0.2)
        with pytest.raises(WrongView, match="the query runs in steps, so its views come from its file"):
            await views.add('{"operators": []}')
        many = await views.get("by-amount", range(10_000), 30)
        assert (many.rows.num_rows, many.step) == (len(SHOPS), (await views.get("shops", ["x"], 5)).step)


async def test_programs_without_a_loop_read_the_same(serve: Serve) -> None:
    async with serve(members=2) as here, Circuit(here.address) as circuit:
        await circuit.push("a", batch(("north", 3)), producer="p", sequence=0)
        await read_until(circuit, "rows", Counter({("north", 3): 1}))

        def read() -> tuple[Lookup, tuple[int, list[dict[str, object]]], bool]:
            with blocking.Views(here.views) as views:
                changes = views.watch_steps("shops", "north")
                step, rows = next(changes)
                changes.close()
                return (
                    views.get("shops", ["north"], 5),
                    (step, rows.to_pylist()),
                    views.describe("shops").in_steps,
                )

        found, (step, rows), in_steps = await asyncio.to_thread(read)
        assert rows == found.rows.to_pylist() == [{"shop": "north", "sales": 1, "amount": 3}]
        assert (found.step, step, in_steps) == (1, 1, True)
