"""How a query is placed: bottom up, with the exact strategy where that finds no room, or exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from placement.checking.binding import check
from placement.errors import NoCapacity
from placement.strategies.bottom_up import place_bottom_up
from placement.strategies.exact import TIME_LIMIT_S, improve, place_exactly

if TYPE_CHECKING:
    from placement.checking.binding import BoundPlan
    from placement.plan import Query
    from placement.strategies.bottom_up import Placement
    from topology import Topology

StrategyName = Literal["bottom-up", "optimal"]
"""The rule of bottom-up placement, or the least traffic over links."""


def place(
    query: Query,
    topology: Topology,
    seed: int = 0,
    strategy: StrategyName = "bottom-up",
    time_limit_s: float = TIME_LIMIT_S,
) -> Placement:
    """Check a query against a topology and give every operator a node.

    Equal arguments, equal placement, as long as the exact strategy, where it is asked for or needed, does not run into
    its time limit. Raises ``InvalidQuery`` as ``check`` does, ``NoPath``, ``NoCommonAncestor`` or ``NoCapacity``.
    """
    return place_bound(check(query, topology), topology, seed, strategy, time_limit_s)


def place_bound(
    plan: BoundPlan,
    topology: Topology,
    seed: int = 0,
    strategy: StrategyName = "bottom-up",
    time_limit_s: float = TIME_LIMIT_S,
) -> Placement:
    """``place`` for a query that is checked already."""
    if strategy == "optimal":
        exact = place_exactly(plan, topology, seed, time_limit_s)
        return replace(exact.placement, note=str(exact))
    try:
        return place_bottom_up(plan, topology, seed)
    except NoCapacity as error:
        met = str(error)
    exact = improve(plan, topology, None, met, time_limit_s)
    return replace(
        exact.placement,
        note=f"bottom-up found no room ({met}); the optimal strategy found a placement: {exact}",
    )
