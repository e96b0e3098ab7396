"""The functions of the typed tree by pyarrow's kernels, with DuckDB's semantics.

A kernel takes Arrow arrays, of which some may be scalars, and gives an array. Integer arithmetic is
checked. NaN equals itself and is greater than every other float, as in DuckDB, unlike in Arrow's comparisons.
"""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Decimal
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nebuli.dataflow.types import arrow_type
from placement.sql.typed_tree import Call, Literal, Node
from topology.schema import DataType as T

if TYPE_CHECKING:
    from collections.abc import Callable

    Kernel = Callable[..., Any]

_FLOATS = (T.FLOAT32, T.FLOAT64)
SPACES = " \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_ZONE = r":\d\d\S*(Z|[+-]\d\d(:?\d\d)?)$"
_NAIVE = pa.timestamp("us")
_UTC = arrow_type(T.TIMESTAMP)


def kernel(call: Call) -> Kernel:
    """The kernel that computes ``call``, made for the types of its arguments and for its constants."""
    if call.function in _MADE:
        return _MADE[call.function](call)
    real = call.arguments[0].type in _FLOATS
    return _REAL[call.function] if real and call.function in _REAL else _KERNELS[call.function]


def may_fail(node: Node) -> bool:
    """True if rows exist for which evaluating ``node`` is an error."""
    return isinstance(node, Call) and (_fails(node) or any(map(may_fail, node.arguments)))


def type_of(node: Node) -> T:
    """The type of a node, which translation has given every one."""
    assert node.type is not None, "only in half-typed trees NULL has no type"
    return node.type


def _fails(call: Call) -> bool:
    if call.function == "cast":
        return call.type != T.FLOAT64 or call.arguments[0].type == T.STRING
    return call.function in _CHECKED and call.type not in _FLOATS


def _equal(a: Any, b: Any) -> Any:
    return pc.or_(pc.equal(a, b), pc.and_(pc.is_nan(a), pc.is_nan(b)))


def _less(a: Any, b: Any) -> Any:
    return pc.or_(pc.less(a, b), pc.and_(pc.is_nan(b), pc.invert(pc.is_nan(a))))


def _not_distinct(equal: Kernel, a: Any, b: Any) -> Any:
    return pc.or_(pc.fill_null(equal(a, b), False), pc.and_(pc.is_null(a), pc.is_null(b)))


def _beyond(call: Call) -> Kernel:
    """``greatest`` and ``least``: null only if all are."""
    real = call.type in _FLOATS
    less = _less if real else pc.less

    def keep_less(a: Any, b: Any) -> Any:
        return pc.if_else(pc.coalesce(less(a, b), pc.is_null(b)), a, b)

    def keep_greater(a: Any, b: Any) -> Any:
        return pc.if_else(pc.coalesce(less(b, a), pc.is_null(b)), a, b)

    chosen = keep_greater if call.function == "greatest" else keep_less
    return lambda *values: reduce(chosen, values)


def _in(call: Call) -> Kernel:
    equal = _equal if call.arguments[0].type in _FLOATS else pc.equal
    listed = call.arguments[1:]
    if equal is _equal or not all(isinstance(each, Literal) for each in listed):
        return lambda value, *others: reduce(pc.or_kleene, [equal(value, other) for other in others])
    known = [each.value for each in listed if isinstance(each, Literal) and each.value is not None]
    set_ = pa.array(known, arrow_type(type_of(call.arguments[0])))
    if_absent = pa.scalar(False if len(known) == len(listed) else None, pa.bool_())

    def is_in(value: Any, *_: Any) -> Any:
        found = pc.if_else(pc.is_in(value, value_set=set_), True, if_absent)
        return pc.if_else(pc.is_valid(value), found, pa.scalar(None, pa.bool_()))

    return is_in


def _integer_modulo(a: Any, b: Any) -> Any:
    if isinstance(b, pa.Scalar) and isinstance(a, pa.Array) and a.type == b.type and not a.null_count:
        values, by = a.to_numpy(), b.as_py()
        if by is not None and by > 0 and values.min(initial=0) >= 0:
            unsigned = values.view(f"u{values.itemsize}")  # NumPy divides these in half the time
            multiple = unsigned // by
            multiple *= by
            return pa.array((unsigned - multiple).view(values.dtype))
    if pa.types.is_signed_integer(a.type):
        # The least integer has no quotient by -1. By 1, all remainders are 0 as well.
        b = pc.if_else(pc.equal(b, pa.scalar(-1, b.type)), pa.scalar(1, b.type), b)
    return pc.subtract_checked(a, pc.multiply_checked(pc.divide_checked(a, b), b))


def _real_modulo(a: Any, b: Any) -> Any:
    missing = pc.or_(pc.is_null(a), pc.is_null(b))
    with np.errstate(invalid="ignore"):
        values = np.fmod(_numbers(a), _numbers(b))
    return pc.if_else(missing, pa.scalar(None, a.type), pa.array(values, a.type))


def _numbers(values: Any) -> Any:
    filled = pc.fill_null(values, 0.0)
    return filled.as_py() if isinstance(filled, pa.Scalar) else filled.to_numpy()


def _negate(call: Call) -> Kernel:
    if call.type in _FLOATS:
        return pc.negate  # type: ignore[no-any-return] # pyarrow is untyped
    zero = pa.scalar(0, arrow_type(call.type))
    return lambda value: pc.subtract_checked(zero, value)


def _round(call: Call) -> Kernel:
    """Half away from zero, by scaling, which is what DuckDB does; 1.005, which is below it, is not half of a hundredth.

    Not by Arrow's round, which gives -1 for the greatest float below -0.5 in size.
    """
    digits = _constant(call, 1)
    if digits < -MOST_DIGITS:
        return lambda value, _: pc.if_else(pc.is_finite(value), pa.scalar(0.0, value.type), value)
    scale = pa.scalar(10.0 ** abs(digits))
    up, down = (pc.multiply, pc.divide) if digits >= 0 else (pc.divide, pc.multiply)
    type_ = arrow_type(call.type)

    def rounded(value: Any, _: Any) -> Any:
        exact = value.cast(pa.float64())
        scaled = up(exact, scale)
        toward = pc.trunc(scaled)
        rest = pc.abs(pc.subtract(scaled, toward))
        away = pc.greater_equal(rest, 0.5)
        if 0 < digits <= EXACT_SCALES:
            away = pc.and_not(away, _is_below(exact, scale, scaled, pc.equal(rest, 0.5)))
        result = down(pc.if_else(away, pc.add(toward, pc.sign(scaled)), toward), scale)
        return pc.if_else(pc.is_finite(result), result.cast(type_), value)

    return rounded


MOST_DIGITS = 308
"""So many a float64 has before its point."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,9})?", re.ASCII)
_MOST_INTEGER_DIGITS = 20
EXACT_SCALES = 22
"""Powers of ten up to this one are exact as float64."""
SPLITTER = 134217729.0
"""2**27 + 1: splits a float64 into halves whose products are exact (Dekker 1971)."""


def _is_below(value: Any, scale: Any, scaled: Any, tie: Any) -> Any:
    """Where there is a ``tie`` in ``scaled`` only because the product was rounded up to it."""
    if isinstance(tie, pa.Array) and not tie.true_count:
        return tie
    (a, a_low), (b, b_low) = _halves(value), _halves(scale)
    lost = pc.subtract(pc.multiply(a, b), scaled)
    for left, right in ((a, b_low), (a_low, b), (a_low, b_low)):
        lost = pc.add(lost, pc.multiply(left, right))
    return pc.and_(tie, pc.less(pc.multiply(lost, pc.sign(scaled)), 0.0))


def _halves(value: Any) -> tuple[Any, Any]:
    wide = pc.multiply(value, SPLITTER)
    upper = pc.subtract(wide, pc.subtract(wide, value))
    return upper, pc.subtract(value, upper)


def _cast(call: Call) -> Kernel:
    source, target = type_of(call.arguments[0]), call.type
    to = arrow_type(target)
    if target == T.BOOL:
        return lambda value: pc.not_equal(value, pa.scalar(0, value.type))
    if source in _FLOATS and target not in _FLOATS:
        return lambda value: pc.cast(pc.round(value, round_mode="half_to_even"), to)
    if target in _FLOATS and source != T.STRING:
        return partial(_to_real, to=to)
    if source == T.STRING and pa.types.is_integer(to):
        return partial(_to_integer, to=to)
    if T.TIMESTAMP in (source, target):
        return _to_instant if source == T.STRING else lambda value: value.cast(_NAIVE).cast(to)
    return lambda value: pc.cast(_trimmed(value), to)


def _to_instant(text: Any) -> Any:
    """Texts with a zone or an offset, and others, which are in UTC: Arrow reads a column of one kind only."""
    text, nothing = _trimmed(text), pa.scalar(None, pa.string())
    has_zone = pc.match_substring_regex(text, _ZONE)
    zoned = pc.cast(pc.if_else(has_zone, text, nothing), _UTC)
    return pc.coalesce(zoned, pc.cast(pc.if_else(has_zone, nothing, text), _NAIVE).cast(_UTC))


def _trimmed(value: Any) -> Any:
    return pc.utf8_trim_whitespace(value) if pa.types.is_string(value.type) else value


def _to_integer(text: Any, to: pa.DataType) -> Any:
    """Texts of numbers, also with a fraction or an exponent, to the nearest integer, half away from zero."""
    text = _trimmed(text)
    try:
        return pc.cast(text, to)
    except pa.ArrowInvalid:
        if isinstance(text, pa.Scalar):
            return pc.cast(pa.scalar(_whole(text.as_py()), pa.string()), to)
        return pc.cast(pa.array(map(_whole, text.to_pylist()), pa.string()), to)


def _whole(text: str | None) -> str | None:
    """A number's text, rounded; other texts as they are, for Arrow to complain about."""
    if text is None or not _NUMBER.fullmatch(text):
        return text
    number = Decimal(text)
    if number and number.adjusted() > _MOST_INTEGER_DIGITS:
        return text
    return str(int(number.to_integral_value(ROUND_HALF_UP)))


def _to_real(value: Any, to: pa.DataType) -> Any:
    result = pc.cast(value, to, safe=False)  # from a bool or an integer it rounds to the nearest
    if pa.types.is_floating(value.type):
        lost = pc.and_(pc.is_inf(result), pc.is_finite(value))
        if pc.any(lost).as_py():
            raise pa.ArrowInvalid(f"Float value {value.filter(lost)[0]} is out of range for {to}")
    return result


def _extract(field: Callable[[Any], Any], value: Any) -> Any:
    return pc.cast(field(value.cast(_NAIVE)), pa.int64())


def _truncate(call: Call) -> Kernel:
    unit = _constant(call, 1)
    return lambda value, _: pc.floor_temporal(value.cast(_NAIVE), unit=unit).cast(_UTC)


def _shift(value: Any, microseconds: Any) -> Any:
    return pc.add_checked(value, microseconds.cast(pa.duration("us")))


def _add_days(move: Kernel, day: Any, days: Any) -> Any:
    return move(day.cast(pa.int32()), days).cast(pa.date32())


def _days_between(start: Any, end: Any) -> Any:
    days = pa.int32()
    return pc.subtract(end.cast(days).cast(pa.int64()), start.cast(days).cast(pa.int64()))


def _like(call: Call) -> Kernel:
    """SQL's LIKE without an escape character, which Arrow's has: so the pattern becomes a regular expression."""
    pattern = _constant(call, 1)
    if call.function == "ilike":
        lowered = _like_expression(pc.utf8_lower(pa.scalar(pattern)).as_py())
        return lambda value, _: pc.match_substring_regex(pc.utf8_lower(value), lowered)
    expression = _like_expression(pattern)
    return lambda value, _: pc.match_substring_regex(value, expression)


def _like_expression(pattern: str) -> str:
    parts = ({"%": ".*", "_": "."}.get(character) or re.escape(character) for character in pattern)
    return rf"(?s)\A{''.join(parts)}\z"


def _text_search(search: Kernel, pattern: str, value: Any, _: Any) -> Any:
    return search(value, pattern=pattern)


def _substring(call: Call) -> Kernel:
    start = _constant(call, 1) - 1
    stop = start + _constant(call, 2)
    return lambda value, *_: pc.utf8_slice_codeunits(value, start=start, stop=stop)


def _constant(call: Call, position: int) -> Any:
    argument = call.arguments[position]
    assert isinstance(argument, Literal), "the translation gives a constant here"
    return argument.value


_CHECKED = frozenset(
    {"add", "subtract", "multiply", "integer_divide", "modulo", "negate", "abs"}
    | {"add_days", "subtract_days", "add_microseconds"}
)
_REAL: dict[str, Kernel] = {
    "add": pc.add,
    "subtract": pc.subtract,
    "multiply": pc.multiply,
    "modulo": _real_modulo,
    "abs": pc.abs,
    "equal": _equal,
    "not_equal": lambda a, b: pc.invert(_equal(a, b)),
    "less": _less,
    "less_equal": lambda a, b: pc.invert(_less(b, a)),
    "greater": lambda a, b: _less(b, a),
    "greater_equal": lambda a, b: pc.invert(_less(a, b)),
    "not_distinct": partial(_not_distinct, _equal),
    "distinct": lambda a, b: pc.invert(_not_distinct(_equal, a, b)),
}
_KERNELS: dict[str, Kernel] = {
    "add": pc.add_checked,
    "subtract": pc.subtract_checked,
    "multiply": pc.multiply_checked,
    "integer_divide": pc.divide_checked,
    "divide": pc.divide,
    "modulo": _integer_modulo,
    "abs": pc.abs_checked,
    "equal": pc.equal,
    "not_equal": pc.not_equal,
    "less": pc.less,
    "less_equal": pc.less_equal,
    "greater": pc.greater,
    "greater_equal": pc.greater_equal,
    "not_distinct": partial(_not_distinct, pc.equal),
    "distinct": lambda a, b: pc.invert(_not_distinct(pc.equal, a, b)),
    "not": pc.invert,
    "is_null": pc.is_null,
    "floor": pc.floor,
    "ceil": pc.ceil,
    "sqrt": pc.sqrt,
    "ln": pc.ln,
    "exp": pc.exp,
    "power": pc.power,
    "upper": pc.utf8_upper,
    "lower": pc.utf8_lower,
    "length": lambda value: pc.cast(pc.utf8_length(value), pa.int64()),
    "trim": lambda value: pc.utf8_trim(value, characters=SPACES),
    "concat": lambda *values: pc.binary_join_element_wise(*(pc.fill_null(each, "") for each in values), ""),
    "join_texts": lambda *values: pc.binary_join_element_wise(*values, ""),
    "add_microseconds": _shift,
    "add_days": partial(_add_days, pc.add_checked),
    "subtract_days": partial(_add_days, pc.subtract_checked),
    "days_between": _days_between,
    "extract_year": partial(_extract, pc.year),
    "extract_quarter": partial(_extract, pc.quarter),
    "extract_month": partial(_extract, pc.month),
    "extract_day": partial(_extract, pc.day),
    "extract_hour": partial(_extract, pc.hour),
    "extract_minute": partial(_extract, pc.minute),
    "extract_second": partial(_extract, pc.second),
    "extract_dow": partial(_extract, lambda value: pc.day_of_week(value, week_start=7)),
    "extract_doy": partial(_extract, pc.day_of_year),
}
_MADE: dict[str, Callable[[Call], Kernel]] = {
    "negate": _negate,
    "greatest": _beyond,
    "least": _beyond,
    "in": _in,
    "round": _round,
    "cast": _cast,
    "truncate": _truncate,
    "like": _like,
    "ilike": _like,
    "starts_with": lambda call: partial(_text_search, pc.starts_with, _constant(call, 1)),
    "contains": lambda call: partial(_text_search, pc.match_substring, _constant(call, 1)),
    "substring": _substring,
}
