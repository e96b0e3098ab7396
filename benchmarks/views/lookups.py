"""Lookups by `nebuli.Views` in views of a query that runs in processes of its own, beside Redis and SQLite."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.environments import python_of
from benchmarks.running import Failed
from benchmarks.steps.percentiles import percentiles
from benchmarks.work import Result, Work
from nebuli import Views

from .graphs import check, portions
from .reads import load, sql_of
from .served import SECRET, served, topology
from .timing import Clock

ON_REDIS = Path(__file__).with_name("on_redis.py")
DEADLINE_S = 60.0
"""Of what is read before the clock runs: the sources have to be read first."""
FILLED_AT_ONCE = 4_000
WARM_UP = 100
SCHEMAS = {"events": "key: int64, value: int64", "names": "key: int64, name: int64"}
SUMS = {"n": "count(*)", "total": "sum(value)"}
FILTERED: list[dict[str, Any]] = [
    {"id": "events", "type": "source", "logical": "events"},
    {"id": "filtered", "type": "filter", "input": "events", "predicate": "value >= 0"},
    {"id": "sums", "type": "aggregate", "input": "filtered", "by": ["key"], "aggregates": SUMS},
    {
        "id": "shown",
        "type": "project",
        "input": "sums",
        "columns": {"key": "key", "n": "n", "total": "total"},
    },
    {"id": "view", "type": "view", "input": "shown", "key": ["key"]},
]
JOINED: list[dict[str, Any]] = [
    FILTERED[0],
    {"id": "names", "type": "source", "logical": "names"},
    {"id": "joined", "type": "join", "inputs": ["events", "names"], "on": ["key"]},
    {
        "id": "sums",
        "type": "aggregate",
        "input": "joined",
        "by": ["key"],
        "aggregates": {**SUMS, "names": "sum(name)"},
    },
    {
        "id": "shown",
        "type": "project",
        "input": "sums",
        "columns": {"key": "key", "n": "n", "total": "total", "names": "names"},
    },
    FILTERED[-1],
]


async def look_up(work: Work, _: str) -> Result:
    """Ask for ``at_once`` keys, each of which is there, by one call after the other."""
    if work.options["peer"]:
        return _measured(work, *_asked_of_redis(work.options))
    keys, at_once, clock = work.options["keys"], work.options["at_once"], Clock()
    chosen = np.random.default_rng(1)
    async with _viewed(work) as views:
        await _fill(views, keys)
        for _ in range(WARM_UP + work.options["reads"]):
            asked = chosen.choice(keys, at_once, replace=False).tolist()
            with clock:
                found = await views.get("view", asked)
            check(found.rows, asked, work.options["each"])
            if not all(found.hits):
                raise Failed(f"all {at_once} keys are there, and {found.hits.count(False)} were missing")
    return _measured(work, clock.seconds[WARM_UP:])


async def look_up_at_once(work: Work, _: str) -> Result:
    """Ask for one key, which is there, in each of so many tasks, one call after the other."""
    if work.options["peer"]:
        return _measured(work, *_asked_of_redis(work.options))
    keys, chosen = work.options["keys"], np.random.default_rng(1)

    async def look_up(count: int) -> list[float]:
        left, found, seconds = iter(chosen.integers(keys, size=count).tolist()), [], []

        async def ask() -> None:
            for key in left:
                began = time.perf_counter()
                lookup = await views.get("view", [key])
                seconds.append(time.perf_counter() - began)
                found.append((key, lookup))

        began = time.perf_counter()
        await asyncio.gather(*(ask() for _ in range(work.options["callers"])))
        took.append(time.perf_counter() - began)
        for key, lookup in found:
            check(lookup.rows, [key], work.options["each"])
            if lookup.hits != [True]:
                raise Failed(f"key {key} is there, and was missing")
        return seconds

    took: list[float] = []
    async with _viewed(work) as views:
        await _fill(views, keys)
        await look_up(WARM_UP)
        seconds = await look_up(work.options["reads"])
    return _measured(work, seconds, took[-1])


async def _fill(views: Views, keys: int) -> None:
    for begin in range(0, keys, FILLED_AT_ONCE):
        await views.get("view", range(begin, min(begin + FILLED_AT_ONCE, keys)), DEADLINE_S)


async def miss(work: Work, _: str) -> Result:
    """Ask for one key after the other, none of which is there, and wait for it."""
    if work.options["peer"]:
        return _measured(work, _asked_of_sqlite(work.options))
    clock = Clock()
    async with _viewed(work) as views:
        await views.get("view", [-1], DEADLINE_S)
        for key in _missing(work.options):
            with clock:
                found = await views.get("view", [key])
            check(found.rows, [key], work.options["each"])
            if found.hits != [False]:
                raise Failed(f"key {key} was read for the first time, and was there")
    return _measured(work, clock.seconds[WARM_UP:])


def _measured(work: Work, seconds: list[float], took: float | None = None) -> Result:
    rate = work.options["at_once"] * len(seconds) / (took or sum(seconds))
    return Result(len(seconds), percentiles(seconds) | {"keys_per_s": rate})


def _missing(options: dict[str, Any]) -> list[int]:
    found: list[int] = np.random.default_rng(1).permutation(options["keys"]).tolist()
    return found[: WARM_UP + options["reads"]]


@asynccontextmanager
async def _viewed(work: Work) -> AsyncIterator[Views]:
    """The query, and who reads its view: at its node, or where `nebuli run` serves it."""
    options = work.options
    names = ("events", "names") if options["joins"] else ("events",)
    sources = {name: {"type": "Parquet", "path": f"{name}.parquet", "base": True} for name in names}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder, options["keys"], options["each"])
        given = topology(sources, {each: SCHEMAS[each] for each in names}, options["nodes"])
        async with (
            served(folder, given, JOINED if options["joins"] else FILTERED) as run,
            Views(run.run if options["by_run"] else run.node, secret=SECRET) as views,
        ):
            yield views


def _write(folder: Path, keys: int, each: int) -> None:
    """The rows of `graphs`, as files."""
    whole = np.concatenate([*portions(keys)])
    values = np.concatenate([whole + number for number in range(each)])
    pq.write_table(pa.table({"key": np.tile(whole, each), "value": values}), folder / "events.parquet")
    pq.write_table(pa.table({"key": whole, "name": whole * 7}), folder / "names.parquet")


def _asked_of_redis(options: dict[str, Any]) -> tuple[list[float], float]:
    """As a program in an environment that has it does: the seconds of each lookup, and of all."""
    said = {"warm_up": WARM_UP, **{name: options[name] for name in ("keys", "at_once", "reads", "callers")}}
    command = [python_of("redis"), ON_REDIS, json.dumps(said)]
    each, took = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return each, took


def _asked_of_sqlite(options: dict[str, Any]) -> list[float]:
    """In this process, from a file."""
    clock, sql = Clock(), sql_of(joins=options["joins"])
    with tempfile.TemporaryDirectory() as name, closing(sqlite3.connect(f"{name}/rows.db")) as database:
        load(database, options["keys"], options["each"])
        database.commit()
        for key in _missing(options):
            with clock:
                found = database.execute(sql, (key,)).fetchone()
            check(pa.record_batch([[found[0]], [found[2]]], ["key", "total"]), [key], options["each"])
    return clock.seconds[WARM_UP:]
