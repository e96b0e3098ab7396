"""Sqlglot's tree of an expression: reading it, and refusing what we do not support in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from placement.sql.typed_tree import ExpressionError

if TYPE_CHECKING:
    from sqlglot.expressions import Expr

_FUNCTION_NAMES = (
    "abs, round, floor, ceil, sqrt, ln, exp, power, upper, lower, length, trim, concat, substring, "
    "starts_with, contains, coalesce, ifnull, nullif, if, greatest, least, extract, date_part, date_trunc"
)
_REFUSALS: tuple[tuple[tuple[type, ...], str], ...] = (
    ((exp.Query, exp.Exists, exp.Subquery), "a subquery is not supported: {}"),
    ((exp.AggFunc,), "{} is an aggregate, where a value of one row is expected; use an aggregate operator"),
    ((exp.Window,), "a window function is not supported: {}"),
    ((exp.Star,), "{} is not a value; name the columns"),
    ((exp.Alias,), "an alias is not supported: {}; the key of the expression names its column"),
    ((exp.Interval,), "an interval can only be added to or subtracted from a date or timestamp: {}"),
    ((exp.TryCast,), "TRY_CAST is not supported: {}; use CAST"),
)


def parsed(sql: str) -> Expr:
    """Sqlglot's tree of ``sql``; raises ``ExpressionError`` where it is no single expression."""
    try:
        trees = sqlglot.parse(sql, dialect="duckdb")
    except SqlglotError as error:
        details = getattr(error, "errors", None) or [{}]
        place = f" at column {details[0]['col']}" if details[0].get("col") else ""
        reason = str(details[0].get("description") or "not SQL").partition(" for <class")[0]
        raise ExpressionError(f"cannot be read as SQL{place}: {reason}") from None
    if len(trees) != 1 or trees[0] is None:
        raise ExpressionError(f"one expression is expected, not {len([t for t in trees if t])}")
    return trees[0]


def sql_of(node: Expr) -> str:
    """How a node is written."""
    return node.sql(dialect="duckdb")


def only(node: Expr, *known: str) -> None:
    """Refuses a node with an argument that its handler does not read."""
    extra = [name for name, value in node.args.items() if value and name not in known]
    if extra:
        raise ExpressionError(f"not supported in {sql_of(node)}: {', '.join(extra)}")


def unsupported(node: Expr) -> ExpressionError:
    """The error for a node that no handler knows, with what to write instead where there is something."""
    for kinds, message in _REFUSALS:
        if isinstance(node, kinds):
            return ExpressionError(message.format(sql_of(node)))
    name = sql_of(node).partition("(")[0].lower()
    if isinstance(node, exp.Func) and name.isidentifier():
        return ExpressionError(f"unknown function {name}; supported are {_FUNCTION_NAMES}")
    return ExpressionError(f"{type(node).__name__} is not supported: {sql_of(node)}")
