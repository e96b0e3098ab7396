"""Typed expressions as Spark SQL that gives the same values, and fails for the same rows.

The text is for a session with the settings of ``nebuli.spark.session``: ANSI mode, in which an overflow, a
failed cast and a division of integers by zero are errors. Where Spark's function of the same name differs, in signs of
zero, in infinities, in letters beyond ASCII, the text has the meaning expressed by other functions; an argument may
occur in it more than once. Functions without an exact counterpart do not get here: planning refuses it
(``placement.fragments.engines``).
"""

from __future__ import annotations

import datetime as dt
import math
import struct
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from nebuli.dataflow.kernels import EXACT_SCALES, MOST_DIGITS, SPACES, SPLITTER, may_fail, type_of
from placement.sql.typed_tree import Call, ColumnRef, Literal, Node
from topology.schema import DataType as T

if TYPE_CHECKING:
    from collections.abc import Callable

    Rule = Callable[[Call, list[str]], str]

TYPES = {
    T.BOOL: "BOOLEAN",
    T.INT8: "TINYINT",
    T.INT16: "SMALLINT",
    T.INT32: "INT",
    T.INT64: "BIGINT",
    T.UINT8: "SMALLINT",
    T.UINT16: "INT",
    T.UINT32: "BIGINT",
    T.FLOAT32: "FLOAT",
    T.FLOAT64: "DOUBLE",
    T.STRING: "STRING",
    T.BINARY: "BINARY",
    T.DATE: "DATE",
    T.TIMESTAMP: "TIMESTAMP",
}
"""Spark's types by ours. Unsigned integers are in the next signed type, which holds all of their values."""

_FLOATS = (T.FLOAT32, T.FLOAT64)
_INTEGERS = (T.INT8, T.INT16, T.INT32, T.INT64, T.UINT8, T.UINT16, T.UINT32)
_NAN, _INFINITY = "double('NaN')", "double('Infinity')"
_MOST = "1.7976931348623157E308D"
_BEYOND_FLOAT = "3.4028235677973366E38D"  # what is at least this becomes an infinity as a float32
_BEYOND_BIGINT = "9223372036854775808D"
_LAST_INT = (1 << 31) - 1


def identifier(name: str) -> str:
    """A name, quoted."""
    return f"`{name.replace('`', '``')}`"


def sql_of(node: Node) -> str:
    """The Spark SQL of an expression."""
    match node:
        case ColumnRef(name):
            return identifier(name)
        case Literal():
            return _literal(node)
        case Call(function, arguments):
            rule = _RULES[function]
            return rule(node, [sql_of(each) for each in arguments])


def _literal(node: Literal) -> str:  # noqa: PLR0911 - one per kind of value
    type_ = type_of(node)
    match node.value:
        case None:
            return f"CAST(NULL AS {TYPES[type_]})"
        case bool() as truth:
            return str(truth).upper()
        case int() | float() as number if type_ in _FLOATS:
            return _real(float(number), type_)
        case int() as number:
            return f"CAST({number} AS {TYPES[type_]})"
        case str() as text:
            return _text(text)
        case dt.datetime() as moment:
            return f"TIMESTAMP '{moment.astimezone(dt.UTC).replace(tzinfo=None).isoformat(' ')}'"
        case dt.date() as day:
            return f"DATE '{day.isoformat()}'"
    raise AssertionError(f"a literal of {type(node.value)}")


def _real(number: float, type_: T) -> str:
    if type_ is T.FLOAT32:
        number = _single(number)
    suffix = "F" if type_ is T.FLOAT32 else "D"
    if math.isfinite(number):
        return (
            f"{number!r}{suffix}"
            if number >= 0 and math.copysign(1, number) > 0
            else f"(-{-number!r}{suffix})"
        )
    name = "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    return f"{TYPES[type_].lower()}('{name}')"


def _single(number: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0")
    return f"'{escaped}'"


def _infix(operator: str) -> Rule:
    return lambda _, values: f"({f' {operator} '.join(values)})"


def _function(name: str) -> Rule:
    return lambda _, values: f"{name}({', '.join(values)})"


def _as(type_: T, sql: str) -> str:
    return f"CAST({sql} AS {TYPES[type_]})"


def _and(call: Call, values: list[str]) -> str:
    if any(map(may_fail, call.arguments[1:])):
        branches = " ".join(f"WHEN NOT {value} THEN FALSE" for value in values[:-1])
        return f"CASE {branches} ELSE {' AND '.join(values)} END"
    return f"({' AND '.join(values)})"


def _or(call: Call, values: list[str]) -> str:
    if any(map(may_fail, call.arguments[1:])):
        branches = " ".join(f"WHEN {value} THEN TRUE" for value in values[:-1])
        return f"CASE {branches} ELSE {' OR '.join(values)} END"
    return f"({' OR '.join(values)})"


def _case(_: Call, values: list[str]) -> str:
    pairs = zip(values[:-1:2], values[1:-1:2], strict=True)
    branches = " ".join(f"WHEN {condition} THEN {value}" for condition, value in pairs)
    return f"CASE {branches} ELSE {values[-1]} END"


def _several(name: str) -> Rule:
    return lambda _, values: values[0] if len(values) == 1 else f"{name}({', '.join(values)})"


def _in(_: Call, values: list[str]) -> str:
    return f"({values[0]} IN ({', '.join(values[1:])}))"


def _divide(call: Call, values: list[str]) -> str:
    """A division of floats; by a zero the result is an infinity or NaN, by the signs of both."""
    a, b = (f"CAST({each} AS DOUBLE)" if call.type is T.FLOAT32 else each for each in values)
    quotient = f"coalesce(try_divide({a}, {b}), {a} * power({b}, -1D))"
    return _as(call.type, quotient) if call.type is T.FLOAT32 else quotient


def _modulo(call: Call, values: list[str]) -> str:
    a, b = values
    if call.type in _FLOATS:
        return f"coalesce(try_mod({a}, {b}), {_as(call.type, f'({a} + {b}) * {_NAN}')})"
    # Not %, which gives 0 for the least integer by -1, where the quotient overflows.
    return f"({a} - {_integer_divide(call, values)} * {b})"


def _integer_divide(call: Call, values: list[str]) -> str:
    return _as(call.type, f"({values[0]} div {values[1]})")


def _round(call: Call, values: list[str]) -> str:
    """Rounding half away from zero, by scaling; a zero keeps its sign. The argument stands in it once."""
    digits = _constant(call, 1)
    value = values[0] if call.type is T.FLOAT64 else f"CAST({values[0]} AS DOUBLE)"
    if digits < -MOST_DIGITS:
        return f"element_at(transform(array({values[0]}), v -> CASE WHEN abs(v) <= {_MOST} THEN v * 0 ELSE v END), 1)"
    scale = f"{10.0 ** abs(digits)!r}D"
    up, down = ("*", "/") if digits >= 0 else ("/", "*")
    scaled = f"(v {up} {scale})"
    size = f"round(abs({scaled}))"
    if 0 < digits <= EXACT_SCALES:
        size = f"({size} - {_too_far(digits, scale, scaled)})"
    rounded = f"({size} * signum({scaled})) {down} {scale}"
    result = f"CASE WHEN abs({rounded}) <= {_MOST} THEN {rounded} ELSE v END"
    result = f"element_at(transform(array({value}), v -> {result}), 1)"
    return result if call.type is T.FLOAT64 else _as(call.type, result)


def _too_far(digits: int, scale: str, scaled: str) -> str:
    """1 where a product is a half only because it was rounded up to it, by what its rounding lost; else 0."""
    wide = 10.0**digits * SPLITTER
    b = wide - (wide - 10.0**digits)
    b_low = 10.0**digits - b
    a = f"(v * {SPLITTER!r}D - (v * {SPLITTER!r}D - v))"
    parts = f"{a} * {b_low!r}D + (v - {a}) * {b!r}D + (v - {a}) * {b_low!r}D"
    lost = f"({a} * {b!r}D - {scaled} + {parts})"
    tie = f"round(abs({scaled})) - abs({scaled}) = 0.5D AND abs({scaled}) < {float(1 << 52)!r}D"
    return f"CASE WHEN {tie} AND {lost} * signum({scaled}) < 0D THEN 1D ELSE 0D END"


def _floor(call: Call, values: list[str]) -> str:
    return _of_double(call, values[0], _lower)


def _ceil(call: Call, values: list[str]) -> str:
    return _of_double(call, values[0], lambda value: f"-({_lower(f'(-({value}))')})")


def _of_double(call: Call, value: str, compute: Callable[[str], str]) -> str:
    if call.type is T.FLOAT64:
        return f"({compute(value)})"
    return _as(call.type, compute(f"CAST({value} AS DOUBLE)"))


def _lower(value: str) -> str:
    """The whole number below; Spark's floor gives an integer, which does not hold all of them."""
    return f"CASE WHEN rint({value}) > {value} THEN rint({value}) - 1D ELSE rint({value}) END"


def _ln(_: Call, values: list[str]) -> str:
    value = values[0]
    return f"CASE WHEN {value} = 0D THEN -{_INFINITY} WHEN {value} < 0D THEN {_NAN} ELSE ln({value}) END"


def _power(_: Call, values: list[str]) -> str:
    """Return a power as C defines it, where Java returns NaN: 1 to any power, and -1 to an infinite one, is 1."""
    base, exponent = values
    return (
        f"CASE WHEN {base} = 1D AND {exponent} IS NOT NULL THEN 1D "
        f"WHEN {base} = -1D AND abs({exponent}) = {_INFINITY} THEN 1D ELSE power({base}, {exponent}) END"
    )


def _cast(call: Call, values: list[str]) -> str:
    source, target, value = type_of(call.arguments[0]), call.type, values[0]
    if target is T.BOOL:
        return f"({value} <> {_literal(Literal(0, source))})"
    if source in _FLOATS and target not in _FLOATS:
        return _as(target, _whole(value, target))
    if source is T.STRING and target in _INTEGERS:  # 19 digits before the point are those of a BIGINT
        return _as(target, f"round(CAST({value} AS DECIMAL(38, 19)))")
    if target is T.FLOAT32 and source is T.FLOAT64:
        too_large = f"abs({value}) >= {_BEYOND_FLOAT} AND abs({value}) <= {_MOST}"
        message = _text(f"a value is out of range for float32, in {call.sql}")
        return (
            f"CASE WHEN {too_large} THEN CAST(raise_error({message}) AS FLOAT) ELSE {_as(target, value)} END"
        )
    if source is T.DATE and target is T.STRING:
        return f"ltrim('+', {_as(target, value)})"  # which Spark writes before years of five digits
    return _as(target, value)


def _whole(value: str, target: T) -> str:
    """The nearest integer, as a double; one that a BIGINT has not becomes NaN, which it has neither."""
    rounded = f"rint(CAST({value} AS DOUBLE))"
    if target is not T.INT64:
        return rounded
    return f"CASE WHEN {rounded} >= {_BEYOND_BIGINT} THEN {_NAN} ELSE {rounded} END"


def _mapped(method: Callable[[Any], Any]) -> Rule:
    """A rule that maps letters one by one, as the embedded engine's tables do; Spark's own make ``SS`` of ``ß``."""

    def rule(_: Call, values: list[str]) -> str:
        before, after = _letters(method)
        return f"translate({values[0]}, {_text(before)}, {_text(after)})"

    return rule


@cache
def _letters(method: Callable[[Any], Any]) -> tuple[str, str]:
    """The characters that a function changes, and what it makes of them."""
    every = [chr(code) for code in range(1, 0x110000) if not 0xD800 <= code < 0xE000]
    pairs = zip(every, method(pa.array(every)).to_pylist(), strict=True)
    before, after = zip(*(pair for pair in pairs if pair[0] != pair[1]), strict=True)
    return "".join(before), "".join(after)


def _concat(_: Call, values: list[str]) -> str:
    return f"concat({', '.join(f'''coalesce({each}, '')''' for each in values)})"


def _substring(call: Call, values: list[str]) -> str:
    start, length = (min(_constant(call, position), _LAST_INT) for position in (1, 2))
    return f"substring({values[0]}, {start}, {length})"


def _like(call: Call, values: list[str]) -> str:
    """A LIKE without an escape character: so one that the pattern does not have."""
    pattern, value = _constant(call, 1), values[0]
    if call.function == "ilike":
        pattern = pc.utf8_lower(pa.scalar(pattern)).as_py()
        value = _mapped(pc.utf8_lower)(call, values)
    unused = next(chr(code) for code in range(1, 0x110000) if chr(code) not in f"{pattern}%_'\\")
    return f"({value} LIKE {_text(pattern)} ESCAPE {_text(unused)})"


def _truncate(call: Call, values: list[str]) -> str:
    return f"date_trunc('{_constant(call, 1)}', {values[0]})"


def _field(name: str) -> Rule:
    return lambda _, values: f"CAST({name}({values[0]}) AS BIGINT)"


def _constant(call: Call, position: int) -> Any:
    argument = call.arguments[position]
    assert isinstance(argument, Literal), "the translation gives a constant here"
    return argument.value


_RULES: dict[str, Rule] = {
    "add": _infix("+"),
    "subtract": _infix("-"),
    "multiply": _infix("*"),
    "divide": _divide,
    "integer_divide": _integer_divide,
    "modulo": _modulo,
    "negate": lambda _, values: f"(-({values[0]}))",
    "abs": _function("abs"),
    "equal": _infix("="),
    "not_equal": _infix("<>"),
    "less": _infix("<"),
    "less_equal": _infix("<="),
    "greater": _infix(">"),
    "greater_equal": _infix(">="),
    "not_distinct": _infix("<=>"),
    "distinct": lambda _, values: f"(NOT ({values[0]} <=> {values[1]}))",
    "not": lambda _, values: f"(NOT {values[0]})",
    "is_null": lambda _, values: f"({values[0]} IS NULL)",
    "and": _and,
    "or": _or,
    "in": _in,
    "case": _case,
    "coalesce": _several("coalesce"),
    "greatest": _several("greatest"),
    "least": _several("least"),
    "round": _round,
    "floor": _floor,
    "ceil": _ceil,
    "sqrt": _function("sqrt"),
    "ln": _ln,
    "exp": _function("exp"),
    "power": _power,
    "upper": _mapped(pc.utf8_upper),
    "lower": _mapped(pc.utf8_lower),
    "length": _field("char_length"),
    "trim": lambda _, values: f"trim(BOTH {_text(SPACES)} FROM {values[0]})",
    "concat": _concat,
    "join_texts": _function("concat"),
    "substring": _substring,
    "starts_with": _function("startswith"),
    "contains": _function("contains"),
    "like": _like,
    "ilike": _like,
    "cast": _cast,
    "truncate": _truncate,
    "add_microseconds": lambda _, values: f"timestamp_micros(unix_micros({values[0]}) + {values[1]})",
    "add_days": lambda _, values: f"date_from_unix_date(unix_date({values[0]}) + {values[1]})",
    "subtract_days": lambda _, values: f"date_from_unix_date(unix_date({values[0]}) - {values[1]})",
    "days_between": lambda _, values: (
        f"(CAST(unix_date({values[1]}) AS BIGINT) - CAST(unix_date({values[0]}) AS BIGINT))"
    ),
    **{
        f"extract_{name}": _field(name)
        for name in ("year", "quarter", "month", "day", "hour", "minute", "second")
    },
    "extract_dow": lambda _, values: f"CAST(dayofweek({values[0]}) - 1 AS BIGINT)",
    "extract_doy": _field("dayofyear"),
}


def aggregate_sql(function: str, argument: Node | None) -> str:
    """The Spark SQL of an aggregate; integers are added up exactly, and only the result must fit."""
    if argument is None:
        return "count(*)"
    value, real = sql_of(argument), argument.type in _FLOATS
    if function == "count distinct":
        return f"count(DISTINCT {value})"
    if function in ("count", "min", "max"):
        return f"{function}({value})"
    if real:
        return f"{function}(CAST({value} AS DOUBLE))"
    wide = (
        "DECIMAL(28, 0)" if argument.type is T.INT64 else "BIGINT"
    )  # no number of rows brings BIGINTs near their end
    total = f"sum(CAST({value} AS {wide}))"
    if function == "sum":
        return f"CAST({total} AS BIGINT)"
    return f"(CAST({total} AS DOUBLE) / nullif(CAST(count({value}) AS DOUBLE), 0D))"
