"""From sqlglot's tree of an SQL expression to the typed tree.

``_HANDLERS`` is the list of what an expression may hold. A handler reads every argument of its node that
sqlglot may set, and refuses those that it does not implement, so that nothing written is silently ignored.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from placement import typing_rules as rules
from placement.typed_tree import Call, ColumnRef, ExpressionError, Literal, Node
from topology.schema import DataType as T

if TYPE_CHECKING:
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
_REAL_FUNCTIONS: dict[type, str] = {exp.Sqrt: "sqrt", exp.Ln: "ln", exp.Exp: "exp"}
_TEXT_FUNCTIONS: dict[type, tuple[str, T]] = {
    exp.Upper: ("upper", T.STRING),
    exp.Lower: ("lower", T.STRING),
    exp.Length: ("length", T.INT64),
    exp.Trim: ("trim", T.STRING),
}
_PATTERNS: dict[type, str] = {exp.StartsWith: "starts_with", exp.Contains: "contains"}
_FUNCTION_NAMES = (
    "abs, round, floor, ceil, sqrt, ln, exp, power, upper, lower, length, trim, concat, substring, "
    "starts_with, contains, coalesce, ifnull, nullif, if, greatest, least, extract, date_part, date_trunc"
)
_SECOND = 1_000_000
_MICROSECONDS = {
    "SECOND": _SECOND,
    "MINUTE": 60 * _SECOND,
    "HOUR": 3600 * _SECOND,
    "DAY": 86400 * _SECOND,
    "WEEK": 7 * 86400 * _SECOND,
}
_FIELDS = ("year", "quarter", "month", "day", "hour", "minute", "second", "dow", "doy")
_TRUNCATIONS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")
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


class Translator:
    """Makes typed trees over the columns of one schema."""

    def __init__(self, schema: Schema) -> None:
        self._types = {column.name: column.type for column in schema}

    def translate(self, node: Expr) -> Node:
        """The typed tree of ``node``; raises ``ExpressionError``."""
        handler = _HANDLERS.get(type(node))
        if handler is None:
            raise _unsupported(node)
        return handler(self, node)

    def column(self, node: Expr) -> Node:
        """A column, written ``name``, ``"name"``, or with the parts of a name that has dots."""
        if not all(isinstance(part, exp.Identifier) for part in node.parts):  # type: ignore[attr-defined] # Column and Dot have it
            raise _unsupported(node)
        name = ".".join(part.name for part in node.parts)  # type: ignore[attr-defined] # as above
        if name not in self._types:
            raise ExpressionError(self._unknown(name))
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


_REFUSALS: tuple[tuple[tuple[type, ...], str], ...] = (
    ((exp.Query, exp.Exists, exp.Subquery), "a subquery is not supported: {}"),
    ((exp.AggFunc,), "{} is an aggregate, where a value of one row is expected; use an aggregate operator"),
    ((exp.Window,), "a window function is not supported: {}"),
    ((exp.Star,), "{} is not a value; name the columns"),
    ((exp.Alias,), "an alias is not supported: {}; the key of the expression names its column"),
    ((exp.Interval,), "an interval can only be added to or subtracted from a date or timestamp: {}"),
    ((exp.TryCast,), "TRY_CAST is not supported: {}; use CAST"),
)


def _unsupported(node: Expr) -> ExpressionError:
    for kinds, message in _REFUSALS:
        if isinstance(node, kinds):
            return ExpressionError(message.format(_sql(node)))
    name = _sql(node).partition("(")[0].lower()
    if isinstance(node, exp.Func) and name.isidentifier():
        return ExpressionError(f"unknown function {name}; supported are {_FUNCTION_NAMES}")
    return ExpressionError(f"{type(node).__name__} is not supported: {_sql(node)}")


def _sql(node: Expr) -> str:
    return node.sql(dialect="duckdb")


def _only(node: Expr, *known: str) -> None:
    """Refuses a node with an argument that its handler does not read."""
    extra = [name for name, value in node.args.items() if value and name not in known]
    if extra:
        raise ExpressionError(f"not supported in {_sql(node)}: {', '.join(extra)}")


def _paren(t: Translator, node: Expr) -> Node:
    return t.translate(node.this)


def _literal(_: Translator, node: Expr) -> Node:
    if node.args["is_string"]:
        return Literal(node.this, T.STRING, adapts=True)
    try:
        return rules.integer_literal(int(node.this))
    except ValueError:
        return Literal(float(node.this), T.FLOAT64, adapts="e" not in node.this.lower())


def _arithmetic(t: Translator, node: Expr) -> Node:
    function = _ARITHMETIC[type(node)]
    if isinstance(node.expression, exp.Interval):
        return _shift(t.translate(node.this), node, node.expression, 1 if function == "add" else -1)
    if function == "add" and isinstance(node.this, exp.Interval):
        return _shift(t.translate(node.expression), node, node.this, 1)
    return rules.arithmetic(function, t.translate(node.this), t.translate(node.expression), _sql(node))


def _shift(moment: Node, node: Expr, interval: exp.Interval, sign: int) -> Node:
    sql = _sql(node)
    unit = interval.text("unit").upper()
    unit = unit if unit in _MICROSECONDS else unit.removesuffix("S")
    amount = interval.this
    if (
        not isinstance(node, (exp.Add, exp.Sub))
        or unit not in _MICROSECONDS
        or not isinstance(amount, exp.Literal)
    ):
        raise ExpressionError(
            f"{_sql(interval)} is not supported; + and - take a number of weeks, days, hours, "
            "minutes or seconds"
        )
    try:
        microseconds = sign * int(amount.this) * _MICROSECONDS[unit]
    except ValueError:
        raise ExpressionError(f"{_sql(interval)} is not a whole number of {unit.lower()}s") from None
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
        _COMPARISONS[type(node)], t.translate(node.this), t.translate(node.expression), _sql(node)
    )


def _logic(t: Translator, node: Expr) -> Node:
    function = "and" if isinstance(node, exp.And) else "or"
    operands = [
        rules.coerce(t.translate(side), T.BOOL, function.upper()) for side in (node.this, node.expression)
    ]
    return Call(function, tuple(operands), T.BOOL, _sql(node))


def _not(t: Translator, node: Expr) -> Node:
    return _negated(t.translate(node.this), _sql(node))


def _negated(node: Node, sql: str) -> Node:
    return Call("not", (rules.coerce(node, T.BOOL, "NOT"),), T.BOOL, sql)


def _negate(t: Translator, node: Expr) -> Node:
    return rules.negate(t.translate(node.this), _sql(node))


def _is(t: Translator, node: Expr) -> Node:
    if not isinstance(node.expression, exp.Null):
        raise ExpressionError(f"IS is supported with NULL only: {_sql(node)}")
    return Call("is_null", (t.translate(node.this),), T.BOOL, _sql(node))


def _in(t: Translator, node: Expr) -> Node:
    if node.args.get("query"):
        raise ExpressionError(f"a subquery is not supported: {_sql(node)}")
    _only(node, "this", "expressions")
    _, operands = rules.unify([t.translate(each) for each in (node.this, *node.expressions)], "IN")
    return Call("in", operands, T.BOOL, _sql(node))


def _between(t: Translator, node: Expr) -> Node:
    _only(node, "this", "low", "high")
    sql = _sql(node)
    value = t.translate(node.this)
    low = rules.comparison("greater_equal", value, t.translate(node.args["low"]), sql)
    high = rules.comparison("less_equal", value, t.translate(node.args["high"]), sql)
    return Call("and", (low, high), T.BOOL, sql)


def _like(t: Translator, node: Expr) -> Node:
    _only(node, "this", "expression", "negate")
    function = "like" if isinstance(node, exp.Like) else "ilike"
    matched = _pattern_call(t, node, function)
    return _negated(matched, _sql(node)) if node.args.get("negate") else matched


def _pattern(t: Translator, node: Expr) -> Node:
    _only(node, "this", "expression")
    return _pattern_call(t, node, _PATTERNS[type(node)])


def _pattern_call(t: Translator, node: Expr, function: str) -> Node:
    sql = _sql(node)
    text = rules.coerce(t.translate(node.this), T.STRING, sql)
    pattern = t.translate(node.expression)
    if not isinstance(pattern, Literal) or not isinstance(pattern.value, str):
        raise ExpressionError(f"the pattern must be a text constant in {sql}")
    return Call(function, (text, pattern), T.BOOL, sql)


def _case(t: Translator, node: Expr) -> Node:
    _only(node, "this", "ifs", "default")
    tests = [branch.this for branch in node.args["ifs"]]
    if node.this:
        subject = t.translate(node.this)
        conditions = [rules.comparison("equal", subject, t.translate(test), _sql(node)) for test in tests]
    else:
        conditions = [t.translate(test) for test in tests]
    values = [t.translate(branch.args["true"]) for branch in node.args["ifs"]]
    return rules.choice(conditions, [*values, _default(t, node.args.get("default"))], _sql(node))


def _if(t: Translator, node: Expr) -> Node:
    values = [t.translate(node.args["true"]), _default(t, node.args.get("false"))]
    return rules.choice([t.translate(node.this)], values, _sql(node))


def _default(t: Translator, node: Expr | None) -> Node:
    return t.translate(node) if node else Literal(None, None)


def _cast(t: Translator, node: Expr) -> Node:
    _only(node, "this", "to")
    to = node.args["to"]
    name = getattr(to.this, "value", str(to.this))
    if name not in _SQL_TYPES or to.expressions:
        raise ExpressionError(
            f"the type {_sql(to)} is not supported; known are {', '.join(sorted(_SQL_TYPES))}"
        )
    return rules.cast(t.translate(node.this), _SQL_TYPES[name], _sql(node))


def _several(function: str) -> Handler:
    def handle(t: Translator, node: Expr) -> Node:
        type_, operands = rules.unify(
            [t.translate(each) for each in (node.this, *node.expressions)], function.upper()
        )
        return Call(function, operands, type_, _sql(node))

    return handle


def _nullif(t: Translator, node: Expr) -> Node:
    value, other = t.translate(node.this), t.translate(node.expression)
    equal = rules.comparison("equal", value, other, _sql(node))
    return rules.choice([equal], [Literal(None, None), value], _sql(node))


def _abs(t: Translator, node: Expr) -> Node:
    value = t.translate(node.this)
    rules.expect(value, rules.NUMBERS, "abs")
    _, (value,) = rules.unify([value], "abs")
    return Call("abs", (value,), _type(value), _sql(node))


def _round(t: Translator, node: Expr) -> Node:
    _only(node, "this", "decimals")
    sql = _sql(node)
    value = t.translate(node.this)
    rules.expect(value, rules.NUMBERS, "round")
    _, (value,) = rules.unify([value], "round")
    digits = _constant(t, node.args.get("decimals"), 0, sql)
    if value.type in rules.INTEGERS and digits < 0:
        raise ExpressionError(f"an integer cannot be rounded to {digits} digits in {sql}")
    if value.type in rules.INTEGERS:
        return value
    return Call("round", (value, Literal(digits, T.INT32)), _type(value), sql)


def _whole(function: str) -> Handler:
    def handle(t: Translator, node: Expr) -> Node:
        _only(node, "this")
        value = t.translate(node.this)
        rules.expect(value, rules.NUMBERS, function)
        type_ = T.FLOAT32 if value.type == T.FLOAT32 else T.FLOAT64
        return Call(function, (rules.coerce(value, type_, function),), type_, _sql(node))

    return handle


def _real(t: Translator, node: Expr) -> Node:
    function = _REAL_FUNCTIONS[type(node)]
    return Call(function, (_as_real(t.translate(node.this), function),), T.FLOAT64, _sql(node))


def _power(t: Translator, node: Expr) -> Node:
    operands = (_as_real(t.translate(node.this), "power"), _as_real(t.translate(node.expression), "power"))
    return Call("power", operands, T.FLOAT64, _sql(node))


def _as_real(node: Node, what: str) -> Node:
    rules.expect(node, rules.NUMBERS, what)
    return rules.coerce(node, T.FLOAT64, what)


def _text(t: Translator, node: Expr) -> Node:
    _only(node, "this")
    function, type_ = _TEXT_FUNCTIONS[type(node)]
    return Call(function, (rules.coerce(t.translate(node.this), T.STRING, function),), type_, _sql(node))


def _concat(t: Translator, node: Expr) -> Node:
    operands = [rules.coerce(t.translate(each), T.STRING, "concat") for each in node.expressions]
    return Call("concat", tuple(operands), T.STRING, _sql(node))


def _join_texts(t: Translator, node: Expr) -> Node:
    operands = [rules.coerce(t.translate(each), T.STRING, "||") for each in (node.this, node.expression)]
    return Call("join_texts", tuple(operands), T.STRING, _sql(node))


def _substring(t: Translator, node: Expr) -> Node:
    _only(node, "this", "start", "length")
    sql = _sql(node)
    text = rules.coerce(t.translate(node.this), T.STRING, "substring")
    start = _constant(t, node.args["start"], 1, sql)
    length = _constant(t, node.args.get("length"), (1 << 31) - 1, sql)
    if start < 1 or length < 0:
        raise ExpressionError(f"substring counts from 1 and takes a length of 0 or more: {sql}")
    return Call("substring", (text, Literal(start, T.INT64), Literal(length, T.INT64)), T.STRING, sql)


def _constant(t: Translator, node: Expr | None, absent: int, sql: str) -> int:
    if node is None:
        return absent
    value = t.translate(node)
    if not isinstance(value, Literal) or not isinstance(value.value, int) or isinstance(value.value, bool):
        raise ExpressionError(f"{_sql(node)} must be an integer constant in {sql}")
    return value.value


def _extract(t: Translator, node: Expr) -> Node:
    return _field_of(node.this.name, t.translate(node.expression), _sql(node))


def _field(t: Translator, node: Expr) -> Node:
    _only(node, "this")
    return _field_of(type(node).__name__, t.translate(node.this), _sql(node))


def _field_of(name: str, moment: Node, sql: str) -> Node:
    name = {"dayofweek": "dow", "dayofyear": "doy"}.get(name.lower(), name.lower())
    if name not in _FIELDS:
        raise ExpressionError(f"unknown field {name} in {sql}; known are {', '.join(_FIELDS)}")
    rules.expect(moment, rules.MOMENTS, name)
    return Call(f"extract_{name}", (rules.coerce(moment, T.TIMESTAMP, name),), T.INT64, sql)


def _truncate(t: Translator, node: Expr) -> Node:
    _only(node, "this", "unit", "input_type_preserved")
    sql = _sql(node)
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
        return _field_of(node.expressions[0].name, t.translate(node.expressions[1]), _sql(node))
    raise _unsupported(node)


def _type(node: Node) -> T:
    if node.type is None:
        raise ExpressionError("the type of NULL is unknown; cast it: CAST(NULL AS BIGINT)")
    return node.type


Handler = Callable[[Translator, "Expr"], Node]

_HANDLERS: dict[type, Handler] = {
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
    exp.Like: _like,
    exp.ILike: _like,
    **dict.fromkeys(_PATTERNS, _pattern),
    exp.Case: _case,
    exp.If: _if,
    exp.Cast: _cast,
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
