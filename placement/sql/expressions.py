"""SQL expressions of a query, parsed and typed once.

``parse`` reads one scalar expression and ``parse_aggregate`` one aggregate call, in the DuckDB dialect,
against the columns of the operator's input. The result is a typed tree (``placement.sql.typed_tree``): engines
evaluate that and never see SQL. ``placement.sql.translation`` lists what an expression may hold; all else is
refused by name. Column names are case-sensitive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from sqlglot import exp

from placement.sql import typing_rules as rules
from placement.sql.sql_tree import parsed, sql_of
from placement.sql.translation import AGGREGATES, Translator
from placement.sql.typed_tree import Call, ExpressionError, Node
from topology.schema import DataType

if TYPE_CHECKING:
    from collections.abc import Callable

    from topology.schema import Schema

Result = TypeVar("Result")

__all__ = ["AggregateCall", "Expression", "ExpressionError", "parse", "parse_aggregate"]


@dataclass(frozen=True, slots=True)
class Expression:
    """A scalar expression: its text, its typed tree, and the type of its value."""

    sql: str
    tree: Node
    type: DataType


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """An aggregate: ``function`` is count, count distinct, sum, avg, min or max; no ``argument``: ``count(*)``.

    A count is an int64, an average a float64, a sum of floats a float64, a sum of integers an int64 (beyond
    its range is an error when it is given out); least and greatest have the argument's type.
    """

    sql: str
    function: str
    argument: Expression | None
    type: DataType


_SHALLOW = 200
"""Characters of an expression whose tree is not deep, as each level has some of them."""


def parse(sql: str, schema: Schema) -> Expression:
    """Read a scalar expression over the columns of ``schema``; raises ``ExpressionError``."""
    return _in_context(sql, lambda: _scalar(sql, schema))


def parse_aggregate(sql: str, schema: Schema) -> AggregateCall:
    """Read one call of an aggregate over the columns of ``schema``; raises ``ExpressionError``."""
    return _in_context(sql, lambda: _aggregate(sql, schema))


def _in_context(sql: str, read: Callable[[], Result]) -> Result:
    try:
        return read()
    except ExpressionError as error:
        raise ExpressionError(f"{error} (in: {sql})") from None
    except RecursionError:
        raise ExpressionError(f"the expression is nested too deeply (in: {sql[:60]}...)") from None


def _scalar(sql: str, schema: Schema) -> Expression:
    tree = Translator(schema).translate(parsed(sql))
    if isinstance(tree, Call) and len(sql) > _SHALLOW:
        str(tree.written)  # refuses here, not in a later message, what is nested too deeply to be written
    return _expression(sql, tree)


def _expression(sql: str, tree: Node) -> Expression:
    if tree.type is None:
        raise ExpressionError("the type of NULL is unknown; cast it: CAST(NULL AS BIGINT)")
    return Expression(sql, tree, tree.type)


def _aggregate(sql: str, schema: Schema) -> AggregateCall:
    call = parsed(sql)
    function = AGGREGATES.get(type(call))
    if function is None:
        raise ExpressionError(
            "expected one call of count, sum, avg, min or max; to compute with the result, add a project operator"
        )
    if function == "count" and (call.this is None or isinstance(call.this, exp.Star)):
        return AggregateCall(sql, function, None, DataType.INT64)
    arguments = call.this.expressions if isinstance(call.this, exp.Distinct) else [call.this]
    if len(arguments) != 1 or call.args.get("expressions") or call.args.get("count"):
        raise ExpressionError(f"{function} takes one argument")
    (tree,) = arguments
    argument = _expression(str(sql_of(tree)), Translator(schema).translate(tree))
    type_ = _aggregate_type(function, argument)
    if isinstance(call.this, exp.Distinct):
        if function != "count":
            raise ExpressionError(
                f"{function} does not support DISTINCT, only count does: aggregate the rows of a "
                f"distinct operator, or of a SELECT DISTINCT"
            )
        function = "count distinct"
    return AggregateCall(sql, function, argument, type_)


def _aggregate_type(function: str, argument: Expression) -> DataType:
    if function == "count":
        return DataType.INT64
    if function in {"min", "max"}:
        return argument.type
    rules.expect(argument.tree, rules.NUMBERS, function)
    return DataType.INT64 if function == "sum" and argument.type in rules.INTEGERS else DataType.FLOAT64
