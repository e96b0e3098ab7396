"""The Arrow types that Spark uses for values of other ones, and the conversions that keep every value."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import types

from .errors import SchemaConflict

_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
}
_AS_IS = frozenset({"integer", "float", "boolean", "null"})
_ONE_TYPE = {
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("ns"),
    "duration": pa.duration("us"),
    "instant": pa.timestamp("us", tz="UTC"),
    "local time": pa.timestamp("us"),
}
_KINDS = {
    "integer": (types.is_integer,),
    "float": (types.is_floating,),
    "decimal": (types.is_decimal,),
    "boolean": (types.is_boolean,),
    "null": (types.is_null,),
    "string": (types.is_string, types.is_large_string, types.is_string_view),
    "binary": (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary),
    "date": (types.is_date,),
    "time": (types.is_time,),
    "duration": (types.is_duration,),
    "instant": (lambda kind: types.is_timestamp(kind) and kind.tz is not None,),
    "local time": (types.is_timestamp,),
    "struct": (types.is_struct,),
    "map": (types.is_map,),
    # No list views: pyarrow 26 casts one with a null to a list whose offsets are cut short.
    "list": (types.is_list, types.is_large_list, types.is_fixed_size_list),
}
_CONVERSIONS = {("integer", "float"), ("integer", "decimal")}
"""Changes of kind in which pyarrow's safe cast sees any loss."""


def spark_type(kind: pa.DataType) -> pa.DataType:
    """The type that Spark uses for values of the Arrow type ``kind``. Raises SchemaConflict if there is none."""
    kind = _plain(kind)
    name = _kind_of(kind)
    if kind in _WIDER:
        return _WIDER[kind]
    if name in _AS_IS:
        return kind
    if name in _ONE_TYPE:
        return _ONE_TYPE[name]
    if name == "decimal":
        # Spark has no scale below 0, which stands for zeros at the end.
        precision, scale = kind.precision - min(kind.scale, 0), max(kind.scale, 0)
        if scale <= precision <= 38:
            return pa.decimal128(precision, scale)
    return _spark_nested(name, kind)


def spark_field(field: pa.Field) -> pa.Field:
    """``field`` with the type that Spark uses for it."""
    return field.with_type(spark_type(field.type))


def _spark_nested(name: str, kind: pa.DataType) -> pa.DataType:
    match name:
        case "struct":
            return pa.struct([spark_field(field) for field in kind])
        case "map":
            return pa.map_(spark_type(kind.key_type), spark_field(kind.item_field).with_name("value"))
        case "list":
            return pa.list_(spark_field(kind.value_field).with_name("element"))
    raise SchemaConflict(f"Spark has no type for the Arrow type {kind}: convert it at the sender")


def _kind_of(kind: pa.DataType) -> str:
    for name, tests in _KINDS.items():
        if any(test(kind) for test in tests):
            return name
    return str(kind)


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of the values, without how they are encoded."""
    while True:
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        elif types.is_dictionary(kind) or types.is_run_end_encoded(kind):
            kind = kind.value_type
        else:
            return kind


def convertible(source: pa.DataType, target: pa.DataType) -> bool:
    """True if a safe cast either keeps every value or raises."""
    source = _plain(source)
    kind, wanted = _kind_of(source), _kind_of(target)
    if kind == "null" or (kind, wanted) in _CONVERSIONS:
        return True
    if kind == "float" and wanted == "float":
        return bool(source.bit_width <= target.bit_width)
    return kind == wanted and _children_convertible(kind, source, target)


def _children_convertible(kind: str, source: pa.DataType, target: pa.DataType) -> bool:
    match kind:
        case "list":
            return convertible(source.value_type, target.value_type)
        case "map":
            return convertible(source.key_type, target.key_type) and convertible(
                source.item_type, target.item_type
            )
        case "struct":
            return [field.name for field in source] == [field.name for field in target] and all(
                convertible(ours.type, theirs.type) for ours, theirs in zip(source, target, strict=True)
            )
    return True


def forbids_nulls(kind: pa.DataType) -> bool:
    """True if some field within ``kind`` is not nullable (a map's keys never are, and Arrow sees to that)."""
    if types.is_struct(kind):
        return any(not field.nullable or forbids_nulls(field.type) for field in kind)
    if types.is_list(kind):
        return not kind.value_field.nullable or forbids_nulls(kind.value_type)
    if types.is_map(kind):
        return not kind.item_field.nullable or forbids_nulls(kind.item_type)
    return False


def with_nulls(field: pa.Field) -> pa.Field:
    """``field`` as one that may hold nulls, and everything within it too (but a map's keys)."""
    kind = field.type
    if types.is_struct(kind):
        kind = pa.struct([with_nulls(each) for each in kind])
    elif types.is_list(kind):
        kind = pa.list_(with_nulls(kind.value_field))
    elif types.is_map(kind):
        kind = pa.map_(with_nulls(kind.key_field).with_nullable(False), with_nulls(kind.item_field))
    return field.with_type(kind).with_nullable(True)
