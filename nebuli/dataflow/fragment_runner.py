"""Operators of a plan as running operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nebuli.dataflow.aggregates.aggregate import Aggregate
from nebuli.dataflow.errors import DataflowError
from nebuli.dataflow.joins.outer_join import join_of
from nebuli.dataflow.operators import Filter, Operator, PassThrough, Project
from nebuli.dataflow.window import Window, Windows
from placement.checking.schemas import output_schema
from placement.plan import (
    AggregateOperator,
    BoundSource,
    DistinctOperator,
    FilterOperator,
    JoinOperator,
    MergerOperator,
    NetworkSink,
    NetworkSource,
    ProjectOperator,
    SharderOperator,
    WindowOperator,
)
from placement.stepped_plan import (
    AlignOperator,
    ExchangeOperator,
    GatherOperator,
    InputOperator,
    LateOperator,
    ShardOperator,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placement.checking.schemas import Fault
    from placement.plan import FragmentOperator
    from placement.stepped_plan import StepOperator
    from topology.schema import Schema

    PlanOperator = FragmentOperator | StepOperator


def output_columns(operator: PlanOperator, inputs: Sequence[Schema]) -> Schema:
    """Return the output columns of an operator; ``DataflowError`` if it cannot work on these inputs."""
    match operator:
        case BoundSource() | NetworkSource() | InputOperator():
            return operator.columns
        case (
            NetworkSink()
            | SharderOperator()
            | MergerOperator()
            | ExchangeOperator()
            | ShardOperator()
            | GatherOperator()
            | AlignOperator()
            | LateOperator()
        ):
            return inputs[0]
    faults: list[Fault] = []
    columns = output_schema(operator, inputs, faults)
    if faults:
        raise DataflowError("; ".join(message for _, message in faults), operator.id)
    return columns


def running(  # noqa: PLR0911 - one per kind
    operator: PlanOperator,
    inputs: Sequence[Schema],
    output: Schema,
    windows: Windows | None,
    *,
    only_grows: bool = False,
) -> Operator:
    """The operator, ready to run; with ``windows`` it is done with each when it is over.

    ``only_grows``: its input retracts no row.
    """
    match operator:
        case FilterOperator():
            return Filter(operator.predicate, inputs[0])
        case ProjectOperator():
            return Project(operator.columns, inputs[0], output)
        case JoinOperator():
            return join_of(operator, inputs, output, windows)
        case AggregateOperator():
            return Aggregate(
                operator.by, operator.aggregates, inputs[0], output, windows, only_grows=only_grows
            )
        case DistinctOperator():
            return Aggregate([column.name for column in output], {}, inputs[0], output, windows)
        case WindowOperator():
            return Window(operator, output)
    return PassThrough()


def own_bound(operator: PlanOperator) -> int | None:
    """Return the bound of an operator's state in the plan."""
    match operator:
        case JoinOperator() | AggregateOperator() | DistinctOperator():
            return operator.max_state_bytes
    return None
