"""Batches in exactly the Arrow types that Spark reads.

Spark refuses what is merely equivalent: a dictionary or a large string for STRING, int32 for BIGINT, nanoseconds or
a zone other than UTC for TIMESTAMP, columns in another order. A `Normaliser` gives a batch the declared schema, and
raises rather than change a value.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from .errors import SchemaConflict
from .types import convertible, forbids_nulls, spark_field

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

DeclaredSchema: TypeAlias = "pa.Schema | StructType | str"
"""A schema as users write it: of Arrow, of Spark, or DDL such as ``"id BIGINT, at TIMESTAMP"``."""


def arrow_schema(schema: DeclaredSchema) -> pa.Schema:
    """The Arrow schema that Spark uses for ``schema``. DDL needs an active SparkSession.

    Raises:
        SchemaConflict: it has a type that Spark has not.
    """
    if not isinstance(schema, pa.Schema):
        schema = _from_spark(schema)
    return pa.schema(list(map(_named, schema)))


def _named(field: pa.Field) -> pa.Field:
    try:
        return spark_field(field)
    except SchemaConflict as error:
        raise SchemaConflict(f"the column {field.name!r}: {error}") from error


def _from_spark(schema: StructType | str) -> pa.Schema:
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructField, StructType

    given: Any = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    struct: Any = _voids_nullable(given)
    # PySpark 4.1 knows no other zone than UTC, and no parameter for it.
    zone = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    convert: Any = to_arrow_schema

    def column(field: StructField) -> pa.Field:
        if (within := _sparks_own(field.dataType)) is not None:
            raise SchemaConflict(
                f"the column {field.name!r} is {field.dataType.simpleString()}, but channels do not carry "
                f"{within.upper()}, whose bytes only Spark can read: {_SPARKS_OWN[within]}"
            )
        try:
            (found,) = convert(StructType([field]), **zone)
        except (
            PySparkTypeError,
            ValueError,
        ) as error:  # pyarrow raises the second, as for a map's keys of type void
            raise SchemaConflict(
                f"the column {field.name!r} has the type {field.dataType.simpleString()}, which Arrow does not have: "
                f"cast it to another type"
            ) from error
        return found

    return pa.schema([column(field) for field in struct.fields])


def _voids_nullable(kind: Any) -> Any:
    """Return ``kind`` with nulls wherever it is of type void: Spark declares an empty array to have none."""
    from pyspark.sql.types import ArrayType, MapType, NullType, StructField, StructType

    def may_be_null(within: DataType, said: bool) -> bool:
        return said or isinstance(within, NullType)

    match kind:
        case ArrayType():
            return ArrayType(
                _voids_nullable(kind.elementType), may_be_null(kind.elementType, kind.containsNull)
            )
        case MapType():
            return MapType(
                _voids_nullable(kind.keyType),
                _voids_nullable(kind.valueType),
                may_be_null(kind.valueType, kind.valueContainsNull),
            )
        case StructType():
            return StructType(
                [
                    StructField(
                        each.name, _voids_nullable(each.dataType), may_be_null(each.dataType, each.nullable)
                    )
                    for each in kind.fields
                ]
            )
    return kind


def check_names(schema: pa.Schema | pa.StructType, what: str, advice: str) -> None:
    """Raise SchemaConflict for two columns of one name, or two fields of one within a column: Spark goes by names."""
    names = [field.name for field in schema]
    for name in names:
        if (count := names.count(name)) > 1:
            raise SchemaConflict(
                f"{what} has {count} columns {name!r}, which Spark cannot distinguish: {advice}; its columns "
                f"are {', '.join(names)}"
            )
    for field in schema:
        for struct in _structs(field.type):
            check_names(struct, f"{field.name!r} within {what}", "rename one of them")


def _structs(kind: pa.DataType) -> list[pa.StructType]:
    """The structs next within a type."""
    if types.is_struct(kind):
        return [kind]
    if types.is_map(kind):
        return [*_structs(kind.key_type), *_structs(kind.item_type)]
    return _structs(kind.value_type) if types.is_nested(kind) and hasattr(kind, "value_type") else []


_SPARKS_OWN = {
    "variant": "write to_json(column), read it as a STRING, then use parse_json(column)",
    "geometry": "write st_asbinary(column), read it as a BINARY, then use st_geomfromwkb(column)",
    "geography": "write st_asbinary(column), read it as a BINARY, then use st_geogfromwkb(column)",
}
"""Types that Spark gives to Arrow as structs, which other programs cannot distinguish from structs."""


def _sparks_own(kind: DataType) -> str | None:
    """The name of a type of `_SPARKS_OWN` that ``kind`` is, or has within it."""
    if kind.typeName() in _SPARKS_OWN:
        return kind.typeName()
    within = [getattr(kind, name) for name in ("elementType", "keyType", "valueType") if hasattr(kind, name)]
    within += [field.dataType for field in getattr(kind, "fields", ())]
    return next(filter(None, map(_sparks_own, within)), None)


class Normaliser:
    """Gives batches the schema ``target``: a callable, made once per stream.

    Columns are found by name. A column that the target does not have is left out, or raises `SchemaConflict` if the
    target is all that there is (``whole``). A batch that has the schema already is returned as it is. Values are
    never changed: a number that does not fit, a null where none may be, or nanoseconds below a microsecond raise
    `SchemaConflict`.
    """

    def __init__(self, target: pa.Schema, *, whole: bool = False) -> None:
        self._target = target
        self._whole = whole
        self._strict = [
            index for index, field in enumerate(target) if not field.nullable or forbids_nulls(field.type)
        ]
        self._seen: pa.Schema | None = None
        self._indices: list[int] | None = None

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch, in the target's schema. Raises SchemaConflict, which names the column and both types."""
        if batch.schema is not self._seen:
            self._seen = batch.schema
            self._indices = self._plan(batch.schema)
        if self._indices is None:
            self._check(batch)
            return batch
        columns = [
            _convert(batch.column(index), field)
            for index, field in zip(self._indices, self._target, strict=True)
        ]
        if not columns:
            return batch.select([])
        normal = pa.RecordBatch.from_arrays(columns, schema=self._target)
        self._check(normal)
        return normal

    def _check(self, batch: pa.RecordBatch) -> None:
        for index in self._strict:
            field = self._target.field(index)
            _check_nulls(batch.column(index), field, field.name)

    def _plan(self, schema: pa.Schema) -> list[int] | None:
        """The places of the target's columns; None if there is nothing to do."""
        if schema.equals(self._target):
            return None
        indices = [self._find(schema, field) for field in self._target]
        if self._whole and (added := [field for field in schema if field.name not in self._target.names]):
            raise SchemaConflict(
                f"the column {added[0].name!r} of type {added[0].type} would be lost, because it did not exist when "
                f"the query got its schema ({', '.join(self._target.names)}): call load() again to read this column "
                f"too, or name the columns to read with .schema(...)"
            )
        return indices

    def _find(self, schema: pa.Schema, field: pa.Field) -> int:
        found = schema.get_all_field_indices(field.name)
        if len(found) != 1:
            times = "none" if not found else str(len(found))
            alike = [name for name in schema.names if name.lower() == field.name.lower()]
            hint = f"; names are case-sensitive: {alike[0]!r} exists" if alike and not found else ""
            raise SchemaConflict(
                f"the declared schema has a column {field.name!r}, but the batch has {times} of that name{hint}: "
                f"its columns are {', '.join(schema.names)}"
            )
        source = schema.field(found[0]).type
        if not convertible(source, field.type):
            raise SchemaConflict(
                f"the column {field.name!r} is declared as {field.type}, but arrives as {source}: convert it at the "
                f"sender, or declare another type"
            )
        return int(found[0])


def _convert(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type == field.type:
        return column
    try:
        return pc.cast(_decoded(column), field.type, safe=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaConflict(
            f"the column {field.name!r} cannot be read as {field.type} without loss, because it arrives as "
            f"{column.type}: {error}"
        ) from error


def _decoded(column: pa.Array) -> pa.Array:
    """The column in a type that can be cast."""
    while isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    return pc.run_end_decode(column) if types.is_run_end_encoded(column.type) else column


def _check_nulls(values: pa.Array, field: pa.Field, path: str) -> None:
    """Raise SchemaConflict for a null where ``field``, or a field within it, has none."""
    if not field.nullable and values.null_count:
        raise SchemaConflict(
            f"the column {path!r} is declared without nulls, but {values.null_count} of {len(values)} values are null: "
            "declare it nullable, or remove them at the sender"
        )
    if not forbids_nulls(field.type):
        return
    present = values.drop_null()
    if types.is_struct(field.type):
        for index, child in enumerate(field.type):
            _check_nulls(present.field(index), child, f"{path}.{child.name}")
    elif types.is_list(field.type):
        _check_nulls(present.flatten(), field.type.value_field, f"{path}.element")
    else:
        entry = pa.struct([field.type.key_field, field.type.item_field.with_nullable(True)])
        entries = present.cast(pa.list_(entry)).flatten()
        _check_nulls(entries.field(1), field.type.item_field, f"{path}.value")
