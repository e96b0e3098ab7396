"""Z-sets as Spark has them, and the other way round: columns, and how often a row is there more or less."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from spark_bridge.errors import SchemaConflict
from spark_bridge.schemas import arrow_schema
from spark_bridge.types import spark_field, spark_type

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

WEIGHT = "_weight"


def read_as(schema: pa.Schema, *more: str) -> pa.Schema:
    """Return the schema that Spark reads for rows of a schema; ``more`` are additional integer columns."""
    return pa.schema([*map(spark_field, schema), *(pa.field(name, pa.int64()) for name in more)])


def written_as(what: str, schema: pa.Schema, rows: StructType) -> pa.Schema:
    """Return the schema that rows of Spark have to be converted to for ``what``.

    Its columns, and the weight if they have one.

    Raises SchemaConflict, which names both schemas, if they do not match.
    """
    found = arrow_schema(rows)
    wanted = {field.name: _from_spark(field.type) for field in schema}
    given = {field.name: field.type for field in found if field.name != WEIGHT}
    weighted = WEIGHT in found.names
    fits = len(found.names) == len(given) + weighted and given == wanted
    if not fits or (weighted and not pa.types.is_integer(found.field(WEIGHT).type)):
        raise SchemaConflict(
            f"{what} expects {_line(schema)}, and also {WEIGHT} int64 if rows are retracted; the given "
            f"rows have {_line(found)}: select and cast the expected columns, in any order"
        )
    return schema.append(pa.field(WEIGHT, pa.int64())) if weighted else schema


def _from_spark(kind: pa.DataType) -> pa.DataType:
    """The type of Spark that is taken for one of a Z-set: a BIGINT also for uint64, as far as it goes."""
    return pa.int64() if kind == pa.uint64() else spark_type(kind)


def _line(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
