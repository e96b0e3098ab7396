"""Which member has which rows of what operators keep, in a plan for several members."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placement.checking.schemas import InnerOperator, output_schema, plain_columns
from placement.plan import (
    AggregateOperator,
    BoundSink,
    DistinctOperator,
    JoinOperator,
    ProjectOperator,
    ViewOperator,
)
from placement.stepped import (
    AlignOperator,
    ExchangeOperator,
    GatherOperator,
    InputOperator,
    LateOperator,
    ShardOperator,
)
from placement.steps.partitioning import by_hash, common, renamed, within

if TYPE_CHECKING:
    from collections.abc import Mapping

    from placement.stepped import StepOperator, SteppedPlan
    from placement.steps.partitioning import Where
    from topology import Schema

    Division = int | tuple[str, ...]
    """The member that has all rows; or the columns, in this order, by whose hash they are divided over all."""

_MOVES_NOTHING = (AlignOperator, LateOperator)


def divisions(plan: SteppedPlan) -> Mapping[str, Division]:
    """How the rows are divided that joins, aggregates, distincts, views and outputs keep, by operator.

    What an input keeps is where it came in, and may be anywhere.
    """
    found: dict[str, Division] = {}
    # Where an input comes in at all members nothing keeps rows by keys before they are exchanged.
    where: dict[str, Where] = dict(plan.homes)
    schemas: dict[str, Schema] = {}
    for operator in plan.operators:
        inputs = [where[child] for child in operator.children]
        below = [schemas[child] for child in operator.children]
        schemas[operator.id] = _schema(operator, below)
        if not isinstance(operator, InputOperator):
            where[operator.id] = _where(operator, inputs, below, schemas[operator.id])
        if isinstance(operator, AggregateOperator | DistinctOperator | JoinOperator):
            found[operator.id] = 0 if plan.members == 1 else _division(operator.id, where[operator.id])
        elif isinstance(operator, ViewOperator):
            rows = where[operator.id]
            by_key = rows if isinstance(rows, int) else within(rows, operator.key)
            found[operator.id] = 0 if plan.members == 1 else _division(operator.id, by_key)
        elif isinstance(operator, BoundSink):
            found[operator.id] = plan.homes[operator.id]
    return found


def _division(operator: str, where: Where) -> Division:
    if where is None:
        raise ValueError(
            f"operator {operator} has rows with equal keys at several members: no such plan is made"
        )
    return where if isinstance(where, int) else tuple(min(names) for names in where)


def _where(operator: StepOperator, inputs: list[Where], below: list[Schema], columns: Schema) -> Where:
    match operator:
        case ExchangeOperator(by=by) | ShardOperator(by=by):
            return by_hash(by)
        case GatherOperator(member=member):
            return member
        case ProjectOperator():
            return renamed(inputs[0], plain_columns(operator, below[0]))
        case AggregateOperator() | JoinOperator() | DistinctOperator():
            return inputs[0] if isinstance(inputs[0], int) else within(inputs[0], _keys(operator, columns))
    return common(inputs)


def _keys(operator: AggregateOperator | JoinOperator | DistinctOperator, columns: Schema) -> tuple[str, ...]:
    match operator:
        case AggregateOperator():
            return operator.by
        case JoinOperator():
            return operator.on
    return tuple(column.name for column in columns)


def _schema(operator: StepOperator, below: list[Schema]) -> Schema:
    if isinstance(operator, InputOperator):
        return operator.columns
    if isinstance(operator, InnerOperator):
        return output_schema(operator, below, [])
    return below[0]
