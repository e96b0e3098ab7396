"""The typing rules of SQL expressions, DuckDB's with the listed exceptions.

Differences from DuckDB, all because the columns have no 128-bit integers and no decimals: a literal like
``1.5`` is a float64 (a float32 next to a float32); a uint64 and a signed integer have no common type, cast one
of them; the sum of integers is an int64.
"""

from __future__ import annotations

import datetime as dt
from functools import reduce
from typing import TYPE_CHECKING

from placement.sql.typed_tree import Call, ExpressionError, Literal, Node, Text
from topology.schema import DataType as T
from topology.schema import sql_name

if TYPE_CHECKING:
    from collections.abc import Sequence

SIGNED = (T.INT8, T.INT16, T.INT32, T.INT64)
UNSIGNED = (T.UINT8, T.UINT16, T.UINT32, T.UINT64)
INTEGERS = SIGNED + UNSIGNED
FLOATS = (T.FLOAT32, T.FLOAT64)
NUMBERS = INTEGERS + FLOATS
MOMENTS = (T.DATE, T.TIMESTAMP)

_BITS = {type_: 8 << SIGNED.index(type_) for type_ in SIGNED} | {
    type_: 8 << UNSIGNED.index(type_) for type_ in UNSIGNED
}
_CASTS = {
    **dict.fromkeys(INTEGERS, (*NUMBERS, T.BOOL, T.STRING)),
    **dict.fromkeys(FLOATS, (*NUMBERS, T.BOOL)),
    T.BOOL: (*NUMBERS, T.STRING),
    T.STRING: (*NUMBERS, *MOMENTS),
    T.DATE: (T.TIMESTAMP, T.STRING),
    T.TIMESTAMP: (T.DATE,),
    T.BINARY: (),
}


def integer_range(type_: T) -> tuple[int, int]:
    """The least and the greatest value of an integer type."""
    bits = _BITS[type_]
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if type_ in SIGNED else (0, (1 << bits) - 1)


def integer_literal(value: int) -> Literal:
    """A written integer: int32, else int64, else uint64; it adapts to what it is used with."""
    for type_ in (T.INT32, T.INT64, T.UINT64):
        least, greatest = integer_range(type_)
        if least <= value <= greatest:
            return Literal(value, type_, adapts=True)
    raise ExpressionError(f"the number {value} is beyond the range of BIGINT and UBIGINT")


def cast(node: Node, to: T, sql: Text) -> Node:
    """``CAST(node AS to)``; refuses what has no agreed meaning."""
    if isinstance(node, Literal) and (node.value is None or node.type == to):
        return Literal(node.value, to)
    if isinstance(node, Literal) and isinstance(node.value, str) and to in MOMENTS:
        return _moment(node.value, to)
    if node.type == to or node.type is None:
        return node
    if to not in _CASTS[node.type]:
        allowed = ", ".join(map(sql_name, _CASTS[node.type])) or "nothing"
        raise ExpressionError(
            f"{node.sql} is {sql_name(node.type)} and cannot be cast to {sql_name(to)}, only to {allowed}"
        )
    return Call("cast", (node,), to, sql)


def coerce(node: Node, to: T, what: Text) -> Node:
    """``node`` where ``what`` needs type ``to``: widened, or refused with both types named."""
    if node.type == to:
        return Literal(node.value, to) if isinstance(node, Literal) else node
    if isinstance(node, Literal):
        return _coerce_literal(node, to, what)
    if node.type is None or common_type(node.type, to) != to:
        raise mismatch(what, node, to)
    return Call("cast", (node,), to, node.written if isinstance(node, Call) else node.sql)


def expect(node: Node, allowed: Sequence[T], what: Text) -> None:
    """Refuses a node whose type is not in ``allowed``; NULL fits all."""
    if node.type is not None and node.type not in allowed:
        names = [*map(sql_name, allowed)]
        expected = (
            "a number"
            if allowed == NUMBERS
            else names[0]
            if len(names) == 1
            else f"one of {', '.join(names)}"
        )
        raise ExpressionError(
            f"type mismatch: {what} needs {expected}, but {node.sql} is {sql_name(node.type)}"
        )


def mismatch(what: Text, node: Node, needed: T) -> ExpressionError:
    """The error for a node of another type than ``what`` needs."""
    found = "NULL" if node.type is None else sql_name(node.type)
    return ExpressionError(f"type mismatch: {what} needs {sql_name(needed)}, but {node.sql} is {found}")


def common_type(a: T, b: T) -> T | None:
    """The smallest type that holds the values of both, as DuckDB's COALESCE has it."""
    if a == b:
        return a
    if a in NUMBERS and b in NUMBERS:
        return _common_number(a, b)
    return T.TIMESTAMP if {a, b} == set(MOMENTS) else None


def unify(nodes: Sequence[Node], what: Text) -> tuple[T, tuple[Node, ...]]:
    """The common type of all nodes, and the nodes in that type."""
    fixed = [node for node in nodes if not (isinstance(node, Literal) and (node.adapts or node.type is None))]
    free = [node for node in nodes if isinstance(node, Literal) and node.adapts and node.type is not None]
    leading = fixed or free
    if not leading:
        raise ExpressionError(f"{what} has only NULL, whose type is unknown; cast it: CAST(NULL AS BIGINT)")
    type_ = reduce(lambda so_far, node: _widen(so_far, node, what), leading[1:], _known(leading[0]))
    for literal in free:
        type_ = _adapt(type_, literal, what)
    return type_, tuple(coerce(node, type_, what) for node in nodes)


def arithmetic(function: str, a: Node, b: Node, sql: Text) -> Node:
    """``+ - * / // %`` on numbers, and ``+ -`` on dates and days."""
    if T.DATE in {a.type, b.type} and function in {"add", "subtract"}:
        return _date_arithmetic(function, a, b, sql)
    for node in (a, b):
        expect(node, NUMBERS, sql)
    type_, operands = unify((a, b), sql)
    if function == "divide" and type_ in INTEGERS:
        type_ = T.FLOAT64
    elif function == "integer_divide" and type_ in FLOATS:
        raise ExpressionError(
            f"{sql} divides values of type {sql_name(type_)}, but // takes only integers: use /, or cast"
        )
    elif (
        type_ in INTEGERS
        and type_ not in {a.type, b.type}
        and not any(isinstance(n, Literal) for n in (a, b))
    ):
        type_ = T.INT64  # DuckDB computes a mix of signed and unsigned in its BIGINT
    return Call(function, tuple(_numeric_operand(node, type_, sql) for node in operands), type_, sql)


def comparison(function: str, a: Node, b: Node, sql: Text) -> Node:
    """``= <> < <= > >=`` and ``IS [NOT] DISTINCT FROM``, on values of a common type."""
    _, operands = unify((a, b), sql)
    return Call(function, operands, T.BOOL, sql)


def negate(node: Node, sql: Text) -> Node:
    """Unary minus; a literal takes its sign, so that the least int64 can be written."""
    expect(node, NUMBERS, sql)
    if isinstance(node, Literal) and node.adapts and isinstance(node.value, int):
        return integer_literal(-node.value)
    if isinstance(node, Literal) and node.adapts and isinstance(node.value, float):
        return Literal(-node.value, node.type, adapts=True)
    return Call("negate", (node,), _known(node), sql)


def choice(conditions: Sequence[Node], values: Sequence[Node], sql: Text) -> Node:
    """``CASE``: the value of the first true condition; the last of ``values`` is that of ELSE."""
    type_, typed = unify(values, sql)
    tests = [coerce(condition, T.BOOL, "WHEN") for condition in conditions]
    pairs = [node for pair in zip(tests, typed, strict=False) for node in pair]
    return Call("case", (*pairs, typed[-1]), type_, sql)


def _known(node: Node) -> T:
    if node.type is None:
        raise ExpressionError("the type of NULL is unknown; cast it: CAST(NULL AS BIGINT)")
    return node.type


def _common_number(a: T, b: T) -> T | None:
    if a in FLOATS or b in FLOATS:
        return T.FLOAT64 if T.FLOAT64 in {a, b} else T.FLOAT32
    if (a in SIGNED) == (b in SIGNED):
        return max(a, b, key=_BITS.__getitem__)
    signed, unsigned = (a, b) if a in SIGNED else (b, a)
    if unsigned == T.UINT64:
        return None
    return next(t for t in SIGNED if _BITS[t] >= _BITS[signed] and _BITS[t] > _BITS[unsigned])


def _widen(so_far: T, node: Node, what: Text) -> T:
    type_ = common_type(so_far, _known(node))
    if type_ is None:
        raise ExpressionError(
            f"type mismatch: {what} combines {sql_name(so_far)} with {node.sql}, which is {sql_name(_known(node))}; "
            "cast one of them"
        )
    return type_


def _adapt(type_: T, literal: Literal, what: Text) -> T:
    value = literal.value
    if isinstance(value, int) and type_ in INTEGERS:
        least, greatest = integer_range(type_)
        return type_ if least <= value <= greatest else _widen(type_, literal, what)
    if isinstance(value, float) and type_ in FLOATS:
        return type_
    if isinstance(value, str) and type_ in MOMENTS:
        return type_
    return _widen(type_, literal, what)


def _coerce_literal(node: Literal, to: T, what: Text) -> Literal:
    match node.value:
        case None:
            return Literal(None, to)
        case str() as text if to in MOMENTS:
            return _moment(text, to)
        case bool():
            raise mismatch(what, node, to)
        case int() as number if to in INTEGERS:
            return Literal(_in_range(number, to, what), to)
        case int() | float() as number if to in FLOATS:
            return Literal(float(number), to)
        case dt.date() as day if to == T.TIMESTAMP:
            return Literal(dt.datetime(day.year, day.month, day.day, tzinfo=dt.UTC), to)
    raise mismatch(what, node, to)


def _in_range(number: int, to: T, what: Text) -> int:
    least, greatest = integer_range(to)
    if not least <= number <= greatest:
        raise ExpressionError(
            f"{what} needs {sql_name(to)}, whose range {least} to {greatest} does not include {number}"
        )
    return number


def _moment(text: str, to: T) -> Literal:
    """A date or timestamp written as text; without an offset it is UTC."""
    try:
        if to == T.DATE:
            return Literal(dt.date.fromisoformat(text.strip()), to)
        moment = dt.datetime.fromisoformat(text.strip())
        return Literal(moment.replace(tzinfo=moment.tzinfo or dt.UTC).astimezone(dt.UTC), to)
    except (ValueError, OverflowError):
        example = "2013-01-31" if to == T.DATE else "2013-01-31 18:30:00"
        raise ExpressionError(f"{text!r} is not a {sql_name(to)}; write it like '{example}'") from None


def _numeric_operand(node: Node, type_: T, sql: Text) -> Node:
    return node if node.type == type_ else coerce(node, type_, sql)


def _date_arithmetic(function: str, a: Node, b: Node, sql: Text) -> Node:
    if function == "subtract" and a.type == b.type == T.DATE:
        return Call("days_between", (b, a), T.INT64, sql)
    if function == "add" and b.type == T.DATE:
        a, b = b, a
    expect(b, (T.INT32, T.INT16, T.INT8, T.UINT16, T.UINT8), sql)
    expect(a, (T.DATE,), sql)
    return Call(f"{function}_days", (a, coerce(b, T.INT32, sql)), T.DATE, sql)
