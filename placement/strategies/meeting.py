"""Where the branches of a plan can meet: common ancestors on the way to its root, the sink or a view."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from placement.errors import NoCommonAncestor, NoPath
from placement.graph import bottom_up

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from placement.checking.binding import BoundPlan
    from placement.strategies.paths import Paths


class Meeting:
    """The common ancestors of a plan's branches.

    ``points`` has, for each n-ary operator, the node where its branches should meet if all of them stayed
    where they begin: the lowest common ancestor of the meeting points and pinned sources below it.
    """

    def __init__(self, plan: BoundPlan, paths: Paths, rng: Random) -> None:
        self._plan = plan
        self._paths = paths
        self._rng = rng
        # A root without a pin is a view above one source: nothing meets, and whatever is behind that will do.
        self._end = plan.pins.get(plan.root, next(iter(plan.pins.values())))
        self._check_ways()
        self.points = self._find_points()

    def lowest(self, nodes: Sequence[str], preferred: str | None = None) -> str:
        """The lowest of the nodes that all of ``nodes`` reach, or are, and that reach the root's.

        Lowest has the fewest hops in total; among several that have, it is the preferred one, or any.
        """
        lowest = self._paths.lowest(Counter(nodes), self._end)
        return preferred if preferred in lowest else self._rng.choice(lowest)

    def ancestors(self, nodes: Sequence[str], first: str) -> list[str]:
        """All of these nodes, the lowest first, and before all others ``first``."""
        ordered = self._paths.ancestors(Counter(nodes), self._end)
        return [first, *(node for node in ordered if node != first)]

    def _find_points(self) -> dict[str, str]:
        points: dict[str, str] = {}
        fronts: dict[str, str] = {}
        for key, operator in self._plan.operators.items():
            below = [fronts[child] for child in operator.children]
            if len(below) > 1:
                points[key] = fronts[key] = self.lowest(below)
            else:
                fronts[key] = below[0] if below else self._plan.pins[key]
        return points

    def _check_ways(self) -> None:
        """Raise what says best why the sources cannot reach the root, if they cannot."""
        pins = self._plan.pins
        reaching = self._paths.hops_to(self._end)
        lost = next((key for key in pins if pins[key] not in reaching), None)
        if lost is None:
            return
        for operator in self._plan.operators.values():
            below = self._sources_below(operator.id) if len(operator.children) > 1 else []
            if below and not self._paths.meet(pins[source] for source in below):
                places = ", ".join(f"{source} at {pins[source]}" for source in below)
                raise NoCommonAncestor(
                    f"{operator.type} {operator.id}: no node is downstream of {places}; {self._remedy()}"
                )
        root = self._plan.operators[self._plan.root]
        source, end = f"source {lost} at {pins[lost]}", f"{root.type} {root.id} at {self._end}"
        raise NoPath(f"no links lead from {source} to {end}; {self._remedy()}")

    def _remedy(self) -> str:
        """What to change in the topology, so that every source reaches the root."""
        end, root = self._end, self._plan.operators[self._plan.root].type
        reaching = self._paths.hops_to(end)
        lost = [node for node in dict.fromkeys(self._plan.pins.values()) if node not in reaching]
        below = [node for node in lost if end in self._paths.hops_to(node)]
        if below:  # a link back would close a cycle
            return f"links lead from {end} to {', '.join(below)}: turn them around, or move the {root} downstream"
        return (
            f"add links: {{downstream: [{end}]}} to {'nodes' if len(lost) > 1 else 'node'} {', '.join(lost)}"
        )

    def _sources_below(self, key: str) -> list[str]:
        children = {each: operator.children for each, operator in self._plan.operators.items()}
        return [each for each in bottom_up(children, key) if not children[each]]
