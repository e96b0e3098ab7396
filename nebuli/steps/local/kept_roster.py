"""`KeptRoster`: the members of a circuit of this process, whose state is at one place, wherever their processes run."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nebuli.dataflow import SteppedCircuit
from nebuli.steps.coordinator.generation import Generation
from nebuli.steps.logs.epoch_log import EpochLog
from nebuli.steps.member.delivery import Deliveries
from nebuli.steps.member.member_order import MemberOrder
from nebuli.steps.member.member_store import own_output_log
from nebuli.steps.member.scaling.layout import Layout, Takeover
from nebuli.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from nebuli.steps.coordinator.member_connection import MemberConnection
    from nebuli.steps.coordinator.member_homes import Home, Members
    from nebuli.steps.local.kept_state import KeptState
    from nebuli.steps.logs.output_log import OutputLog
    from nebuli.steps.member.inputs.step_inputs import LeftOut
    from nebuli.steps.stepped_query import SteppedQuery
    from nebuli.store.store_url import StorePlace
    from netchannel import ReceiverServer, SenderServer
    from placement.plan import Late


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The same for all members of a run, see `nebuli.steps.local.local_run.LocalRun`."""

    home: Home
    hosts: Sequence[str]
    max_state_bytes: int
    late: Late
    keep_output_bytes: int | None
    keep_contents_bytes: int | None
    left_out: tuple[LeftOut, ...]
    awaits_growth: bool
    sender: SenderServer
    receiver: ReceiverServer
    secret: str


class KeptRoster:
    """Members of the query that ``state`` has, of ``generation``; ``epochs`` is the coordinator's store.

    ``scaled`` is called with the number of members that there are, whenever that changes.
    """

    def __init__(
        self,
        state: KeptState,
        query: SteppedQuery,
        generation: int,
        *,
        epochs: Store,
        surroundings: Surroundings,
        scaled: Callable[[int], None],
    ) -> None:
        self.query = query
        self._after = query
        self._state = state
        self._generation = generation
        self._epochs = epochs
        self._around = surroundings
        self._scaled = scaled

    async def first(self) -> Generation:
        """Members with the stores that are there."""
        self._scaled(self.query.plan.members)
        return await self._made(self.query, self._generation)

    def wanted(self, members: int) -> int:
        """The number itself."""
        return members

    def number(self, wanted: int) -> int:
        """The number itself."""
        return wanted

    def has(self, wanted: int, _: Generation) -> bool:
        """True if there are so many."""
        return wanted == self.query.plan.members

    async def candidates(self, wanted: int, before: Generation) -> Generation:
        """So many members, with stores of their own."""
        self._after = self.query.over(wanted)
        layout = Layout.of(self._after.plan, self._after.feeds)
        takeover = Takeover(transfer=layout.transfer, before=before.plan.members)
        return await self._made(self._after, self._generation + 1, layout, takeover)

    async def become(self, _: Generation) -> None:
        """Note that the state is theirs."""
        await asyncio.to_thread(self._state.belong, self._after, self._generation + 1)
        self._generation += 1
        self.query = self._after
        self._scaled(self.query.plan.members)

    async def tidy(self) -> None:
        """Delete stores of other members."""
        await asyncio.to_thread(self._state.forget_others, self._generation)

    async def release(self, before: Generation) -> None:
        """Nothing: processes of this machine and of Spark end with their `Members`."""

    async def close(self) -> None:
        """Nothing: nothing is left to be taken away."""

    async def _made(
        self,
        query: SteppedQuery,
        generation: int,
        layout: Layout | None = None,
        takeover: Takeover | None = None,
    ) -> Generation:
        around, places = self._around, self._state.members(generation, query.plan.members)
        orders = [self._order(query, member, place, takeover) for member, place in enumerate(places)]

        def members(lines: Sequence[MemberConnection], done: Callable[[], int]) -> Members:
            return around.home.members(orders, lines, around.receiver, done)

        return Generation(
            query.circuit,
            query.plan,
            await EpochLog.open(self._epochs, query.circuit),
            sender=around.sender,
            receiver=around.receiver,
            members=members,
            sinks=lambda: _sinks(query, places),
            layout=layout,
        )

    def _order(
        self, query: SteppedQuery, member: int, place: StorePlace, takeover: Takeover | None
    ) -> MemberOrder:
        around = self._around
        return MemberOrder(
            circuit=query.circuit,
            member=member,
            plan=query.plan,
            feeds=query.feeds[member],
            external=bool(query.external),
            store=place,
            listen=f"{around.hosts[member % len(around.hosts)]}:0",
            secret=around.secret,
            max_state_bytes=around.max_state_bytes,
            late=around.late,
            keep_output_bytes=around.keep_output_bytes,
            keep_contents_bytes=around.keep_contents_bytes,
            left_out=around.left_out,
            awaits_growth=around.awaits_growth,
            takeover=takeover,
        )


@asynccontextmanager
async def _sinks(query: SteppedQuery, places: Sequence[StorePlace]) -> AsyncIterator[Deliveries]:
    """The sinks of a query, from the stores of its members, which are made if they are not there."""
    schemas = SteppedCircuit(query.plan, 0).outputs
    logs: dict[str, OutputLog] = {}
    async with AsyncExitStack() as stack:
        for member, place in enumerate(places):
            store = await stack.enter_async_context(Store.at(place))
            log = await own_output_log(store, query.plan, member, schemas)
            if log is not None:
                logs |= dict.fromkeys(log.schemas.keys() & schemas.keys(), log)
        sinks = Deliveries(logs, {output: query.targets[output] for output in logs})
        await sinks.begin()
        yield sinks
