"""From what Avro has, by the schema that it was written with, to the values of columns."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from nebuli.connectors.errors import short
from nebuli.connectors.formats.instants import TooFine, instants, wrong_value
from nebuli.dataflow.types import type_name

if TYPE_CHECKING:
    from collections.abc import Mapping

Convert = Callable[[Any], Any]
"""From a value as it was written, without regard to logical types, to what Arrow takes. Raises Unfit."""

_MICROSECONDS = {
    "timestamp-millis": (1000, 1),
    "timestamp-micros": (1, 1),
    "timestamp-nanos": (1, 1000),
    "local-timestamp-millis": (1000, 1),
    "local-timestamp-micros": (1, 1),
    "local-timestamp-nanos": (1, 1000),
    "io.debezium.time.Timestamp": (1000, 1),
    "io.debezium.time.MicroTimestamp": (1, 1),
    "io.debezium.time.NanoTimestamp": (1, 1000),
}
"""By logical type, or the name that Kafka Connect has for one: what a number is multiplied by, and divided."""
_DAYS = ("date", "io.debezium.time.Date")


class Unfit(Exception):
    """A value, or every value of a type, that a column cannot have."""


def converts_record(writer: Any, schema: pa.Schema, names: Mapping[str, Any]) -> dict[str, Convert]:
    """By the columns that records of this type have, how a value of it is one. Raises Unfit."""
    kind = _named(writer, names)
    if not isinstance(kind, dict) or kind.get("type") != "record":
        raise Unfit(f"its schema is {_said(writer)}; expected a record")
    written = {each["name"]: each["type"] for each in kind["fields"]}
    return {
        field.name: converts(written[field.name], field.type, names, field.name)
        for field in schema
        if field.name in written
    }


def converts(writer: Any, type_: pa.DataType, names: Mapping[str, Any], column: str) -> Convert:
    """How a value of an Avro type is one of a column. Raises Unfit where none is."""
    kind = _named(writer, names)
    if isinstance(kind, list):
        others = [each for each in kind if each != "null"]
        if len(others) > 1:
            raise Unfit(
                f"column {column}: the type is a union of {_said(kind)}; expected null and one other type"
            )
        inner = converts(others[0], type_, names, column) if others else _null
        return lambda value: None if value is None else inner(value)
    if kind in ("null", {"type": "null"}):
        return _null
    base = kind["type"] if isinstance(kind, dict) else kind
    if base == "record" and pa.types.is_struct(type_):
        return _converts_struct(kind, type_, names, column)
    if base == "array" and pa.types.is_list(type_):
        item = converts(kind["items"], type_.value_type, names, column)
        return lambda values: [item(each) for each in values]
    convert = _converts_value(base, kind if isinstance(kind, dict) else {}, type_)
    if convert is None:
        raise Unfit(f"column {column}: Avro's {_said(kind)} is not a valid {type_name(type_)}")

    def checked(value: Any) -> Any:
        try:
            return convert(value)
        except TooFine as error:
            raise Unfit(f"column {column}: {error}") from None
        except (ValueError, OverflowError, pa.ArrowInvalid):
            shown = repr(short(str(value)))
            raise Unfit(f"column {column}: {wrong_value(shown, type_name(type_))}") from None

    return checked


def _converts_struct(kind: Any, type_: pa.StructType, names: Mapping[str, Any], column: str) -> Convert:
    written = {each["name"]: each["type"] for each in kind["fields"]}
    fields = {
        field.name: converts(written[field.name], field.type, names, f"{column}.{field.name}")
        for field in type_
        if field.name in written
    }
    return lambda record: {name: convert(record[name]) for name, convert in fields.items()}


def _converts_value(base: Any, kind: Mapping[str, Any], type_: pa.DataType) -> Convert | None:
    match base:
        case "int" | "long":
            return _converts_integer(kind.get("logicalType") or kind.get("connect.name"), type_)
        case "string" | "enum":
            return _converts_text(type_)
        case "bytes" | "fixed" if kind.get("logicalType") == "decimal":
            return _converts_decimal(int(kind.get("scale", 0)), type_)
        case "bytes" | "fixed":
            return bytes if pa.types.is_binary(type_) else None
        case "float" | "double":
            return _converts_float(type_)
    return bool if base == "boolean" and pa.types.is_boolean(type_) else None


def _converts_integer(logical: Any, type_: pa.DataType) -> Convert | None:
    if pa.types.is_timestamp(type_) and logical in _MICROSECONDS:
        factor, divisor = _MICROSECONDS[logical]
        return lambda value: _within(value * factor // divisor, 64, signed=True)
    if pa.types.is_date(type_) and logical in _DAYS:
        return lambda value: _within(value, 32, signed=True)
    if pa.types.is_integer(type_):
        bits, signed = type_.bit_width, pa.types.is_signed_integer(type_)
        return lambda value: _within(value, bits, signed=signed)
    return _converts_float(type_)


def _converts_float(type_: pa.DataType) -> Convert | None:
    if not pa.types.is_floating(type_):
        return None
    return _short_float if type_.bit_width == 32 else float


def _converts_text(type_: pa.DataType) -> Convert | None:
    if pa.types.is_string(type_):
        return str
    if pa.types.is_timestamp(type_):
        return lambda value: instants(pa.array([value], pa.string()), type_)[0].value
    if pa.types.is_date(type_):
        return lambda value: pa.scalar(value).cast(type_).value
    return None


def _converts_decimal(scale: int, type_: pa.DataType) -> Convert | None:
    """As text with all of its digits, or as the nearest float."""

    def exact(value: bytes) -> Decimal:
        number = int.from_bytes(value, "big", signed=True)
        return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))

    if pa.types.is_string(type_):
        return lambda value: format(exact(value), "f")
    to_float = _converts_float(type_)
    return None if to_float is None else lambda value: to_float(exact(value))


def _null(_: Any) -> None:
    return None


def _short_float(value: Any) -> float:
    number = float(value)
    with np.errstate(over="ignore"):
        short_number = float(np.float32(number))
    if math.isinf(short_number) and not math.isinf(number):
        raise OverflowError
    return short_number


def _within(value: int, bits: int, *, signed: bool) -> int:
    low, high = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
    if not low <= value < high:
        raise OverflowError
    return value


def _named(writer: Any, names: Mapping[str, Any]) -> Any:
    """Resolve a name, and the inner type of ``{"type": {...}}``."""
    while True:
        if isinstance(writer, str) and writer in names:
            writer = names[writer]
        elif isinstance(writer, dict) and isinstance(writer.get("type"), dict | list):
            writer = writer["type"]
        else:
            return writer


def _said(kind: Any) -> str:
    match kind:
        case list():
            return ", ".join(_said(each) for each in kind)
        case dict():
            logical = kind.get("logicalType") or kind.get("connect.name") or kind.get("name")
            return f"{kind['type']} ({logical})" if logical else str(kind["type"])
    return str(kind)
