"""Other members for a query in steps at workers: which are to follow those that there are, and whether they have."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from nebuli.control.deployed_queries import Scaling
from nebuli.control.deployment import forget, is_forgotten, statuses_of
from nebuli.control.step_placement import step_fragments
from nebuli.rpc.ids import local_id
from nebuli.rpc.member_places import MemberPlace, Succession
from nebuli.rpc.status import FragmentStatus
from placement.stepped_plan import CoordinatorPlacement, MemberFragment, Takeover

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nebuli.control.deployed_queries import DeployedFragment, DeployedQuery, Workers
    from placement import Query
    from topology import Topology

__all__ = ["begun", "settled", "succession_of", "taken_over"]

_OWN = 8
"""Number of digits that distinguish a scaling from others."""
_COMING = 4
"""Number of scalings with an unknown end that are remembered."""


def begun(query: DeployedQuery, plan: Query, topology: Topology, members: int) -> DeployedQuery:
    """Return the query with the fragments of so many members, to which it is to change. Raises InvalidQuery.

    They are placed as those before them were. Possible remains of an earlier scaling are still named.
    """
    coordinator, first = query.plan[-1], query.plan[0]
    assert isinstance(coordinator, CoordinatorPlacement)
    assert isinstance(first, MemberFragment)
    number = query.scalings + 1
    takeover = Takeover(transfer=secrets.token_hex(8), before=len(query.plan) - 1)
    name = f"{number}-{takeover.transfer[:_OWN]}"  # another client may have begun the same one elsewhere
    circuit = f"{query.id}.{name}"
    placed = step_fragments(
        plan,
        topology,
        members,
        circuit,
        coordinator.checkpoint_s,
        keep_output_bytes=first.keep_output_bytes,
        closes=not first.awaits_growth,
    )
    found = tuple(
        each.model_copy(
            update={"id": f"{plan.name}/scaled-{name}/member-{each.member}", "takeover": takeover}
        )
        for each in placed
        if isinstance(each, MemberFragment)
    )
    at = {each.node: each for each in query.fragments}
    fragments = tuple(
        at[each.node].model_copy(
            update={"fragment": each.id, "id": local_id(query.deployment or query.id, each.id)}
        )
        for each in found
    )
    scaling = Scaling(fragments=(*fragments, query.fragments[-1]), plan=(*found, coordinator))
    old, coming = query.coming[: 1 - _COMING], query.coming[1 - _COMING :]
    left = (*query.left, *(each for some in old for each in some.fragments[:-1]))
    return query.model_copy(update={"scalings": number, "coming": (*coming, scaling), "left": left})


def succession_of(query: DeployedQuery) -> Succession:
    """Return the order to the coordinator of a query whose scaling was `begun`."""
    scaling = query.coming[-1]
    members = tuple(each for each in scaling.plan if isinstance(each, MemberFragment))
    return Succession(members=members, places=_places(scaling.fragments), before=_places(query.fragments))


def _places(fragments: Sequence[DeployedFragment]) -> tuple[MemberPlace, ...]:
    return tuple(MemberPlace(node=each.node, grpc=each.grpc, id=each.id) for each in fragments[:-1])


def taken_over(query: DeployedQuery, scaling: Scaling) -> DeployedQuery:
    """The query once those that were to follow have taken over."""
    others = (each for each in query.others if each not in scaling.fragments)
    return query.model_copy(
        update={
            "fragments": scaling.fragments,
            "plan": scaling.plan,
            "coming": (),
            "left": (*others, *query.fragments[:-1]),
        }
    )


async def settled(query: DeployedQuery, workers: Workers) -> DeployedQuery:
    """Return the query with its current members, as reported by its coordinator, if it can be asked.

    A client that had requested others may have been killed, and they may have taken over. Remains of earlier members
    that are gone are forgotten.
    """
    if query.coming:
        (coordinator,) = await statuses_of(query.fragments[-1:], workers)
        circuit = coordinator.circuit if isinstance(coordinator, FragmentStatus) else ""
        for scaling in query.coming:
            if scaling.circuit == circuit:
                query = taken_over(query, scaling)
    found = await statuses_of(query.left, workers)
    unknown = [
        each
        for each, status in zip(query.left, found, strict=True)
        if isinstance(status, FragmentStatus) and is_forgotten(status)
    ]
    # A worker that was killed in the middle may know nothing of one whose store is there.
    errors = await forget(unknown, workers)
    gone = [each for each, error in zip(unknown, errors, strict=True) if error is None]
    left = tuple(each for each in query.left if each not in gone)
    return query if left == query.left else query.model_copy(update={"left": left})
