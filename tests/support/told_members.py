"""Members of a circuit in this process, each with a store, sockets and a line of its own, told what a test wants.

They are those of production, but for their sources: a test pushes. They listen on loopback addresses, as on hosts.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import pyarrow as pa

from nebuli.dataflow import SteppedCircuit
from nebuli.limits import DEFAULT_MAX_STATE_BYTES
from nebuli.steps.coordinator.coordinator import Coordinator
from nebuli.steps.coordinator.member_connection import MemberConnection
from nebuli.steps.logs.epoch_log import EpochLog
from nebuli.steps.logs.output_log import OutputLog
from nebuli.steps.member.calls.call_inbox import CallInbox
from nebuli.steps.member.coordinator_connections import CoordinatorConnections
from nebuli.steps.member.inputs.step_inputs import LeftOut
from nebuli.steps.member.member import Member
from nebuli.steps.member.member_order import MemberOrder
from nebuli.steps.member.member_run import opened
from nebuli.steps.member.member_store import LOG
from nebuli.steps.protocol import events as ev
from nebuli.steps.protocol import messages as say
from nebuli.steps.protocol.lockstep import Lockstep, Phase
from nebuli.steps.protocol.triggers import TriggerSettings
from nebuli.steps.stepped_query import SteppedQuery
from nebuli.store import Store
from netchannel import ReceiverServer, SenderServer
from placement import check_stepped
from tests.support.documents import op
from tests.support.documents import query as query_of
from tests.support.waiting import until_async
from topology import parse_topology

T = TypeVar("T")
QUIET = TriggerSettings(checkpoint_s=None)
_DEADLINE_S = 60.0
TOPOLOGY = parse_topology(
    """
logical:
  - {name: a, schema: [{name: n, type: int64}, {name: k, type: int64}]}
  - {name: b, schema: [{name: n, type: int64}, {name: k, type: int64}]}
  - {name: c, schema: [{name: n, type: int64}, {name: k, type: int64}]}
nodes:
  - address: 127.0.0.1:27900
    sinks: [{name: rows, type: CSV, path: rows.csv}, {name: sums, type: CSV, path: sums.csv}]
""",
    "topology.yaml",
)


def pushed_query(members: int, inputs: str = "a", spread: Iterable[str] = ()) -> SteppedQuery:
    """All rows of all inputs, and sums of them by k. Inputs have no sources; those in ``spread`` come in everywhere."""
    sources = [op("source", name, logical=name) for name in inputs]
    united = inputs[0]
    if len(inputs) > 1:
        sources.append(op("union", "u", inputs=list(inputs)))
        united = "u"
    operators = [
        *sources,
        op("aggregate", "g", input=united, by=["k"], aggregates={"rows": "count(*)", "sum": "sum(n)"}),
        op("sink", "rows", input=united, sink="rows"),
        op("sink", "sums", input="g", sink="sums"),
    ]
    query = query_of(*operators)
    plan = check_stepped(query, TOPOLOGY)
    return SteppedQuery.divided(plan, members, dict.fromkeys(inputs, ()), frozenset(spread))


def rows(schema: pa.Schema, numbers: Iterable[int], weight: int = 1) -> pa.RecordBatch:
    """A Z-set of rows with these numbers, and k the last digit."""
    found = list(numbers)
    return pa.record_batch([found, [n % 10 for n in found], [weight] * len(found)], schema=schema)


def numbers(batch: pa.RecordBatch) -> Counter[int]:
    """The weights by number."""
    counted: Counter[int] = Counter()
    for n, weight in zip(
        batch.column(0).to_pylist(), batch.column(batch.num_columns - 1).to_pylist(), strict=True
    ):
        counted[n] += weight
    return counted


class Members:
    """``query``'s members in a folder, which goes on where it was; on ``hosts`` of them, in turn."""

    def __init__(
        self, query: SteppedQuery, folder: Path, *, hosts: int = 1, left_out: Iterable[LeftOut] = ()
    ) -> None:
        self.query = query
        self.folder = folder
        self.count = query.plan.members
        self.members: list[Member] = []
        self.coordinator_lines: dict[int, CoordinatorConnections] = {}
        self.secret = secrets.token_urlsafe()
        self._hosts = hosts
        self._left_out = tuple(left_out)
        self._stacks: dict[int, AsyncExitStack] = {}

    async def __aenter__(self) -> Self:
        self.members = [await self.start(member) for member in range(self.count)]
        return self

    async def __aexit__(self, *exc: object) -> None:
        for member in [*self._stacks]:
            await self.end(member)

    async def start(self, member: int, listen: str | None = None) -> Member:
        """As a new process of it, which may listen where one before it did."""
        order = MemberOrder(
            circuit=self.query.circuit,
            member=member,
            plan=self.query.plan,
            feeds=(),
            external=True,
            store=self.store(member),
            listen=listen or f"127.100.{member % self._hosts + 1}.1:0",
            secret=self.secret,
            max_state_bytes=DEFAULT_MAX_STATE_BYTES,
            left_out=self._left_out,
        )
        stack = self._stacks[member] = AsyncExitStack()
        found = await stack.enter_async_context(opened(order))
        serve = CallInbox(found, order.circuit).serve
        lines = CoordinatorConnections(
            order.circuit, member, found.sender, found.receiver, found.told, serve=serve
        )
        self.coordinator_lines[member] = lines
        running = asyncio.create_task(found.run(lines))
        stack.push_async_callback(_cancelled, running)
        if member < len(self.members):
            self.members[member] = found
        return found

    async def end(self, member: int) -> None:
        """Without a word, and without a checkpoint."""
        await self._stacks.pop(member).aclose()

    def store(self, member: int) -> Path:
        return self.folder / f"member-{member}"

    async def push(
        self, member: int, found: pa.RecordBatch, *, handle: str = "a", producer: str = "p"
    ) -> None:
        """Into the log of a member, and say so."""
        to = self.members[member]
        await to.log.push(handle, found, producer=producer, sequence=to.log.next_sequence(producer))
        to.arrived(found.num_rows)

    async def push_numbers(self, member: int, pushed: Iterable[int], *, handle: str = "a") -> None:
        await self.push(member, rows(self.members[member].inputs[handle], pushed), handle=handle)

    async def steps(self) -> list[dict[int, int]]:
        """The steps of the versions of all members."""
        found = []
        for member in range(self.count):
            async with Store.at(self.store(member)) as store:
                found.append(await store.state_store(LOG).steps())
        return found

    async def output(self, name: str = "rows") -> list[pa.RecordBatch]:
        """An output, step by step."""
        async with Store.at(self.store(self.query.plan.homes[name])) as store:
            log = await OutputLog.open(store, LOG, self.own_outputs(name))
            return [await log.read(name, step) for step in range(log.first, log.last)]

    def own_outputs(self, name: str) -> Mapping[str, pa.Schema]:
        """The schemas of the outputs that are where this one is."""
        homes = self.query.plan.homes
        schemas = SteppedCircuit(self.query.plan, 0).outputs
        return {key: schema for key, schema in schemas.items() if homes[key] == homes[name]}

    @asynccontextmanager
    async def lines(self) -> AsyncIterator[list[MemberConnection]]:
        """Those of one coordinator."""
        async with (
            ReceiverServer("127.100.255.1:0", secret=self.secret) as receiver,
            SenderServer(secret=self.secret) as sender,
        ):
            yield [
                MemberConnection(self.query.circuit, number, member.receiver.address, sender, receiver)
                for number, member in enumerate(self.members)
            ]

    @asynccontextmanager
    async def told(self) -> AsyncIterator[Told]:
        """Lines to members, and what they say, without a coordinator."""
        async with self.lines() as lines:
            told = Told(lines)
            running = [asyncio.create_task(line.run(told.happen)) for line in lines]
            try:
                for line in lines:
                    await told.connected(line.member)
                yield told
            finally:
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)

    @asynccontextmanager
    async def coordinated(
        self,
        settings: TriggerSettings = QUIET,
        *,
        paused: bool = False,
        observe: Callable[[ev.Order], None] = lambda order: None,
    ) -> AsyncIterator[Coordinator]:
        """With a coordinator, which is left without a word; ``coordinator.run`` is its task's."""
        async with self.lines() as lines, Store.at(self.folder / "coordinator") as store:
            epochs = await EpochLog.open(store, self.query.circuit)
            coordinator = Coordinator(Lockstep(self.count, settings, paused=paused), epochs, lines, observe)
            running = asyncio.create_task(coordinator.run())
            coordinator.running = running  # type: ignore[attr-defined]
            try:
                yield coordinator
            finally:
                await _cancelled(running)


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], T], what: str) -> T:
    """The first true value."""

    async def look() -> T:
        return condition()

    return await until_async(look, what, _DEADLINE_S)


async def until_running(coordinator: Coordinator, epoch: int = 1) -> None:
    await until(
        lambda: coordinator.epoch >= epoch and coordinator.phase is Phase.RUNNING, f"epoch {epoch} runs"
    )


async def until_out(circuit: Members, expected: Counter[int]) -> None:
    """Until these rows are in the output, and no others."""
    async with asyncio.timeout(_DEADLINE_S):
        while (found := sum(map(numbers, await circuit.output()), Counter[int]())) != expected:
            assert found <= expected
            await asyncio.sleep(0.02)


class Told:
    """Whoever tells members what to do, message by message."""

    def __init__(self, lines: list[MemberConnection]) -> None:
        self.lines = lines
        self._heard: list[asyncio.Queue[ev.Event]] = [asyncio.Queue() for _ in lines]

    def happen(self, event: ev.Event) -> None:
        match event:
            case ev.Connected(member) | ev.Lost(member) | ev.Heard(member):
                self._heard[member].put_nowait(event)

    async def connected(self, member: int) -> None:
        assert await self._next(member) == ev.Connected(member)

    async def _next(self, member: int) -> ev.Event:
        async with asyncio.timeout(_DEADLINE_S):
            return await self._heard[member].get()

    def tell(self, message: say.FromCoordinator, *members: int) -> None:
        """To all, unless some are named."""
        for member in members or range(len(self.lines)):
            self.lines[member].tell(message)

    async def hear(self, kind: type[T], member: int = 0) -> T:
        """The next thing that a member says, which is of this kind."""
        event = await self._next(member)
        assert isinstance(event, ev.Heard), event
        assert isinstance(event.message, kind), event.message
        return event.message

    async def hear_all(self, kind: type[T]) -> list[T]:
        return [await self.hear(kind, member) for member in range(len(self.lines))]

    async def lost(self, member: int) -> str:
        """The next thing about a member is that it is gone; why."""
        event = await self._next(member)
        assert isinstance(event, ev.Lost), event
        return event.why

    def silent(self, member: int = 0) -> bool:
        """It has said nothing that was not heard."""
        return self._heard[member].empty()

    # -- the document's calls

    async def greet(self, epoch: int) -> list[say.Joined]:
        self.tell(say.Greet(epoch))
        return await self.hear_all(say.Joined)

    async def open(self, epoch: int, checkpoint: say.Checkpoint, addresses: Iterable[str]) -> None:
        self.tell(say.Open(epoch, checkpoint, tuple(addresses)))

    async def step(self, epoch: int, step: int) -> None:
        self.tell(say.Step(epoch, step, replayed=False))
        assert await self.hear_all(say.Stepped) == [say.Stepped(epoch, step)] * len(self.lines)

    async def checkpoint(self, epoch: int, attempt: int, step: int) -> None:
        self.tell(say.Prepare(epoch, attempt, step))
        await self.hear_all(say.Prepared)
        self.tell(say.Commit(epoch, attempt))
        await self.hear_all(say.Committed)
