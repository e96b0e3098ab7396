"""The functions of SQL expressions, and the operators on text that are functions in all but looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from sqlglot import exp

from placement.sql import typing_rules as rules
from placement.sql.sql_tree import only, sql_of, unsupported
from placement.sql.typed_tree import Call, ExpressionError, Literal, Node, Text
from topology.schema import DataType as T

if TYPE_CHECKING:
    from sqlglot.expressions import Expr


class Translator(Protocol):
    """Translates what a function is given."""

    def translate(self, node: Expr) -> Node:
        """The typed tree of ``node``. Raises ExpressionError."""


_REAL_FUNCTIONS: dict[type, str] = {exp.Sqrt: "sqrt", exp.Ln: "ln", exp.Exp: "exp"}
_TEXT_FUNCTIONS: dict[type, tuple[str, T]] = {
    exp.Upper: ("upper", T.STRING),
    exp.Lower: ("lower", T.STRING),
    exp.Length: ("length", T.INT64),
    exp.Trim: ("trim", T.STRING),
}
_MAX_DIGITS = 308  # of a float64, before its point or after it
_MAX_INT64 = (1 << 63) - 1
_PATTERNS: dict[type, str] = {exp.StartsWith: "starts_with", exp.Contains: "contains"}
_FIELDS = ("year", "quarter", "month", "day", "hour", "minute", "second", "dow", "doy")
_TRUNCATIONS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")


def _like(t: Translator, node: Expr) -> Node:
    only(node, "this", "expression", "negate")
    function = "like" if isinstance(node, exp.Like) else "ilike"
    matched = _pattern_call(t, node, function)
    return _negated(matched, sql_of(node)) if node.args.get("negate") else matched


def _negated(node: Node, sql: Text) -> Node:
    return Call("not", (rules.coerce(node, T.BOOL, "NOT"),), T.BOOL, sql)


def _pattern(t: Translator, node: Expr) -> Node:
    only(node, "this", "expression")
    return _pattern_call(t, node, _PATTERNS[type(node)])


def _pattern_call(t: Translator, node: Expr, function: str) -> Node:
    sql = sql_of(node)
    text = rules.coerce(t.translate(node.this), T.STRING, sql)
    pattern = t.translate(node.expression)
    if not isinstance(pattern, Literal) or not isinstance(pattern.value, str):
        raise ExpressionError(f"the pattern must be a string constant in {sql}")
    return Call(function, (text, pattern), T.BOOL, sql)


def _several(function: str) -> Handler:
    def handle(t: Translator, node: Expr) -> Node:
        type_, operands = rules.unify(
            [t.translate(each) for each in (node.this, *node.expressions)], function.upper()
        )
        return Call(function, operands, type_, sql_of(node))

    return handle


def _nullif(t: Translator, node: Expr) -> Node:
    value, other = t.translate(node.this), t.translate(node.expression)
    equal = rules.comparison("equal", value, other, sql_of(node))
    return rules.choice([equal], [Literal(None, None), value], sql_of(node))


def _abs(t: Translator, node: Expr) -> Node:
    value = t.translate(node.this)
    rules.expect(value, rules.NUMBERS, "abs")
    _, (value,) = rules.unify([value], "abs")
    return Call("abs", (value,), _type(value), sql_of(node))


def _round(t: Translator, node: Expr) -> Node:
    only(node, "this", "decimals")
    sql = sql_of(node)
    value = t.translate(node.this)
    rules.expect(value, rules.NUMBERS, "round")
    _, (value,) = rules.unify([value], "round")
    digits = _constant(t, node.args.get("decimals"), 0, sql)
    if value.type in rules.INTEGERS and digits < 0:
        raise ExpressionError(f"an integer cannot be rounded to {digits} digits in {sql}")
    if value.type in rules.INTEGERS:
        return value
    if digits > _MAX_DIGITS:
        return value
    digits = max(-_MAX_DIGITS - 1, digits)
    return Call("round", (value, Literal(digits, T.INT32)), _type(value), sql)


def _whole(function: str) -> Handler:
    def handle(t: Translator, node: Expr) -> Node:
        only(node, "this")
        value = t.translate(node.this)
        rules.expect(value, rules.NUMBERS, function)
        type_ = T.FLOAT32 if value.type == T.FLOAT32 else T.FLOAT64
        return Call(function, (rules.coerce(value, type_, function),), type_, sql_of(node))

    return handle


def _real(t: Translator, node: Expr) -> Node:
    function = _REAL_FUNCTIONS[type(node)]
    return Call(function, (_as_real(t.translate(node.this), function),), T.FLOAT64, sql_of(node))


def _power(t: Translator, node: Expr) -> Node:
    operands = (_as_real(t.translate(node.this), "power"), _as_real(t.translate(node.expression), "power"))
    return Call("power", operands, T.FLOAT64, sql_of(node))


def _as_real(node: Node, what: str) -> Node:
    rules.expect(node, rules.NUMBERS, what)
    return rules.coerce(node, T.FLOAT64, what)


def _text(t: Translator, node: Expr) -> Node:
    only(node, "this")
    function, type_ = _TEXT_FUNCTIONS[type(node)]
    return Call(function, (rules.coerce(t.translate(node.this), T.STRING, function),), type_, sql_of(node))


def _concat(t: Translator, node: Expr) -> Node:
    operands = [rules.coerce(t.translate(each), T.STRING, "concat") for each in node.expressions]
    return Call("concat", tuple(operands), T.STRING, sql_of(node))


def _join_texts(t: Translator, node: Expr) -> Node:
    operands = [rules.coerce(t.translate(each), T.STRING, "||") for each in (node.this, node.expression)]
    return Call("join_texts", tuple(operands), T.STRING, sql_of(node))


def _substring(t: Translator, node: Expr) -> Node:
    only(node, "this", "start", "length")
    sql = sql_of(node)
    text = rules.coerce(t.translate(node.this), T.STRING, "substring")
    start = _constant(t, node.args["start"], 1, sql)
    length = _constant(t, node.args.get("length"), (1 << 31) - 1, sql)
    if start < 1 or length < 0:
        raise ExpressionError(f"substring expects a start of 1 or more and a length of 0 or more: {sql}")
    start = min(start, _MAX_INT64)
    length = min(length, _MAX_INT64 - start)
    return Call("substring", (text, Literal(start, T.INT64), Literal(length, T.INT64)), T.STRING, sql)


def _constant(t: Translator, node: Expr | None, absent: int, sql: Text) -> int:
    if node is None:
        return absent
    value = t.translate(node)
    if not isinstance(value, Literal) or not isinstance(value.value, int) or isinstance(value.value, bool):
        raise ExpressionError(f"{sql_of(node)} must be an integer constant in {sql}")
    return value.value


def _extract(t: Translator, node: Expr) -> Node:
    return _field_of(node.this.name, t.translate(node.expression), sql_of(node))


def _field(t: Translator, node: Expr) -> Node:
    only(node, "this")
    return _field_of(type(node).__name__, t.translate(node.this), sql_of(node))


def _field_of(name: str, moment: Node, sql: Text) -> Node:
    name = {"dayofweek": "dow", "dayofyear": "doy"}.get(name.lower(), name.lower())
    if name not in _FIELDS:
        raise ExpressionError(f"unknown field {name} in {sql}; known are {', '.join(_FIELDS)}")
    rules.expect(moment, rules.MOMENTS, name)
    return Call(f"extract_{name}", (rules.coerce(moment, T.TIMESTAMP, name),), T.INT64, sql)


def _truncate(t: Translator, node: Expr) -> Node:
    only(node, "this", "unit", "input_type_preserved")
    sql = sql_of(node)
    unit = node.text("unit").lower()
    if unit not in _TRUNCATIONS:
        raise ExpressionError(f"unknown unit {unit} in {sql}; known are {', '.join(_TRUNCATIONS)}")
    moment = t.translate(node.this)
    rules.expect(moment, rules.MOMENTS, "date_trunc")
    return Call(
        "truncate", (rules.coerce(moment, T.TIMESTAMP, sql), Literal(unit, T.STRING)), T.TIMESTAMP, sql
    )


def _anonymous(t: Translator, node: Expr) -> Node:
    if node.name.lower() == "date_part" and len(node.expressions) == 2:
        return _field_of(node.expressions[0].name, t.translate(node.expressions[1]), sql_of(node))
    raise unsupported(node)


def _type(node: Node) -> T:
    if node.type is None:
        raise ExpressionError("the type of NULL is unknown; cast it: CAST(NULL AS BIGINT)")
    return node.type


Handler = Callable[["Translator", "Expr"], Node]

FUNCTIONS: dict[type, Handler] = {
    exp.Like: _like,
    exp.ILike: _like,
    **dict.fromkeys(_PATTERNS, _pattern),
    exp.Coalesce: _several("coalesce"),
    exp.Greatest: _several("greatest"),
    exp.Least: _several("least"),
    exp.Nullif: _nullif,
    exp.Abs: _abs,
    exp.Round: _round,
    exp.Floor: _whole("floor"),
    exp.Ceil: _whole("ceil"),
    **dict.fromkeys(_REAL_FUNCTIONS, _real),
    exp.Pow: _power,
    **dict.fromkeys(_TEXT_FUNCTIONS, _text),
    exp.Concat: _concat,
    exp.DPipe: _join_texts,
    exp.Substring: _substring,
    exp.Extract: _extract,
    **dict.fromkeys((exp.Year, exp.Quarter, exp.Month, exp.Day, exp.Hour, exp.Minute, exp.Second), _field),
    **dict.fromkeys((exp.DayOfWeek, exp.DayOfYear), _field),
    exp.TimestampTrunc: _truncate,
    exp.DateTrunc: _truncate,
    exp.Anonymous: _anonymous,
}
