from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark" / "roundtrip.py"


@pytest.mark.spark
def test_a_table_comes_back_from_spark_whole():
    ran = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, encoding="utf-8", timeout=180, check=False
    )
    # The sum of the squares below n is (n - 1) n (2 n - 1) / 6.
    expected = 199_999 * 200_000 * 399_999 // 6
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == (f"200000 rows, sum of squares {expected} (expected {expected})")


@pytest.mark.spark
def test_a_driver_that_is_killed_costs_no_number_and_doubles_none():
    """SP-WR-2, SP-RD-4."""
    ran = subprocess.run(
        [sys.executable, str(EXAMPLE.with_name("exactly_once.py"))],
        capture_output=True,
        encoding="utf-8",
        timeout=180,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    killed, ended = ran.stdout.splitlines()
    assert killed.endswith(" numbers have arrived: killing the driver")
    assert 0 < int(killed.split()[0]) < 100_000  # in the middle
    assert ended == "100000 numbers arrived, each once and in order"
