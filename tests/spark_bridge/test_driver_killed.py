"""Everything between two channels killed in turn, and what comes out is what went in. `make soak-spark` is longer."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.soak_spark.rows import ROWS, Violation, batch, count
from tests.soak_spark.run import SOURCES, VICTIMS, Plan, Run
from tests.support.seeds import drawn_seed

pytestmark = [pytest.mark.spark, pytest.mark.processes]


@pytest.mark.timeout(600)
def test_a_driver_workers_and_servers_are_killed_and_no_row_is_lost_or_doubled(tmp_path):
    """SP-WR-2, SP-RD-3, SP-RD-4: the driver is killed before the sink's commits, between them, and before Spark's own.

    The kill happened there: Spark's commit is missing, and the sink has the epoch or has it not. Workers are killed
    within a task, which is run again as one is that fails. At the end the senders have nothing left to keep.
    """
    kills = {victim: 1 for victim in VICTIMS if victim != "driver"}
    said: list[str] = []
    with drawn_seed() as seed:
        plan = Plan(rows=42_000, rows_per_trigger=2000, kills=kills)
        tally = Run(plan, tmp_path, seed, said.append).run()
        assert tally.rows == dict.fromkeys(SOURCES, 42_000)
        assert tally.triggers >= 40
        assert tally.kills == kills, said
        assert not tally.failures, said
        assert tally.tasks["weak"] > 0
        assert tally.tasks["retried"] >= tally.tasks["weak"] + kills["worker"]


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
