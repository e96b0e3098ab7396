"""Every way in which Spark is measured runs once, briefly, in one session, and has the figures that its table shows."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.spark.__main__ import once
from benchmarks.spark.data import LONGS
from benchmarks.spark.rows import SPARK_ROWS, SparkRow
from benchmarks.spark.session import spark_session

pytestmark = [pytest.mark.spark, pytest.mark.processes]

BRIEF = {"batches": 2, "rows": 1_000, "triggers": 2, "warm_up": 0, "files": 10}
EACH = [
    row for row in SPARK_ROWS if row.streaming or (row.work.options["kind"] != LONGS and "1 Ki" in row.name)
]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # py4j leaves its sockets to the garbage collector
        with spark_session() as session:
            yield session
        del session
        gc.collect()


@pytest.mark.parametrize("row", EACH, ids=lambda row: row.name)
def test_all_contestants_run(spark: Any, row: SparkRow) -> None:
    options = {name: min(value, BRIEF.get(name, value)) for name, value in row.work.options.items()}
    assert row.functions is not None
    for name, function in row.functions.items():
        measures = once(spark, function, replace(row.work, options=options), row)
        assert all(measures[column] > 0 for column in row.columns), name
