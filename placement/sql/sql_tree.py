"""Sqlglot's tree of an expression: reading it, and refusing what we do not support in it."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import SqlglotError
from sqlglot.parsers.duckdb import DuckDBParser

from placement.sql.typed_tree import ExpressionError, Text, Written
from topology.consistency import did_you_mean

if TYPE_CHECKING:
    from sqlglot.expressions import Expr

FUNCTION_NAMES = (
    "abs", "round", "floor", "ceil", "sqrt", "ln", "exp", "power", "upper", "lower", "length", "trim", "concat",
    "substring", "starts_with", "contains", "coalesce", "ifnull", "nullif", "if", "greatest", "least", "extract",
    "date_part", "date_trunc", "year", "quarter", "month", "day", "hour", "minute", "second", "dayofweek", "dayofyear",
)  # fmt: skip
"""By DuckDB's names; it has other names of some, which are read as well."""
_NO_CLOCK = "a query has no clock; compare with a column, or with a constant"
_INSTEAD = {
    "concat_ws": "write first || ', ' || second",
    "date_trunc": "write the unit as a text: date_trunc('day', time)",
    **dict.fromkeys(("current_date", "current_time", "current_timestamp", "now"), _NO_CLOCK),
    "count_if": "write count(*) FILTER (WHERE ...)",
    "countif": "write count(*) FILTER (WHERE ...)",
    "left": "write substring(text, 1, length)",
    "mean": "write avg",
    "mod": "write %",
    "sign": "write CASE WHEN x > 0 THEN 1 WHEN x < 0 THEN -1 ELSE 0 END",
}
"""Replacements for functions that do not exist."""
AGGREGATE_NAMES = ("count", "sum", "avg", "min", "max")
_NAMES = {"listagg": "string_agg"}
"""DuckDB's names of functions that sqlglot writes under another one."""
_REFUSALS: tuple[tuple[tuple[type, ...], str], ...] = (
    ((exp.Query, exp.Exists, exp.Subquery), "a subquery is not supported: {}"),
    (
        (exp.AggFunc,),
        "{} is an aggregate, but a value of a single row is expected; use an aggregate operator",
    ),
    ((exp.Window,), "a window function is not supported: {}"),
    ((exp.Star,), "{} is not a value; name the columns"),
    ((exp.Alias,), "an alias is not supported: {}; the key before the expression already names the column"),
    ((exp.Interval,), "an interval can only be added to or subtracted from a date or timestamp: {}"),
    ((exp.TryCast,), "TRY_CAST is not supported: {}; use CAST"),
)


def _date_trunc(arguments: list[Expr]) -> Expr:
    """Read the call if its unit is a text: sqlglot takes a column for the unit that it is named like."""
    if arguments and isinstance(arguments[0], exp.Literal):
        tree: Expr = DuckDBParser.FUNCTIONS["DATE_TRUNC"](arguments)
        return tree
    return exp.Anonymous(this="date_trunc", expressions=arguments)


class QueryDialect(DuckDB):
    """DuckDB's dialect, without what sqlglot reads in another way."""

    class Parser(DuckDBParser):
        """The parser of queries."""

        FUNCTIONS: ClassVar = {
            **DuckDBParser.FUNCTIONS,
            "DATE_TRUNC": _date_trunc,
            "DATETRUNC": _date_trunc,
        }


@lru_cache(maxsize=4096)
def parsed(sql: str) -> Expr:
    """Return sqlglot's tree of ``sql``, not to be changed; raises ``ExpressionError`` if it is not one expression.

    An expression is looked at several times while a query is planned.
    """
    try:
        trees = sqlglot.parse(sql, dialect=QueryDialect)
    except SqlglotError as error:
        details = getattr(error, "errors", None) or [{}]
        place = f" at column {details[0]['col']}" if details[0].get("col") else ""
        reason = str(details[0].get("description") or "not SQL").partition(" for <class")[0]
        raise ExpressionError(f"cannot be read as SQL{place}: {reason}") from None
    if len(trees) != 1 or trees[0] is None:
        raise ExpressionError(f"expected one expression, got {len([t for t in trees if t])}")
    return trees[0]


def sql_of(node: Expr) -> Text:
    """How a node is written."""
    if isinstance(node, exp.Column) and not node.table and isinstance(node.this, exp.Identifier):
        return _column_text(node.name, quoted=bool(node.this.args.get("quoted")))
    return Written(node)


@lru_cache(maxsize=1024)
def _column_text(name: str, *, quoted: bool) -> str:
    """The text of a column, which most of a query's expressions are."""
    return exp.to_identifier(name, quoted=quoted).sql(dialect="duckdb")


def chained(node: Expr) -> list[Expr]:
    """Return the sides of ``a OR b OR c``, or of AND, which sqlglot nests to the left, however long it is."""
    sides, left = [], node
    while type(left) is type(node):
        sides.append(left.expression)
        left = left.this
    return [left, *reversed(sides)]


def only(node: Expr, *known: str) -> None:
    """Refuses a node with an argument that its handler does not read."""
    extra = [name for name, value in node.args.items() if value and name not in known]
    if extra:
        raise ExpressionError(f"not supported in {sql_of(node)}: {', '.join(extra)}")


def unknown_aggregate(node: Expr) -> str:
    """The message for an aggregate that does not exist: its name is not a misspelt one, as sqlglot knows it."""
    name = str(sql_of(node)).partition("(")[0].lower()
    instead = _INSTEAD.get(name) or f"supported are {', '.join(AGGREGATE_NAMES)}"
    return f"unknown aggregate {_NAMES.get(name, name)}; {instead}"


def unknown_function(name: str) -> str:
    """The message for a function that there is not: with the nearest one, else with all."""
    known = [*FUNCTION_NAMES, *AGGREGATE_NAMES]
    instead = _INSTEAD.get(name) or did_you_mean(name, known).strip() or f"supported are {', '.join(known)}"
    if name in known:
        return f"this form of {name} is not supported" + (f"; {_INSTEAD[name]}" if name in _INSTEAD else "")
    return (
        f"unknown function {name}; {instead}" if instead[0] != "(" else f"unknown function {name} {instead}"
    )


def unsupported(node: Expr) -> ExpressionError:
    """The error for a node that no handler knows, with what to write instead where there is something."""
    for kinds, message in _REFUSALS:
        if isinstance(node, kinds):
            return ExpressionError(message.format(sql_of(node)))
    name = str(sql_of(node)).partition("(")[0].lower()
    if isinstance(node, exp.Func) and name.isidentifier():
        return ExpressionError(unknown_function(name))
    return ExpressionError(f"{type(node).__name__} is not supported: {sql_of(node)}")
