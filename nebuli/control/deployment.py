"""The fragments of a query on the workers of its nodes: given to them, asked for, taken away."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import placement
from nebuli.control.errors import SUSPECTS
from nebuli.rpc.ids import local_id
from nebuli.rpc.status import Cause, FragmentState, FragmentStatus
from nebuli.rpc.worker_client import WorkerRefused, WorkerUnreachable
from nebuli.rpc.worker_pb2 import Refusal
from placement.plan import Fragment, Late, ViewOperator

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

    from nebuli.rpc.worker_client import WorkerClient
    from placement import Query, StrategyName
    from placement.stepped_plan import AnyFragment
    from topology import Topology

__all__ = [
    "Active",
    "Fleet",
    "Located",
    "Place",
    "deploy",
    "end",
    "end_what_runs_on",
    "forget",
    "fragments_of",
    "is_forgotten",
    "register",
    "running_after",
    "start",
    "statuses_of",
    "stop",
    "suspect",
    "views_of",
]

_POLL_S = 0.1
_NOT_IN_ORDER = (FragmentState.REGISTERED, FragmentState.FAILED, FragmentState.STOPPED)
_FORGOTTEN = (
    "its worker does not know it: the worker was restarted without its state, or the query was unregistered"
)


class Fleet(Protocol):
    """The workers that a query may be given to."""

    def client(self, node: str) -> WorkerClient:
        """How to ask the worker of a node."""

    async def prepare(self, nodes: Iterable[str]) -> None:
        """Have workers at these nodes, as far as that is in one's hands."""


class Located(Protocol):
    """A fragment of a plan, and where it is asked for: at a node, by the id that it has there."""

    @property
    def fragment(self) -> str:
        """The id that the plan gives it."""

    @property
    def node(self) -> str:
        """The address of its node."""

    @property
    def id(self) -> str:
        """The id that it has at its worker."""


class Place(NamedTuple):
    """A `Located`."""

    fragment: str
    node: str
    id: str


@dataclass(frozen=True, slots=True)
class Active:
    """A query as it is deployed now: under which id, and without which nodes.

    ``left`` is what could not be taken away yet of earlier deployments.
    """

    deployment: str
    without: tuple[str, ...]
    fragments: tuple[AnyFragment, ...]
    left: tuple[Place, ...] = ()

    @property
    def root(self) -> AnyFragment:
        """The fragment with the query's sink; of a query in steps the coordinator."""
        return self.fragments[-1]

    @property
    def places(self) -> tuple[Place, ...]:
        """The places of its fragments, in their order."""
        return tuple(Place(each.id, each.node, local_id(self.deployment, each.id)) for each in self.fragments)


def fragments_of(
    query: Query,
    model: Topology,
    seed: int,
    deployment: str,
    without: Collection[str] = (),
    *,
    strategy: StrategyName = "bottom-up",
    late: Late = Late.COUNT,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Fragment, ...]:
    """The fragments of a query, placed without some nodes. Raises PlacementError.

    Equal arguments, equal fragments, as far as `placement.place` gives equal placements; its warnings are passed on.
    """
    placed = placement.place(query, model.without(without), seed, strategy)
    if placed.note:
        say(placed.note)
    fragments = placement.with_deployment(placement.decompose(placed).fragments, deployment)
    return tuple(fragment.model_copy(update={"late": late}) for fragment in fragments)


async def deploy(active: Active, fleet: Fleet) -> None:
    """Give the fragments to workers, and start them. Raises as `WorkerClient`; `end` takes away what is there then."""
    await register(active, fleet)
    for place in reversed(active.places):  # as in `start`
        await fleet.client(place.node).start(place.id)


async def register(active: Active, fleet: Fleet) -> None:
    """Give the fragments to workers. Raises as `WorkerClient`; `forget` takes away what is there then."""
    for fragment, place in zip(active.fragments, active.places, strict=True):
        await fleet.client(fragment.node).register(fragment, place.id)


async def start(
    fragments: Iterable[Located], fleet: Fleet, *, closes: bool = False, left_out: str = ""
) -> None:
    """Start those that are registered. Raises as `WorkerClient`; what was started is stopped again then.

    ``closes``: event time of a query in steps ends with this run. ``left_out``: as of `WorkerClient.start`, for all.

    Nothing is started where a worker does not answer: what was stopped once cannot be started again. For the same
    reason the last one is the first, which writes the result: its place may be in use.
    """
    fragments = list(reversed(list(fragments)))
    for status in await statuses_of(fragments, fleet):
        if isinstance(status, WorkerUnreachable):
            raise status
    started: list[Located] = []
    try:
        for each in fragments:
            client = fleet.client(each.node)
            await client.start(each.id, closes=closes and not started, left_out=left_out)
            started.append(each)
    except (WorkerRefused, WorkerUnreachable):
        await stop(started, fleet)
        raise


async def end_what_runs_on(
    fragments: Iterable[Located], fleet: Fleet, timeout_s: float
) -> list[FragmentStatus]:
    """Stop what still runs of a query of which something has failed, was stopped, or was not started.

    Waits for its end, but not longer than that. How all are that were seen; none if there was no reason to stop any. A
    query runs in order also where something has finished. Nothing is stopped where a worker does not answer: raises
    WorkerUnreachable. Fragments that a worker does not know are ignored.
    """
    fragments = list(fragments)
    found: list[FragmentStatus] = []
    for each in await statuses_of(fragments, fleet):
        if isinstance(each, WorkerUnreachable):
            raise each
        if not is_forgotten(each):
            found.append(each)
    if not any(each.state in _NOT_IN_ORDER for each in found):
        return []
    runs = {each.id for each in found if each.state is FragmentState.RUNNING}
    await stop([each for each in fragments if each.id in runs], fleet)
    await running_after(fragments, fleet, timeout_s)
    return found


def views_of(fragments: Iterable[AnyFragment]) -> dict[str, tuple[str, ViewOperator]]:
    """The views of a query by what they are read by: each with the address of its node."""
    return {
        operator.name or operator.id: (fragment.node, operator)
        for fragment in fragments
        for operator in (fragment.own if isinstance(fragment, Fragment) else fragment.operators)
        if isinstance(operator, ViewOperator)
    }


def is_forgotten(status: FragmentStatus) -> bool:
    """True if the fragment's worker answers, and does not know it."""
    return status.error == _FORGOTTEN


def suspect(statuses: Iterable[FragmentStatus]) -> FragmentStatus | None:
    """Return the failed fragment that is the likely cause; None if none has failed."""
    failed = [each for each in statuses if each.state is FragmentState.FAILED]
    return min(failed, key=lambda status: SUSPECTS.index(status.cause), default=None)


async def stop(
    fragments: Iterable[Located], fleet: Fleet, *, at_once: bool = False
) -> list[WorkerUnreachable]:
    """Ask all to end, or end their processes at once; harmless where they have. Those that could not be asked."""
    errors = await _ask_all(fragments, fleet, lambda client, id_: client.stop(id_, at_once=at_once))
    return [error for error in errors if isinstance(error, WorkerUnreachable)]


async def forget(
    fragments: Iterable[Located], fleet: Fleet
) -> list[WorkerUnreachable | WorkerRefused | None]:
    """Have all forgotten that do not run. For each, in their order, why that could not be; None if it was."""
    return await _ask_all(fragments, fleet, lambda client, id_: client.unregister(id_))


async def running_after(fragments: Iterable[Located], fleet: Fleet, timeout_s: float) -> list[FragmentStatus]:
    """Wait for the end of those whose workers answer, but not longer than that; which of them run then."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    fragments = list(fragments)
    while True:
        found = await statuses_of(fragments, fleet)
        running = [
            each for each in found if isinstance(each, FragmentStatus) and each.state is FragmentState.RUNNING
        ]
        if not running or loop.time() >= deadline:
            return running
        await asyncio.sleep(_POLL_S)


async def end(
    places: Sequence[Place], fleet: Fleet, timeout_s: float
) -> dict[Place, FragmentStatus | WorkerUnreachable]:
    """Stop all, and wait for those whose workers answer, but not longer than that; how each is then."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        await stop(places, fleet)
        found = dict(zip(places, await statuses_of(places, fleet), strict=True))
        ending = [
            each for each in found.values() if isinstance(each, FragmentStatus) and not each.state.is_final
        ]
        if not ending or loop.time() >= deadline:
            return found
        await asyncio.sleep(_POLL_S)


async def statuses_of(fragments: Iterable[Located], fleet: Fleet) -> list[FragmentStatus | WorkerUnreachable]:
    """How each is, in their order; what its worker does not know, is lost."""
    fragments = list(fragments)
    nodes = list({each.node for each in fragments})
    answers = await asyncio.gather(*(_statuses(fleet.client(node)) for node in nodes))
    by_node = dict(zip(nodes, answers, strict=True))
    return [_status_in(by_node[each.node], each) for each in fragments]


async def _statuses(client: WorkerClient) -> dict[str, FragmentStatus] | WorkerUnreachable:
    try:
        return {status.id: status for status in await client.statuses()}
    except WorkerUnreachable as error:
        return error


def _status_in(
    answer: dict[str, FragmentStatus] | WorkerUnreachable, each: Located
) -> FragmentStatus | WorkerUnreachable:
    if isinstance(answer, WorkerUnreachable):
        return answer
    lost = FragmentStatus(each.id, each.fragment, FragmentState.FAILED, Cause.LOST, _FORGOTTEN)
    return answer.get(each.id, lost)


async def _ask_all(
    fragments: Iterable[Located], fleet: Fleet, ask: Callable[[WorkerClient, str], Awaitable[None]]
) -> list[WorkerUnreachable | WorkerRefused | None]:
    """Return the error of each; a worker that does not know it any more counts as done."""

    async def one(each: Located) -> WorkerUnreachable | WorkerRefused | None:
        try:
            await ask(fleet.client(each.node), each.id)
        except WorkerUnreachable as error:
            return error
        except WorkerRefused as error:
            return None if error.refusal.reason == Refusal.REASON_UNKNOWN_ID else error
        return None

    return await asyncio.gather(*map(one, fragments))
