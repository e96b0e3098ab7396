"""The demo with Spark at its third node."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from tests.examples import flights
from tests.support.commands import nebuli

pytestmark = [pytest.mark.spark, pytest.mark.processes]

ROOT = flights.EXAMPLE.parents[1]
SPARK = "topology-spark.yaml"


def test_make_demo_spark_runs_the_demo_with_another_engine() -> None:
    """Of one node, and of nothing else."""
    rule = re.search(r"^demo-spark:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert rule is not None
    assert f"nebuli run examples/flights/{SPARK} examples/flights/query.json" in rule[1]
    plain, spark = (
        yaml.safe_load((flights.EXAMPLE / name).read_text("utf-8")) for name in ("topology.yaml", SPARK)
    )
    assert spark["nodes"][2].pop("engine") == "spark"
    assert spark == plain


def test_spark_gives_what_duckdb_gives(tmp_path: Path) -> None:
    """SP-ENG-1, bounded: the demo's query."""
    subprocess.run([sys.executable, flights.EXAMPLE / "prepare.py"], check=True)
    flights.write_topology(
        tmp_path / "topology.yaml", {"type": "Parquet", "path": "delays.parquet"}, example=SPARK
    )
    ended = nebuli("run", tmp_path / "topology.yaml", flights.EXAMPLE / "query.json", directory=tmp_path)
    assert ended.exit_code == 0, ended.stderr
    for phase in ("starting Spark", r"Spark job \d+, stage \d+ of \d+"):
        assert re.search(rf"running +{phase}", ended.stderr), ended.stderr
    flights.assert_equal(pq.read_table(tmp_path / "delays.parquet"), flights.answer(tmp_path))
