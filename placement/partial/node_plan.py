"""From a query with views to the nodes that its state is planned by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placement.partial.provenance import planned
from placement.partial.sharding import spread
from placement.plan import (
    BoundSink,
    BoundSource,
    NetworkSink,
    NetworkSource,
    ViewOperator,
)
from placement.view_nodes import Base, Output, Stream, View

if TYPE_CHECKING:
    from placement.checking.binding import BoundPlan
    from placement.partial.provenance import PartialPlan
    from placement.plan import Fragment, FragmentOperator, PartialNode


def nodes_of(plan: BoundPlan) -> tuple[PartialNode, ...]:
    """The nodes of a checked query, with the ids of its operators, inputs before their readers; none without views.

    Operators in shards are divided (``sharding``).
    """
    if not any(isinstance(operator, ViewOperator) for operator in plan.operators.values()):
        return ()
    operators = spread(plan.operators, plan.schemas).operators
    return tuple(_node(operator, plan) for operator in operators.values())


def planned_of(fragment: Fragment) -> PartialPlan:
    """How the query that the fragment is of keeps its state: the same plan, and numbers of paths, for all fragments."""
    plan = planned(fragment.views)
    for addition in fragment.added:
        plan = planned([*plan.nodes.values(), *addition.nodes], plan.paths)
    return plan


def _node(operator: FragmentOperator, plan: BoundPlan) -> PartialNode:
    match operator:
        case BoundSource(id=key):
            columns = plan.schemas[key]
            return Base(key, columns) if operator.physical.base else Stream(key, columns)
        case ViewOperator():
            return View(operator.id, operator.input, operator.key)
        case BoundSink():
            return Output(operator.id, operator.input)
        case NetworkSource() | NetworkSink():
            raise AssertionError(
                f"{operator.id} connects fragments, but this query is not cut into fragments yet"
            )
    return operator
