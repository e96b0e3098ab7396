"""Who answers Nexmark's queries, how each is run, and whether what comes out is DuckDB's answer.

Two processes or threads compute, but of bytewax one does: two of its processes fail now and then when they end ("Send
thread panic"), and two threads would share Python's lock. What is needed to go on after a kill is kept every ten
seconds, by all but DuckDB, which commits each batch to its file.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import duckdb

from benchmarks.environments import python_of
from examples.nexmark.answers import differences
from examples.nexmark.files import ONE_NODE, query_in_steps

from .processes import measured

HERE = Path(__file__).parent
OURS, PATHWAY, BYTEWAX, SPARK, DUCKDB = "nebuli", "pathway", "bytewax", "Spark", "DuckDB, mini-batches"
CHECKPOINT_S = 10
WHOLE = {"q1", "q3"}
"""Queries without windows, whose streams need no event behind them."""
OF_PATHWAY = {
    "q1": 'auction, bidder, price, make_timestamptz("at") AS date_time',
    "q3": "name, city, state, auction",
    "q4": "category, price",
    "q5": "make_timestamptz(window_start) AS window_start, num, auction",
    "q8": "person AS id, name, make_timestamptz(window_start) AS window_start",
}
"""What its numbers of microseconds and names are elsewhere."""


def _nebuli(query: str, folder: Path, work: Path) -> dict[str, float]:
    steps = [
        "--stepped",
        "--members",
        "2",
        "--checkpoint-every",
        str(CHECKPOINT_S),
        "--state",
        work / "state",
        "--close",
    ]
    command = [sys.executable, "-m", "nebuli", "run", folder / ONE_NODE, query_in_steps(query), *steps]
    took = measured(command)
    (folder / f"{query}.parquet").rename(work / "result.parquet")
    return took


def _pathway(query: str, folder: Path, work: Path) -> dict[str, float]:
    script, result = HERE / "on_pathway.py", work / "result.csv"
    command = [python_of("pathway"), script, query, folder, result, work / "state"]
    took = measured(command, {"PATHWAY_THREADS": str(os.cpu_count())})
    # Changes: a row is there as often as was added more than was taken back.
    changes = f"SELECT * EXCLUDE (time, diff), sum(diff)::BIGINT AS n FROM read_csv('{result}') GROUP BY ALL"
    _collect(f"SELECT {OF_PATHWAY[query]} FROM ({changes}) AS each, range(each.n)", work)
    return took


def _bytewax(query: str, folder: Path, work: Path) -> dict[str, float]:
    python, state = python_of("bytewax"), work / "state"
    for place in (state, work / "result"):
        place.mkdir()
    subprocess.run([python, "-m", "bytewax.recovery", state, "1"], check=True)
    variables = {"QUERY": query, "FOLDER": str(folder), "RESULT": str(work / "result")}
    keeping = ["-r", state, "-s", str(CHECKPOINT_S), "-b", "0"]
    took = measured(
        [python, "-m", "bytewax.run", f"{HERE / 'on_bytewax.py'}:flow", *keeping],
        {f"NEXMARK_{name}": value for name, value in variables.items()},
    )
    _collect(f"FROM '{work}/result/*.parquet'", work)
    return took


def _spark(query: str, folder: Path, work: Path) -> dict[str, float]:
    streams = folder / ("batches" if query in WHOLE else "and-after")
    command = [sys.executable, HERE / "on_spark.py", query, streams, work / "result", work / "state"]
    took = measured(command, {"SPARK_LOCAL_IP": "127.0.0.1"})
    _collect(f"FROM '{work}/result/*.parquet'", work)
    return took


def _duckdb(query: str, folder: Path, work: Path) -> dict[str, float]:
    (work / "state").mkdir()
    script = ["-m", "benchmarks.nexmark.on_duckdb"]
    return measured(
        [sys.executable, *script, query, folder / "batches", work / "result.parquet", work / "state"]
    )


def _collect(rows: str, work: Path) -> None:
    """Put a result into one file, with the columns of the query."""
    with duckdb.connect() as db:
        db.sql("SET TimeZone = 'UTC'")
        db.sql(f"CREATE TABLE found AS {rows}")
        columns = db.table("found").columns
        more = (
            ", window_start + INTERVAL 10 SECONDS AS window_end"
            if {"window_start", "num"} <= {*columns}
            else ""
        )
        db.sql(f"COPY (SELECT *{more} FROM found) TO '{work}/result.parquet' (FORMAT parquet)")


CONTESTANTS: dict[str, Callable[[str, Path, Path], dict[str, float]]] = {
    OURS: _nebuli,
    PATHWAY: _pathway,
    BYTEWAX: _bytewax,
    SPARK: _spark,
    DUCKDB: _duckdb,
}


def answered(name: str, query: str, folder: Path, work: Path) -> dict[str, float]:
    """What a contestant takes for a query; AssertionError where the answer is another one than DuckDB's."""
    took = CONTESTANTS[name](query, folder, work)
    rows, wrong = differences(folder, query, work / "result.parquet")
    assert rows > 0, f"{name} has no result of {query}"
    assert wrong == 0, f"{name}: {wrong} of {rows} rows of {query} differ from DuckDB's"
    return took
