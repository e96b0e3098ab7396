"""The tables of what collections take, beside their peers.

Each contestant runs in a process of its own (`benchmarks.running`), which starts what it needs beside it (`elsewhere`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.peers import NEBULI
from benchmarks.row import Row
from benchmarks.running import FREE, Contestant
from benchmarks.targets import AtLeast, AtMost, Target, Within
from benchmarks.work import Work

SNAPSHOTS, FOLLOWED, OPENING, APPENDS, INGESTING = (
    f".storage.{name}" for name in ("snapshots", "followed", "opening", "appends", "ingesting")
)
PARQUET, SQLITE, DELTA = "Parquet, one file", "SQLite", "Delta Lake"
THOUSAND = "1 000 collections"
COPIED = "pyarrow: CSV to one Parquet file, synced"
THREE = f"{NEBULI}, three instances"
IDLE = "one instance, idle"
FIRST_ONES = 100
"""Of Delta Lake: with each version an append takes longer, until those at 50 a second wait for each other."""
APPENDING_S = 1.0
BATCHES, WRITERS = (1, 1_000, 100_000), (1, 4)

KEPT = {
    NEBULI: "collection",
    f"{SQLITE}, FULL": "SQLite, FULL",
    f"{SQLITE}, NORMAL": "SQLite, NORMAL",
    DELTA: "Delta Lake",
}
"""What a contestant's ``table`` is."""
SYNCED = {NEBULI: "synced", f"{SQLITE}, FULL": "synced"}
"""Whose appends are on the disk when they return."""
Options = Mapping[str, Any]


def _row(
    name: str,
    function: str,
    cases: Mapping[str, Contestant],
    columns: tuple[str, ...],
    *targets: Target,
    options: Options,
    quick: Options,
    rounds: int = 2,
) -> Row:
    return Row(
        name,
        Work(1, seconds=APPENDING_S, options=dict(options)),
        cases,
        columns,
        targets,
        base=next(iter(cases)),
        sides=("", function),
        rounds=rounds,
        quick=quick,
    )


def _cases(module: str, tables: Mapping[str, str], lasts_s: float | None = None) -> dict[str, Contestant]:
    """``lasts_s``: what one takes at most, where it is not the seconds that it is measured for."""
    lasts = None if lasts_s is None else (0.0, lasts_s)
    return {
        name: Contestant(module, {"table": table}, alone=True, settings=(FREE,), lasts=lasts)
        for name, table in tables.items()
    }


def _appends(batch: int, writers: int) -> Row:
    size = f"{batch:,} rows".replace(",", " ") if batch > 1 else "1 row"
    who = "one process" if writers == 1 else "four processes at once"
    tables = {f"{name}: {SYNCED.get(name, 'not synced')}": table for name, table in KEPT.items()}
    return _row(
        f"appends of {size} by {who}",
        "append",
        _cases(APPENDS, tables),
        ("rows_per_s", "appends_per_s"),
        options={"batch": batch, "writers": writers},
        quick={},
    )


def _ingesting(instances: int) -> Contestant:
    return Contestant(INGESTING, {"instances": instances}, alone=True, settings=(FREE,), lasts=(0.0, 60.0))


COLLECTION_ROWS = (
    _row(
        "a snapshot of 10 million rows",
        "read",
        _cases(
            SNAPSHOTS,
            {NEBULI: KEPT[NEBULI], PARQUET: "Parquet", DELTA: KEPT[DELTA], SQLITE: KEPT[f"{SQLITE}, NORMAL"]},
            60.0,
        ),
        ("rows_per_s", "disk_MB"),
        AtLeast(0.7, (PARQUET,), "rows_per_s", NEBULI),
        options={"rows": 10_000_000, "reads": 3},
        quick={"rows": 1_000_000},
        rounds=1,
    ),
    _row(
        "from a write here to its row there, 50 a second",
        "follow",
        _cases(
            FOLLOWED,
            {NEBULI: KEPT[NEBULI], f"{SQLITE}, FULL, polled each ms": KEPT[f"{SQLITE}, FULL"]},
            20.0,
        )
        | {
            f"{DELTA}, polled each ms, {FIRST_ONES} rows": Contestant(
                FOLLOWED,
                {"table": KEPT[DELTA], "inserts": FIRST_ONES},
                alone=True,
                settings=(FREE,),
                lasts=(0.0, 20.0),
            )
        },
        ("p50_ms", "p99_ms", "insert_p50_ms", "insert_p99_ms"),
        Within(5, "p50_ms", NEBULI),
        options={"inserts": 500, "per_s": 50},
        quick={"inserts": 50},
    ),
    _row(
        "many collections in one process",
        "describe_all",
        {THOUSAND: Contestant(OPENING, alone=True, settings=(FREE,), lasts=(0.0, 30.0))},
        ("opened_s", "more_MiB", "whole_MiB"),
        Within(1, "opened_s", THOUSAND),
        Within(100, "more_MiB", THOUSAND),
        options={"collections": 1_000, "rows": 10},
        quick={"collections": 100},
    ),
    *(_appends(batch, writers) for writers in WRITERS for batch in BATCHES),
    Row(
        "a CSV file of a million rows, ingested",
        Work(1, options={"rows": 1_000_000}),
        {
            NEBULI: _ingesting(1),
            THREE: _ingesting(3),
            COPIED: _ingesting(0),
        },
        ("rows_per_s", "store_MB"),
        (
            AtLeast(0.5, (COPIED,), "rows_per_s", NEBULI),
            AtMost(1.3, NEBULI, "store_MB", THREE),
        ),
        base=NEBULI,
        sides=("", "ingest"),
        rounds=2,
        quick={"rows": 100_000},
    ),
    _row(
        "a source that stands still",
        "idle",
        {IDLE: Contestant(INGESTING, alone=True, settings=(FREE,), lasts=(0.0, 60.0))},
        ("core_percent",),
        Within(1, "core_percent", IDLE),
        options={"rows": 1_000, "settle_s": 10.0, "idle_s": 30.0},
        quick={"settle_s": 2.0, "idle_s": 5.0},
        rounds=1,
    ),
)
