"""Everything between two channels killed in turn, and what comes out is what went in. `make soak-spark` is longer."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from tests.soak_spark.rows import ROWS, Violation, batch, count
from tests.soak_spark.run import SOURCES, Plan, Run

pytestmark = [pytest.mark.spark, pytest.mark.processes]


@pytest.mark.timeout(400)
def test_a_driver_workers_and_servers_are_killed_and_no_row_is_lost_or_doubled(tmp_path):
    """SP-WR-2, SP-RD-3, SP-RD-4: half a million rows per source, 200 triggers; the sender has nothing left to keep."""
    kills = {"driver": 3, "worker": 2, "source": 1, "sink": 1}
    said: list[str] = []
    plan = Plan(rows=500_000, rows_per_trigger=4800, kills=kills)
    tally = Run(plan, tmp_path, random.SystemRandom().randrange(1 << 32), said.append).run()

    assert tally.rows == dict.fromkeys(SOURCES, 500_000)
    assert tally.triggers >= 200
    assert tally.kills == kills, said


def test_the_harness_sees_what_is_lost_doubled_or_moved():
    def rows(message: int, first: int = 0):
        part = batch(message).slice(first)
        return part.append_column("source", pa.array(["a"] * part.num_rows))

    expected: dict[str, int] = {}
    count(expected, rows(0))
    assert expected == {"a": ROWS}
    for wrong in (rows(0), rows(2), rows(1, first=1)):
        with pytest.raises(Violation):
            count(dict(expected), wrong)
