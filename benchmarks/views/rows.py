"""The tables of what views take that hold only what is asked for.

First by `nebuli.Views`, of a query that runs in processes of its own; then the graph alone, in one process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.peers import NEBULI
from benchmarks.row import Row
from benchmarks.running import FREE, Contestant
from benchmarks.targets import AtLeast, Reaching, Target, Within
from benchmarks.work import Work

READS, BUDGETS, CHANGES, LOOKUPS, STORIES = (
    f".views.{name}" for name in ("reads", "budgets", "changes", "lookups", "stories")
)
LASTS_S = 120.0
MILLION, TEN_MILLION = 1_000_000, 10_000_000
SQLITE = "SQLite in memory, with an index"
ON_DISK = "SQLite on a disk, with an index"
REDIS = "Redis, filled by hand"
FULL = "a view that has all"
AT_NODE, BY_RUN = f"{NEBULI}, at the view's process", f"{NEBULI}, by `nebuli run --serve`"
THREE = f"{NEBULI}, three processes"
OURS: Mapping[str, Any] = {"peer": False, "nodes": 1, "by_run": False}
Options = Mapping[str, Any]


def _row(
    name: str,
    module: str,
    function: str,
    cases: Mapping[str, Options],
    columns: tuple[str, ...],
    *targets: Target,
    options: Options,
    quick: Options,
    **settings: Any,
) -> Row:
    """Every case runs in a process of its own."""
    contestants = {
        name: Contestant(module, case, alone=True, settings=(FREE,), lasts=(0.0, LASTS_S))
        for name, case in cases.items()
    }
    work = Work(1, options=dict(options))
    base, sides = next(iter(cases)), ("", function)
    return Row(name, work, contestants, columns, targets, base=base, sides=sides, quick=quick, **settings)


def _misses(name: str, *, joins: bool) -> Row:
    return _row(
        name,
        READS,
        "missing",
        {NEBULI: {"peer": False}, SQLITE: {"peer": True}},
        ("p50_ms", "p99_ms", "longest_ms"),
        Within(1, "p50_ms", NEBULI),
        options={"keys": 200_000, "each": 5, "reads": 5_000, "joins": joins},
        quick={"keys": 20_000, "reads": 500},
        rounds=2,
    )


def _lookups(
    name: str, at_once: int, reads: int, columns: tuple[str, ...], *targets: Target, callers: int = 1
) -> Row:
    return _row(
        name,
        LOOKUPS,
        "look_up" if callers == 1 else "look_up_at_once",
        {AT_NODE: OURS, BY_RUN: {**OURS, "by_run": True}, REDIS: {"peer": True}},
        columns,
        *targets,
        options={
            "keys": 100_000,
            "each": 1,
            "at_once": at_once,
            "callers": callers,
            "reads": reads,
            "joins": False,
        },
        quick={"keys": 10_000, "reads": 200 if callers == 1 else 20_000},
        rounds=2,
    )


def _looked_up_misses(name: str, *, joins: bool) -> Row:
    three = {**OURS, "nodes": 3}
    return _row(
        name,
        LOOKUPS,
        "miss",
        {
            AT_NODE: OURS,
            f"{THREE}, at the view's": three,
            f"{THREE}, by `nebuli run --serve`": {**three, "by_run": True},
            ON_DISK: {"peer": True},
        },
        ("p50_ms", "p99_ms"),
        Within(4, "p50_ms", AT_NODE),
        Within(4, "p50_ms", f"{THREE}, at the view's"),
        options={"keys": 200_000, "each": 5, "at_once": 1, "reads": 1_000, "joins": joins},
        quick={"keys": 20_000, "reads": 100},
        rounds=2,
    )


VIEW_ROWS = (
    _lookups(
        "a lookup of one present key, by a client",
        1,
        5_000,
        ("p50_ms", "p99_ms"),
        Within(0.4, "p50_ms", AT_NODE),
    ),
    _lookups(
        "lookups of 500 present keys at once, by a client",
        500,
        400,
        ("keys_per_s", "p50_ms", "p99_ms"),
        Reaching(50_000, "keys_per_s", AT_NODE),
    ),
    _lookups(
        "lookups of one present key by each of 1 000 tasks, by a client",
        1,
        100_000,
        ("keys_per_s", "p50_ms", "p99_ms"),
        Reaching(30_000, "keys_per_s", AT_NODE),
        callers=1_000,
    ),
    _looked_up_misses("a miss by a client: filter, aggregate, project, view", joins=False),
    _looked_up_misses("a miss by a client: join, aggregate, project, view", joins=True),
    _row(
        "a site like Lobsters: 95 % reads by Zipf's law, 5 % writes",
        STORIES,
        "browse",
        {
            f"{NEBULI}, partial": {"peer": False, "full": False},
            f"{NEBULI}, partial, one at a time": {"peer": False, "full": False, "at_once": 1},
            FULL: {"peer": False, "full": True},
            ON_DISK: {"peer": True, "at_once": 1},
        },
        ("requests_per_s", "p50_ms", "p99_ms", "insert_p50_ms", "hits_percent", "view_MB", "memory_MB"),
        options={
            "stories": 50_000,
            "before": 100_000,
            "requests": 10_000,
            "at_once": 8,
            "max_bytes": 2_000_000,
        },
        quick={"stories": 5_000, "before": 10_000, "requests": 2_000, "max_bytes": 200_000},
        rounds=2,
    ),
    _row(
        "a read of one present key of a million",
        READS,
        "present",
        {NEBULI: {}},
        ("p50_us", "p99_us"),
        Within(50, "p50_us", NEBULI),
        options={"keys": MILLION, "at_once": 1, "reads": 20_000},
        quick={"keys": 100_000, "reads": 2_000},
        rounds=2,
    ),
    _row(
        "a read of 500 present keys of a million",
        READS,
        "present",
        {NEBULI: {}},
        ("keys_per_s", "p50_us", "p99_us"),
        Reaching(200_000, "keys_per_s", NEBULI),
        options={"keys": MILLION, "at_once": 500, "reads": 1_000},
        quick={"keys": 100_000, "reads": 100},
        rounds=2,
    ),
    _misses("a miss: filter, aggregate, project, view", joins=False),
    _misses("a miss: join, aggregate, view", joins=True),
    _row(
        "a budget of a tenth, Zipf 1.1, 5 % writes",
        BUDGETS,
        "hits",
        {NEBULI: {"at_random": False}, f"{NEBULI}, any key evicted": {"at_random": True}},
        ("hit_ratio", "hits_percent", "hottest_percent", "longest_ms", "evicted", "budget_MB", "held_MB"),
        Reaching(0.93, "hit_ratio", NEBULI),
        Reaching(0.93, "hit_ratio", f"{NEBULI}, any key evicted"),
        options={"keys": MILLION, "before": 1_000_000, "reads": 50_000},
        quick={"keys": 100_000, "before": 100_000, "reads": 5_000},
        rounds=1,
    ),
    _row(
        "memory that is reported",
        BUDGETS,
        "said",
        {f"{NEBULI}, keys one by one": {"at_once": 1}, f"{NEBULI}, 10 000 at once": {"at_once": 10_000}},
        ("said_ratio", "said_MB", "more_MB"),
        options={"keys": 100_000},
        quick={"keys": 10_000},
        rounds=1,
    ),
    _row(
        "writes of 1 000 rows, with 1 % of a million keys present",
        CHANGES,
        "writes",
        {NEBULI: {"full": False}, FULL: {"full": True}},
        ("rows_per_s", "p50_ms", "p99_ms"),
        AtLeast(1.5, (FULL,), "rows_per_s", NEBULI),
        options={"keys": MILLION, "at_once": 1_000, "writes": 300},
        quick={"keys": 100_000, "writes": 50},
        rounds=2,
    ),
    _row(
        "a new view over ten million rows",
        CHANGES,
        "added",
        {NEBULI: {"full": False}, FULL: {"full": True}},
        ("first_ms", "longest_ms", "settled_s"),
        Within(100, "first_ms", NEBULI),
        options={"keys": TEN_MILLION // 5, "each": 5},
        quick={"keys": 100_000},
        rounds=1,
    ),
)
