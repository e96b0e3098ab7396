"""The place of a plan's root that is a view: a topology does not determine it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from placement.errors import NoCommonAncestor
from placement.plan import BoundSource
from placement.strategies.paths import Paths
from topology.graph import downstream_links

if TYPE_CHECKING:
    from placement.checking.binding import BoundPlan
    from topology import Topology


def rooted(plan: BoundPlan, topology: Topology) -> BoundPlan:
    """The plan, with a pin for its root if that needs one.

    A view that names no node has none where it is above one source: then it is placed as what is below it is. Above
    several it is pinned to the node that all their nodes reach, or are, with the fewest hops in total, of several such
    nodes to the first in the topology. Raises ``NoCommonAncestor`` if there is no such node.
    """
    sources = [key for key, operator in plan.operators.items() if isinstance(operator, BoundSource)]
    if plan.root in plan.pins or len(sources) == 1:
        return plan
    paths = Paths(downstream_links(topology), Random(0))  # noqa: S311 - nothing is drawn
    node = paths.nearest(Counter(plan.pins[source] for source in sources))
    if node is None:
        places = ", ".join(f"{source} at {plan.pins[source]}" for source in sources)
        raise NoCommonAncestor(
            f"view {plan.root}: no node is downstream of all of {places}; add links to a node where these "
            f"sources meet"
        )
    return replace(plan, pins={**plan.pins, plan.root: node})
