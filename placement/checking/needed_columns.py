"""Which columns of its sources a query needs: others are not read where a source can be asked for some."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from placement.checking.schemas import InnerOperator, joined_names, output_schema
from placement.plan import (
    AggregateOperator,
    BoundSource,
    FilterOperator,
    JoinOperator,
    ProjectOperator,
    UnionOperator,
    WindowOperator,
)
from placement.sql.typed_tree import columns_of
from placement.stepped_plan import InputOperator

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from placement.plan import Closing, FragmentOperator, WatermarkOrigin
    from topology import Schema

__all__ = ["columns_needed", "narrow"]


def narrow(
    operators: dict[str, FragmentOperator | InputOperator],
    schemas: dict[str, Schema],
    watermarks: Iterable[WatermarkOrigin],
    closings: Iterable[Closing],
    narrowable: Container[str],
) -> None:
    """Remove unneeded columns from the sources of a checked plan, and those that depend on them from all schemas.

    Only those that are ``narrowable`` can be asked for some of their columns. ``operators`` have inputs before their
    readers. The columns of a sink stay as they are.
    """
    readers = Counter(child for operator in operators.values() for child in operator.children)
    needed = {key: set[str]() for key in operators}
    for origin in watermarks:
        needed[origin.operator].add(origin.time)
    for closing in closings:
        needed[closing.operator].add(closing.column)
    for key in reversed(operators):
        operator = operators[key]
        children = operator.children
        inputs = [schemas[child] for child in children]
        # Inputs of a union stay equal: none of them is narrowed where another reader may need more of one.
        alike = all(child in narrowable and readers[child] == 1 for child in children)
        for child, names in zip(
            children, _needed_of_inputs(operator, needed[key], inputs, alike=alike), strict=True
        ):
            needed[child] |= names
    for key, operator in operators.items():
        if isinstance(operator, BoundSource | InputOperator):
            if key in narrowable:
                kept = [column for column in operator.columns if column.name in needed[key]]
                columns = tuple(kept or operator.columns[:1])  # rows of no columns could not be counted
                operators[key] = operator.model_copy(update={"columns": columns})
                schemas[key] = columns
        elif isinstance(operator, InnerOperator):
            schemas[key] = output_schema(operator, [schemas[child] for child in operator.children], [])


def _needed_of_inputs(  # noqa: PLR0911 - one per kind of operator
    operator: FragmentOperator | InputOperator,
    needed: set[str],
    inputs: Sequence[Schema],
    *,
    alike: bool,
) -> list[set[str]]:
    """Return the columns that the operator needs of each input, to emit the columns ``needed``.

    ``alike``: all can emit just these.
    """
    everything = [{column.name for column in schema} for schema in inputs]
    match operator:
        case FilterOperator():
            return [needed | _columns([operator.predicate], inputs[0])]
        case ProjectOperator():
            return [_columns(operator.columns.values(), inputs[0])]
        case AggregateOperator():
            return [columns_needed(operator, inputs[0])]
        case WindowOperator() if operator.late is None:  # late rows are written as they are
            return [(needed & everything[0]) | {operator.time}]
        case JoinOperator():
            return _needed_of_joined(operator, needed, inputs)
        case UnionOperator() if alike:
            return [needed for _ in inputs]
    return everything


def _needed_of_joined(join: JoinOperator, needed: set[str], inputs: Sequence[Schema]) -> list[set[str]]:
    """The keys, what is needed, and names that several inputs have: without one the other's would change."""
    output = output_schema(join, inputs, [])
    counts = Counter(column.name for schema in inputs for column in schema if column.name not in join.on)
    return [
        {*join.on, *(name for name, given in names.items() if given in needed or counts[name] > 1)}
        for names in joined_names(join.on, inputs, output)
    ]


def _columns(expressions: Iterable[str], schema: Schema) -> set[str]:
    from placement.sql.expressions import parse

    return set().union(*(columns_of(parse(sql, schema).tree) for sql in expressions))


def columns_needed(operator: AggregateOperator, schema: Schema) -> set[str]:
    """The columns of its input that an aggregate groups by, or computes with."""
    from placement.sql.expressions import parse_aggregate

    calls = [parse_aggregate(sql, schema) for sql in operator.aggregates.values()]
    arguments = (columns_of(call.argument.tree) for call in calls if call.argument is not None)
    return set(operator.by).union(*arguments)
