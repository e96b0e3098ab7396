"""A circuit over three inputs that are pushed into, served by this process, with members in others."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from nebuli.circuits import Circuit, StepForgotten
from nebuli.circuits.served_run import served
from nebuli.rpc.trust import NO_TRUST, Trust
from nebuli.steps.local.local_run import LocalRun
from nebuli.steps.protocol.triggers import TriggerSettings
from nebuli.steps.stepped_query import stepped_query
from placement import parse_query
from tests.support.sockets import sockets
from topology import parse_topology

HANDLES = ("a", "b", "c")
TOPOLOGY = """
logical:
  - {name: sales, materialized: true, schema: [{name: shop, type: string}, {name: amount, type: int64}]}
nodes:
  - address: 127.0.0.1:27900
    sinks: [{name: rows, type: "Null"}, {name: totals, type: CSV, path: totals.csv}]
"""
QUERY = """
{"operators": [
  {"id": "a", "type": "source", "logical": "sales"},
  {"id": "b", "type": "source", "logical": "sales"},
  {"id": "c", "type": "source", "logical": "sales"},
  {"id": "all", "type": "union", "inputs": ["a", "b", "c"]},
  {"id": "rows", "type": "sink", "input": "all", "sink": "rows"},
  {"id": "by-shop", "type": "aggregate", "input": "all", "by": ["shop"],
   "aggregates": {"sales": "count(*)", "amount": "sum(amount)"}},
  {"id": "totals", "type": "sink", "input": "by-shop", "sink": "totals"}
]}
"""
Rows = Counter[tuple[object, ...]]
"""A Z-set: how often each row is there."""


def batch(*rows: tuple[str, int]) -> pa.RecordBatch:
    """Rows that are there once more each."""
    shops, amounts = [shop for shop, _ in rows], [amount for _, amount in rows]
    return pa.record_batch({"shop": pa.array(shops, pa.string()), "amount": pa.array(amounts, pa.int64())})


def zset(*rows: tuple[str, int, int]) -> pa.RecordBatch:
    """Rows with weights."""
    weights = pa.array([weight for _, _, weight in rows], pa.int64())
    return batch(*((shop, amount) for shop, amount, _ in rows)).append_column("_weight", weights)


def counted(zset: pa.RecordBatch) -> Rows:
    """What a Z-set of an output has, without rows of weight 0."""
    found: Rows = Counter()
    for *row, weight in zip(*(column.to_pylist() for column in zset.columns), strict=True):
        found[tuple(row)] += weight
    return nonzero(found)


def nonzero(rows: Rows) -> Rows:
    """Without rows of weight 0; negative ones stay."""
    return Counter({row: weight for row, weight in rows.items() if weight})


def added(a: Rows, b: Rows) -> Rows:
    """The sum."""
    found = Counter(a)
    found.update(b)
    return nonzero(found)


def totals(rows: Rows) -> Rows:
    """What the query's aggregate is of these rows, by hand."""
    shops = {str(shop) for shop, _ in rows}
    found: Rows = Counter()
    for shop in shops:
        of_shop = [(amount, weight) for (each, amount), weight in rows.items() if each == shop]
        count = sum(weight for _, weight in of_shop)
        if count:
            found[shop, count, sum(amount * weight for amount, weight in of_shop)] = 1  # type: ignore[operator]
    return found


async def read_until(circuit: Circuit, output: str, expected: Rows, first: int = 0) -> list[tuple[int, Rows]]:
    """The steps of an output until what they add up to is there; it does not come to pass that more is."""
    steps, found = [], Counter[tuple[object, ...]]()
    if found == expected:
        return []
    async for step, change in circuit.output(output, first):
        steps.append((step, counted(change)))
        found = added(found, steps[-1][1])
        if found == expected:
            return steps
    raise AssertionError(f"the circuit was shut down, with {found} in {output}, not {expected}")


async def refusal(circuit: Circuit) -> StepForgotten | None:
    """What is said of the first step of the rows, once it is not kept any more."""
    try:
        await anext(circuit.output("rows", 0))
    except StepForgotten as forgotten:
        return forgotten
    return None


@dataclass
class Served:
    """A run, and where it is called."""

    run: LocalRun
    address: str

    def kill(self, member: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a member's process, if it has one."""
        process = self.run.members.process(member)
        if process is not None:
            psutil.Process(process).send_signal(number)


def member_processes() -> list[psutil.Process]:
    """The processes of members that there are, and of those that are to take over: the template's children."""
    return [each for each in psutil.Process().children(recursive=True) if _is_member(each)]


def _is_member(process: psutil.Process) -> bool:
    try:
        return "nebuli member " in " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # also of one that has ended and is not waited for yet
        return False


Serve = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Serves the circuit, from a state that goes on, until it is left or shut down."""
    monkeypatch.chdir(tmp_path)

    @asynccontextmanager
    async def serving(
        members: int = 2,
        settings: TriggerSettings | None = None,
        trust: Trust = NO_TRUST,
        keep_output_bytes: int | None = None,
    ) -> AsyncIterator[Served]:
        topology = parse_topology(TOPOLOGY, "topology.yaml")
        query = stepped_query(parse_query(QUERY, "totals", "query.json"), topology, members)
        settings = settings or TriggerSettings(checkpoint_s=None)
        run = LocalRun(query, tmp_path / "state", tmp_path, settings, keep_output_bytes=keep_output_bytes)
        began: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def serve_it() -> None:
            async with run, served(run, "127.0.0.1:0", trust) as address:
                began.set_result(address)
                await run.until_shut_down()

        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            group.create_task(serve_it())
            yield Served(run, await began)
            await run.shut_down()

    return serving


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No socket outlives its test, but those of gRPC's own threads."""
    before = len(sockets())
    yield
    assert len(sockets()) <= before + 4
