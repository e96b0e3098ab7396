"""The table of what Spark does with channels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from benchmarks.peers import OURS
from benchmarks.row import Row
from benchmarks.running import Contestant
from benchmarks.targets import AtLeast, MoreAtMost
from benchmarks.work import Work

from . import contestants as how
from .data import LONGS, MIX

IN_TASK, DROPPING, PARQUET = "made in the task", "writer that drops", "Parquet files"
STAGED, PLAIN = f"{OURS}, exactly once", f"{OURS}, at least once"

ROWS_OF = {LONGS: 12_000_000, MIX: 6_000_000}
NAMES = {LONGS: "eight longs", MIX: "a mix with text"}
BATCHES = {"1 Ki rows a batch": 1 << 10, "64 Ki rows a batch": 1 << 16}

Prepared = Callable[[Any, Work], AbstractContextManager[Any]]


@dataclass(frozen=True)
class SparkRow(Row):
    """A row whose contestants are functions for one session; ``streaming``: triggers of a query, and not a job."""

    functions: Mapping[str, Prepared] | None = None
    streaming: bool = False


def _row(
    name: str, work: Work, functions: dict[str, Prepared], *targets: Any, streaming: bool = False
) -> SparkRow:
    columns = ("trigger_ms",) if streaming else ("rows_per_s", "cpu_ns_per_row")
    return SparkRow(
        name,
        work,
        {each: Contestant("") for each in functions},
        columns,
        targets,
        base=next(iter(functions)),
        functions=functions,
        streaming=streaming,
    )


def _work(kind: str, rows: int) -> Work:
    batches = ROWS_OF[kind] // rows // 2 * 2
    return Work(rows, arrow=True, options={"kind": kind, "rows": rows, "batches": batches, "channels": 2})


READ = tuple(
    _row(
        f"Spark reads {NAMES[kind]}, {name}",
        _work(kind, rows),
        {IN_TASK: how.read_in_task, OURS: how.read_channel, PARQUET: how.read_parquet},
        AtLeast(0.85, (IN_TASK,), "rows_per_s", OURS),
    )
    for kind in (LONGS, MIX)
    for name, rows in BATCHES.items()
)

WRITE = tuple(
    _row(
        f"Spark writes {NAMES[kind]}, {name}",
        _work(kind, rows),
        {
            DROPPING: how.write_dropping,
            STAGED: how.write_staged,
            PLAIN: how.write_plain,
            PARQUET: how.write_parquet,
        },
        AtLeast(0.95, (DROPPING,), "rows_per_s", STAGED),
        AtLeast(0.95, (DROPPING,), "rows_per_s", PLAIN),
    )
    for kind in (LONGS, MIX)
    for name, rows in BATCHES.items()
)

SMALL = Work(
    1_000,
    arrow=True,
    options={
        "kind": LONGS,
        "rows": 1_000,
        "every_s": 0.02,
        "channels": 1,
        "triggers": 40,
        "warm_up": 15,
        "files": 200,
    },
)

TRIGGERS = (
    _row(
        "Spark's micro-batch of 1 000 rows, read",
        SMALL,
        {IN_TASK: how.stream_in_task, OURS: how.stream_channel, PARQUET: how.stream_parquet},
        MoreAtMost(20, IN_TASK, "trigger_ms", OURS),
        streaming=True,
    ),
    _row(
        "Spark's micro-batch of 1 000 rows, written",
        SMALL,
        {DROPPING: how.stream_to_dropping, STAGED: how.stream_to_staged, PLAIN: how.stream_to_plain},
        MoreAtMost(20, DROPPING, "trigger_ms", STAGED),
        MoreAtMost(20, DROPPING, "trigger_ms", PLAIN),
        streaming=True,
    ),
)

SPARK_ROWS = (*READ, *WRITE, *TRIGGERS)
