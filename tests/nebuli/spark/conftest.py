"""One Spark per test module, with the settings of the engine."""

from __future__ import annotations

import pytest

from nebuli.spark.session import SETTINGS
from tests.nebuli.spark import computing


@pytest.fixture(scope="module")
def compute(start_spark):
    spark = start_spark("local[1]")
    for key, value in SETTINGS.items():
        spark.conf.set(key, value)
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    # Rows that come from a task, so that expressions are compiled as they are for a channel's rows.
    spark.conf.set("spark.sql.execution.arrow.localRelationThreshold", "0")
    return computing.over(spark)
