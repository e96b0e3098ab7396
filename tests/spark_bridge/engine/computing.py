"""A table that Spark computes of tables, by a query of the engine's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from nebuli.dataflow import arrow_schema
from spark_bridge.engine.circuit import spark_schema
from topology import Schema

Compute = Callable[[str, Mapping[str, tuple[Schema, pa.Table]], Schema], pa.Table]


def over(spark: Any) -> Compute:
    """In that session."""

    def compute(sql: str, inputs: Mapping[str, tuple[Schema, pa.Table]], output: Schema) -> pa.Table:
        for name, (columns, table) in inputs.items():
            frame = spark.createDataFrame(table.cast(spark_schema(columns)))
            frame.createOrReplaceTempView(name)
        return spark.sql(sql).toArrow().cast(spark_schema(output)).cast(arrow_schema(output))

    return compute
