"""Nexmark's queries with Spark at the node that computes: the fragments that it has there, in one session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from examples.nexmark import files
from nebuli.spark.plans import compile_plan, view
from nebuli.spark.session import SETTINGS
from placement import decompose, load_query, parse_statement, place
from placement.graph import carried
from placement.plan import BoundSource
from tests.examples import nexmark
from tests.nebuli.spark import computing
from topology import load_topology

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nexmark.data(tmp_path_factory)


@pytest.mark.parametrize("form", ["json", "sql"])
def test_what_spark_computes_of_each_query_is_what_duckdb_gives(
    start_spark: Any, data: Path, form: str
) -> None:
    spark = start_spark("local[1]")
    for key, value in SETTINGS.items():
        spark.conf.set(key, value)
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    compute, topology = computing.over(spark), load_topology(data / files.SPARK)
    for name in files.QUERIES[1:]:  # q0 leaves it nothing to compute
        query = (
            load_query(files.query(name))
            if form == "json"
            else parse_statement(files.runnable(name).read_text("utf-8"), topology, name)
        )
        fragments = decompose(place(query, topology, 0)).fragments
        logical = {
            each.id: each.logical
            for it in fragments
            for each in it.operators
            if isinstance(each, BoundSource)
        }
        (fragment,) = [each for each in fragments if each.engine is not None]
        plan = compile_plan(fragment)
        inputs = {}
        for index, (source, columns) in enumerate(plan.inputs.items()):
            named = [column.name for column in columns]
            rows = pq.read_table(data / f"{logical[carried(source)]}.parquet", columns=named)
            inputs[view(index)] = columns, rows
        pq.write_table(compute(plan, inputs, plan.output), data / f"{name}.parquet")
        nexmark.check(data, name)
