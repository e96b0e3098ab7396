"""The rows of inputs and outputs as Spark has them, and the other way round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nebuli.spark.row_schemas import WEIGHT, read_as, written_as
from spark_bridge.errors import SchemaConflict

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

STEP = "_step"


def output_schema(outputs: Mapping[str, pa.Schema], output: str, *, append_only: bool) -> pa.Schema:
    """What Spark reads of an output. Raises SchemaConflict."""
    return read_as(_of(outputs, output, "output"), *(() if append_only else (WEIGHT, STEP)))


def input_target(inputs: Mapping[str, pa.Schema], handle: str, rows: StructType) -> pa.Schema:
    """What rows of Spark have to become for an input. Raises SchemaConflict."""
    return written_as(f"input {handle}", _of(inputs, handle, "input that programs push into"), rows)


def _of(schemas: Mapping[str, pa.Schema], name: str, what: str) -> pa.Schema:
    if name not in schemas:
        raise SchemaConflict(f"the circuit has no {what} {name!r}: it has {', '.join(schemas) or 'none'}")
    return schemas[name]
