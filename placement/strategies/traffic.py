"""The cost of a placement: the traffic over links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from placement.plan import BoundSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from placement.checking.binding import BoundPlan
    from placement.strategies.bottom_up import Placement


@dataclass(frozen=True, slots=True)
class Traffic:
    """The output of each operator: bytes per second if all sources have a rate, otherwise 1 each.

    An operator emits as much as it takes in: the selectivity of a filter is not known beforehand.
    """

    weights: Mapping[str, float]
    unit: str

    @classmethod
    def of(cls, plan: BoundPlan) -> Traffic:
        """Return the traffic after all operators but the sink."""
        sources = [each for each in plan.operators.values() if isinstance(each, BoundSource)]
        if any(source.physical.rate is None for source in sources):
            return cls(dict.fromkeys(plan.readers, 1.0), "hops")
        weights: dict[str, float] = {}
        for key, operator in plan.operators.items():
            if isinstance(operator, BoundSource):
                weights[key] = operator.physical.rate or 0.0
            else:
                weights[key] = sum(weights[child] for child in operator.children)
        return cls({key: weights[key] for key in plan.readers}, "bytes/s over links")

    def cost(self, placement: Placement) -> float:
        """The sum over all edges of what goes over it, times the links that it crosses."""
        return sum(self.weights[child] * (len(path) - 1) for child, path in placement.paths.items())
