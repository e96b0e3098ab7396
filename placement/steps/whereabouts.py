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
from placement.stepped_plan import (
    AlignOperator,
    ExchangeOperator,
    GatherOperator,
    InputOperator,
    LateOperator,
    ShardOperator,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from placement.stepped_plan import StepOperator, SteppedPlan
    from topology import Schema

    Division = int | tuple[str, ...]
    """The member that has all rows; or the columns, in this order, by whose hash they are divided over all."""
    Where = int | tuple[frozenset[str], ...] | None
    """Where rows are: all at a member; each where the hash of columns determines, which have any of these names;
    anywhere."""


def by_hash(columns: Iterable[str]) -> Where:
    """Each row is where the hash of these columns determines."""
    return tuple(frozenset({name}) for name in columns)


def key_order(where: Where, keys: Iterable[str]) -> tuple[str, ...] | None:
    """The order of the keys whose hash it is that divides the rows; None if it is that of anything else."""
    if where is None or isinstance(where, int):
        return None
    wanted = frozenset(keys)
    found = [names & wanted for names in where]
    if len(found) != len(wanted) or any(len(names) != 1 for names in found):
        return None
    return tuple(name for names in found for name in names)


def within(where: Where, keys: Iterable[str]) -> Where:
    """Where rows are whose hash is of some of these columns; None if it is that of anything else."""
    if where is None or isinstance(where, int):
        return None
    wanted = frozenset(keys)
    found = tuple(names & wanted for names in where)
    return found if all(found) else None


def renamed(where: Where, names: Mapping[str, str]) -> Where:
    """Where rows are with these columns only, whose former names are in ``names``."""
    if where is None or isinstance(where, int):
        return where
    found = tuple(frozenset(new for new, old in names.items() if old in before) for before in where)
    return found if all(found) else None


def common(inputs: Sequence[Where]) -> Where:
    """Where the rows of all inputs are, whose columns are alike."""
    first, *others = inputs
    for other in others:
        if first is None or other is None or isinstance(first, int) or isinstance(other, int):
            first = first if first == other else None
        elif len(first) != len(other):
            first = None
        else:
            shared = tuple(ours & theirs for ours, theirs in zip(first, other, strict=True))
            first = shared if all(shared) else None
    return first


_MOVES_NOTHING = (AlignOperator, LateOperator)


def divisions(plan: SteppedPlan) -> Mapping[str, Division]:
    """How the rows are divided that joins, aggregates, distincts, views and outputs keep, by operator.

    The rows that an input keeps are where they came in, and may be anywhere.
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
            f"operator {operator} has rows with equal keys at several members, which is not allowed in a plan"
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
