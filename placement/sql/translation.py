"""From sqlglot's tree of an SQL expression to the typed tree.

``_HANDLERS``, with ``placement.sql.functions``, is the list of what an expression may hold. A handler reads every
argument of its node that sqlglot may set, and refuses those that it does not implement, so that nothing written
is silently ignored.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from sqlglot import exp

from placement.sql import typing_rules as rules
from placement.sql.functions import FUNCTIONS
from placement.sql.sql_tree import chained, only, sql_of, unsupported
from placement.sql.typed_tree import Call, ColumnRef, ExpressionError, Literal, Node
from topology.schema import DataType as T

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlglot.expressions import Expr

    from topology.schema import Schema

AGGREGATES: dict[type, str] = {
    exp.Count: "count",
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Min: "min",
    exp.Max: "max",
}
_ARITHMETIC: dict[type, str] = {
    exp.Add: "add",
    exp.Sub: "subtract",
    exp.Mul: "multiply",
    exp.Div: "divide",
    exp.IntDiv: "integer_divide",
    exp.Mod: "modulo",
}
_COMPARISONS: dict[type, str] = {
    exp.EQ: "equal",
    exp.NEQ: "not_equal",
    exp.LT: "less",
    exp.LTE: "less_equal",
    exp.GT: "greater",
    exp.GTE: "greater_equal",
    exp.NullSafeEQ: "not_distinct",
    exp.NullSafeNEQ: "distinct",
}
_SECOND = 1_000_000
_MICROSECONDS = {
    "SECOND": _SECOND,
    "MINUTE": 60 * _SECOND,
    "HOUR": 3600 * _SECOND,
    "DAY": 86400 * _SECOND,
    "WEEK": 7 * 86400 * _SECOND,
}
_SQL_TYPES = {
    "BOOLEAN": T.BOOL,
    "TINYINT": T.INT8,
    "SMALLINT": T.INT16,
    "INT": T.INT32,
    "BIGINT": T.INT64,
    "UTINYINT": T.UINT8,
    "USMALLINT": T.UINT16,
    "UINT": T.UINT32,
    "UBIGINT": T.UINT64,
    "FLOAT": T.FLOAT32,
    "DOUBLE": T.FLOAT64,
    "TEXT": T.STRING,
    "VARCHAR": T.STRING,
    "DATE": T.DATE,
    "TIMESTAMP": T.TIMESTAMP,
    "TIMESTAMPNTZ": T.TIMESTAMP,
    "TIMESTAMPTZ": T.TIMESTAMP,
}


class Translator:
    """Makes typed trees over the columns of one schema."""

    def __init__(self, schema: Schema) -> None:
        self._types = {column.name: column.type for column in schema}

    def translate(self, node: Expr) -> Node:
        """The typed tree of ``node``; raises ``ExpressionError``."""
        handler = _HANDLERS.get(type(node))
        if handler is None:
            raise unsupported(node)
        return handler(self, node)

    def column(self, node: Expr) -> Node:
        """A column, written ``name``, ``"name"``, or with the parts of a name that has dots."""
        is_dotted = isinstance(node, exp.Dot) or node.args.get("table") is not None
        parts: list[Expr] = node.parts if is_dotted else [node.this]  # type: ignore[attr-defined] # Column and Dot have it
        if not all(isinstance(part, exp.Identifier) for part in parts):
            raise unsupported(node)
        name = ".".join(part.name for part in parts)
        if name not in self._types:
            is_quoted = len(parts) == 1 and node.this.quoted
            text = sql_of(exp.Literal.string(name))
            hint = f"; strings are in single quotes: {text}" if is_quoted else ""
            raise ExpressionError(f"{self._unknown(name)}{hint}")
        return ColumnRef(name, self._types[name])

    def _unknown(self, name: str) -> str:
        qualified = [known for known in self._types if known.endswith(f".{name}")]
        if qualified:
            return f'column "{name}" is in more than one input of a join; write {_either(qualified)}'
        near = difflib.get_close_matches(name, self._types, n=1) or [
            known for known in self._types if known.lower() == name.lower()
        ]
        hint = f'; did you mean "{near[0]}"?' if near else ""
        return f'unknown column "{name}"; known are {", ".join(self._types) or "none"}{hint}'


def _either(names: list[str]) -> str:
    return " or ".join(f'"{name}"' for name in names)


def _paren(t: Translator, node: Expr) -> Node:
    return t.translate(node.this)


def _literal(_: Translator, node: Expr) -> Node:
    if node.args["is_string"]:
        return Literal(node.this, T.STRING, adapts=True)
    try:
        return rules.integer_literal(int(node.this))
    except ValueError:
        pass
    try:
        return Literal(float(node.this), T.FLOAT64, adapts="e" not in node.this.lower())
    except ValueError:
        raise ExpressionError(f"{node.this} is not a number: write 1e3, or 1.5") from None


def _arithmetic(t: Translator, node: Expr) -> Node:
    function = _ARITHMETIC[type(node)]
    if isinstance(node.expression, exp.Interval):
        return _shift(t.translate(node.this), node, node.expression, 1 if function == "add" else -1)
    if function == "add" and isinstance(node.this, exp.Interval):
        return _shift(t.translate(node.expression), node, node.this, 1)
    return rules.arithmetic(function, t.translate(node.this), t.translate(node.expression), sql_of(node))


def _shift(moment: Node, node: Expr, interval: exp.Interval, sign: int) -> Node:
    sql = sql_of(node)
    unit = interval.text("unit").upper()
    unit = unit if unit in _MICROSECONDS else unit.removesuffix("S")
    amount = interval.this
    if (
        not isinstance(node, (exp.Add, exp.Sub))
        or unit not in _MICROSECONDS
        or not isinstance(amount, exp.Literal)
    ):
        raise ExpressionError(
            f"{sql_of(interval)} is not supported; + and - take a number of weeks, days, hours, "
            "minutes or seconds"
        )
    try:
        microseconds = sign * int(amount.this) * _MICROSECONDS[unit]
    except ValueError:
        raise ExpressionError(f"{sql_of(interval)} is not a whole number of {unit.lower()}s") from None
    rules.expect(moment, rules.MOMENTS, sql)
    shifted = rules.coerce(moment, T.TIMESTAMP, sql)
    return Call(
        "add_microseconds",
        (shifted, rules.coerce(rules.integer_literal(microseconds), T.INT64, sql)),
        T.TIMESTAMP,
        sql,
    )


def _comparison(t: Translator, node: Expr) -> Node:
    return rules.comparison(
        _COMPARISONS[type(node)], t.translate(node.this), t.translate(node.expression), sql_of(node)
    )


def _logic(t: Translator, node: Expr) -> Node:
    function = "and" if isinstance(node, exp.And) else "or"
    operands = tuple(rules.coerce(t.translate(side), T.BOOL, function.upper()) for side in chained(node))
    return Call(function, operands, T.BOOL, sql_of(node))


def _not(t: Translator, node: Expr) -> Node:
    return Call("not", (rules.coerce(t.translate(node.this), T.BOOL, "NOT"),), T.BOOL, sql_of(node))


def _negate(t: Translator, node: Expr) -> Node:
    return rules.negate(t.translate(node.this), sql_of(node))


def _is(t: Translator, node: Expr) -> Node:
    if isinstance(node.expression, exp.Boolean):
        tested = rules.coerce(t.translate(node.this), T.BOOL, sql_of(node))
        return rules.comparison("not_distinct", tested, t.translate(node.expression), sql_of(node))
    if not isinstance(node.expression, exp.Null):
        raise ExpressionError(f"IS is supported with NULL, TRUE and FALSE only: {sql_of(node)}")
    value = t.translate(node.this)
    if value.type is None:
        return Literal(True, T.BOOL)
    return Call("is_null", (value,), T.BOOL, sql_of(node))


def _in(t: Translator, node: Expr) -> Node:
    if node.args.get("query"):
        raise ExpressionError(f"a subquery is not supported: {sql_of(node)}")
    only(node, "this", "expressions")
    _, operands = rules.unify([t.translate(each) for each in (node.this, *node.expressions)], "IN")
    return Call("in", operands, T.BOOL, sql_of(node))


def _between(t: Translator, node: Expr) -> Node:
    only(node, "this", "low", "high")
    sql = sql_of(node)
    value = t.translate(node.this)
    low = rules.comparison("greater_equal", value, t.translate(node.args["low"]), sql)
    high = rules.comparison("less_equal", value, t.translate(node.args["high"]), sql)
    return Call("and", (low, high), T.BOOL, sql)


def _case(t: Translator, node: Expr) -> Node:
    only(node, "this", "ifs", "default")
    tests = [branch.this for branch in node.args["ifs"]]
    if node.this:
        subject = t.translate(node.this)
        conditions = [rules.comparison("equal", subject, t.translate(test), sql_of(node)) for test in tests]
    else:
        conditions = [t.translate(test) for test in tests]
    values = [t.translate(branch.args["true"]) for branch in node.args["ifs"]]
    return rules.choice(conditions, [*values, _default(t, node.args.get("default"))], sql_of(node))


def _if(t: Translator, node: Expr) -> Node:
    values = [t.translate(node.args["true"]), _default(t, node.args.get("false"))]
    return rules.choice([t.translate(node.this)], values, sql_of(node))


def _default(t: Translator, node: Expr | None) -> Node:
    return t.translate(node) if node else Literal(None, None)


def _cast(t: Translator, node: Expr) -> Node:
    only(node, "this", "to")
    to = node.args["to"]
    name = getattr(to.this, "value", str(to.this))
    if name not in _SQL_TYPES or to.expressions:
        raise ExpressionError(
            f"the type {sql_of(to)} is not supported; known are {', '.join(sorted(_SQL_TYPES))}"
        )
    return rules.cast(t.translate(node.this), _SQL_TYPES[name], sql_of(node))


_HANDLERS: dict[type, Callable[[Translator, Expr], Node]] = {
    **FUNCTIONS,
    exp.Paren: _paren,
    exp.Literal: _literal,
    exp.Boolean: lambda _, node: Literal(bool(node.this), T.BOOL),
    exp.Null: lambda _, __: Literal(None, None),
    exp.Column: Translator.column,
    exp.Dot: Translator.column,
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    **dict.fromkeys(_COMPARISONS, _comparison),
    exp.And: _logic,
    exp.Or: _logic,
    exp.Not: _not,
    exp.Neg: _negate,
    exp.Is: _is,
    exp.In: _in,
    exp.Between: _between,
    exp.Case: _case,
    exp.If: _if,
    exp.Cast: _cast,
}


def is_known(node: Expr) -> bool:
    """True if an expression may hold a node of this kind."""
    return type(node) in _HANDLERS and (
        not isinstance(node, exp.Anonymous) or node.name.lower() == "date_part"
    )
