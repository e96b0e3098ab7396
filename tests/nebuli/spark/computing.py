"""A table that Spark computes of tables, by steps of the engine's or an SQL query."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from nebuli.dataflow import arrow_schema
from nebuli.spark.plans import SparkPlan
from nebuli.spark.spark_circuit import spark_schema
from topology import Schema

Steps = SparkPlan | str
Compute = Callable[[Steps, Mapping[str, tuple[Schema, pa.Table]], Schema], pa.Table]


def over(spark: Any) -> Compute:
    """In that session."""

    def compute(query: Steps, inputs: Mapping[str, tuple[Schema, pa.Table]], output: Schema) -> pa.Table:
        for name, (columns, table) in inputs.items():
            frame = spark.createDataFrame(table.cast(spark_schema(columns)))
            frame.createOrReplaceTempView(name)
        steps = (("result", query),) if isinstance(query, str) else query.steps
        for name, sql in steps:
            spark.sql(sql).createOrReplaceTempView(name)
        return spark.table(steps[-1][0]).toArrow().cast(spark_schema(output)).cast(arrow_schema(output))

    return compute
