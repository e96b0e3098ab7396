"""The fragments of a query on the workers of its nodes: given to them, asked for, taken away."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import placement
from nebuli.worker.client import WorkerRefused, WorkerUnreachable
from nebuli.worker.status import Cause, FragmentState, FragmentStatus
from nebuli.worker.worker_pb2 import Refusal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from nebuli.worker.client import WorkerClient
    from placement import Fragment, Query
    from topology import Topology

__all__ = ["Active", "Fleet", "ask_each", "deploy", "fragments_of", "status_in"]

_FORGOTTEN = (
    "its worker knows nothing of it: it was started anew without its state, or somebody has unregistered it"
)


class Fleet(Protocol):
    """The workers that a query may be given to."""

    def client(self, node: str) -> WorkerClient:
        """How to ask the worker of a node."""

    async def prepare(self, nodes: Iterable[str]) -> None:
        """Have workers at these nodes, as far as that is in one's hands."""


@dataclass(frozen=True, slots=True)
class Active:
    """A query as it is deployed now: under which id, without which nodes, and how workers call its fragments."""

    deployment: str
    without: tuple[str, ...]
    fragments: tuple[Fragment, ...]
    local_ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Fragment:
        """The fragment with the query's sink."""
        return self.fragments[-1]


def fragments_of(
    query: Query, model: Topology, seed: int, deployment: str, without: Collection[str] = ()
) -> tuple[Fragment, ...]:
    """The fragments of a query, placed without some nodes. Equal arguments, equal fragments. Raises PlacementError."""
    placed = placement.place(query, model.without(without), seed)
    return placement.with_deployment(placement.decompose(placed).fragments, deployment)


async def deploy(active: Active, fleet: Fleet) -> Active:
    """Give the fragments to workers, and start them; none stays behind if one is refused. Raises as `WorkerClient`."""
    local_ids: dict[str, str] = {}
    try:
        for fragment in active.fragments:
            local_ids[fragment.id] = await fleet.client(fragment.node).register(fragment)
        for fragment in active.fragments:
            await fleet.client(fragment.node).start(local_ids[fragment.id])
    except (WorkerRefused, WorkerUnreachable):
        known = [fragment for fragment in active.fragments if fragment.id in local_ids]
        await _clear(Active(active.deployment, active.without, tuple(known), local_ids), fleet)
        raise
    return Active(active.deployment, active.without, active.fragments, local_ids)


def status_in(
    answer: list[FragmentStatus] | WorkerUnreachable, local_id: str, fragment: str
) -> FragmentStatus | WorkerUnreachable:
    """How a fragment is, by the answer of its worker; lost, if that does not know it."""
    if isinstance(answer, WorkerUnreachable):
        return answer
    for status in answer:
        if (status.id, status.fragment) == (local_id, fragment):
            return status
    return FragmentStatus(local_id, fragment, FragmentState.FAILED, Cause.LOST, _FORGOTTEN)


async def _clear(active: Active, fleet: Fleet) -> None:
    await ask_each(active, fleet, lambda client, id_: client.stop(id_))
    await ask_each(active, fleet, lambda client, id_: client.unregister(id_))


async def ask_each(active: Active, fleet: Fleet, ask: Callable[[WorkerClient, str], Awaitable[None]]) -> None:
    """Ask for each fragment; a worker that is not there, or knows it no more, does not keep the others."""

    async def one(fragment: Fragment) -> None:
        try:
            await ask(fleet.client(fragment.node), active.local_ids.get(fragment.id, ""))
        except WorkerUnreachable:
            pass
        except WorkerRefused as error:
            if error.refusal.reason not in (Refusal.REASON_UNKNOWN_ID, Refusal.REASON_STILL_RUNNING):
                raise

    await asyncio.gather(*map(one, active.fragments))
