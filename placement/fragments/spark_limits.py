"""What of an operator's columns and expressions Spark has no exact counterpart of, with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placement.plan import AggregateOperator, FilterOperator, ProjectOperator, WindowOperator
from placement.sql.expressions import parse, parse_aggregate
from placement.sql.typed_tree import Call
from placement.sql.typing_rules import UNSIGNED
from topology.schema import DataType as T

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from placement.plan import FragmentOperator
    from placement.sql.expressions import Expression
    from placement.sql.typed_tree import Node
    from topology.schema import Schema

_ARITHMETIC = frozenset({"add", "subtract", "multiply", "integer_divide", "modulo", "negate", "abs"})


def refusals(operator: FragmentOperator, inputs: Sequence[Schema]) -> Iterator[str]:
    """A sentence for each thing of the operator that Spark would compute differently, or not at all."""
    for schema in inputs:
        for column in schema:
            if column.type is T.UINT64:
                yield f"column {column.name} is uint64, for which Spark has no type; cast it to int64 before"
    if isinstance(operator, WindowOperator):
        yield from _of_window(operator, inputs[0])
    for expression in _expressions(operator, inputs):
        yield from dict.fromkeys(f"{reason}, in {expression.sql}" for reason in _of(expression.tree))


def _of_window(window: WindowOperator, schema: Schema) -> Iterator[str]:
    if window.late is not None:
        yield "it has a file for late rows, and Spark does not give them out; leave late away"
    if any(column.name == window.time and column.type is T.DATE for column in schema):
        yield f"its time {window.time} is a date, and Spark's windows are over timestamps; cast it before"


def _expressions(operator: FragmentOperator, inputs: Sequence[Schema]) -> Iterator[Expression]:
    match operator:
        case FilterOperator():
            yield parse(operator.predicate, inputs[0])
        case ProjectOperator():
            yield from (parse(sql, inputs[0]) for sql in operator.columns.values())
        case AggregateOperator():
            for sql in operator.aggregates.values():
                argument = parse_aggregate(sql, inputs[0]).argument
                if argument is not None:
                    yield argument


def _of(node: Node) -> Iterator[str]:
    if node.type is T.UINT64:
        yield f"{node.sql} is uint64, for which Spark has no type; cast columns to int64 before"
    if not isinstance(node, Call):
        return
    if node.function == "cast":
        yield from _of_cast(node)
    elif node.function in _ARITHMETIC and node.type in UNSIGNED:
        yield f"{node.sql} computes in {node.type}, and Spark's integers have signs; cast an operand to int64"
    for argument in node.arguments:
        yield from _of(argument)


def _of_cast(call: Call) -> Iterator[str]:
    source = call.arguments[0].type
    if source is T.STRING:
        yield f"{call.sql} reads {call.type} from text, and Spark takes other texts for such; have the source do it"
    elif call.type in UNSIGNED and source not in UNSIGNED:
        yield f"{call.sql} casts to {call.type}, and Spark's integers have signs; cast to int64"
    elif call.type in UNSIGNED and source in UNSIGNED and UNSIGNED.index(source) > UNSIGNED.index(call.type):
        yield f"{call.sql} casts to the smaller {call.type}, whose range Spark does not check; cast to int64"
