"""What is measured of Nexmark is DuckDB's answer, and what is shown of it adds up."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

from benchmarks.nexmark import contestants
from benchmarks.nexmark.__main__ import STREAMS
from benchmarks.nexmark.figures import table
from benchmarks.nexmark.files import BATCHES, COLUMNS, prepare
from benchmarks.nexmark.processes import Refused, measured

EVENTS = 200_000


@pytest.mark.processes
@pytest.mark.parametrize("query", ["q4", "q5"])
def test_duckdb_in_mini_batches_gives_what_it_gives_at_once(tmp_path: Path, query: str) -> None:
    folder, work = tmp_path / "streams", tmp_path / "work"
    for place in (folder, work):
        place.mkdir()
    assert prepare(folder, EVENTS, STREAMS[query]) == EVENTS // 50 * (49 if query == "q4" else 46)
    took = contestants.answered(contestants.DUCKDB, query, folder, work)
    assert took["cpu_s"] > 0


def test_batches_have_all_rows_and_one_more_that_comes_long_after(tmp_path: Path) -> None:
    prepare(tmp_path, EVENTS, ("bid",))
    with duckdb.connect() as db:

        def count(files: str) -> tuple[Any, ...]:
            return db.sql(f"SELECT count(*), max(date_time) FROM '{tmp_path}/{files}'").fetchall()[0]

        whole, batches, after = map(
            count, ("bid.parquet", "batches/bid/*.parquet", "and-after/bid/*.parquet")
        )
        assert batches == whole
        assert after[0] == whole[0] + 1
        assert (after[1] - whole[1]).days == 1
        parts = [count(f"batches/bid/{number:03}.parquet")[0] for number in range(BATCHES)]
        assert max(parts) - min(parts) < EVENTS // 50
        assert db.sql(f"FROM '{tmp_path}/batches/bid/*.parquet' LIMIT 0").columns == COLUMNS["bid"].split(
            ", "
        )


@pytest.mark.processes
def test_what_processes_leave_behind_is_waited_for_and_counted() -> None:
    """As PySpark leaves its Java."""
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    leave = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {burn!r}])"
    assert measured([sys.executable, "-c", leave])["cpu_s"] >= 0.5


@pytest.mark.processes
def test_who_fails_is_heard() -> None:
    with pytest.raises(Refused, match="not this one"):
        measured([sys.executable, "-c", "raise SystemExit('not this one')"])


def test_a_table_says_who_does_not_answer_and_how_many_times_as_many_events_ours_takes() -> None:
    found = {
        "nebuli": {"events": 1_000, "rounds": [{"seconds": 2.0, "cpu_s": 4.0}]},
        "pathway": {"events": 500, "rounds": [{"seconds": 5.0, "cpu_s": 10.0}]},
        "Spark": {"refused": "no"},
    }
    lines = table({"q4": found}).splitlines()
    assert lines[4:8] == [
        "| nebuli | 1,000 | 2.00 | 500 | 4.00 | 250 |  |",
        "| pathway | 500 | 5.00 | 100 | 10.00 | 50 | 5.00 x |",
        "| Spark | does not answer it |  |  |  |  |  |",
        "",
    ]
    assert lines[8] == "Spark reports: no"
