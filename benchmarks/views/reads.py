"""Reads of keys that are there, and of keys that are not."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from benchmarks.running import Failed
from benchmarks.work import Result, Work
from nebuli.dataflow.partial import PartialGraph

from .graphs import CHAIN, JOINED, Numbers, check, fill, loaded, portions
from .timing import Clock

WARM_UP = 50
CHAINED = "SELECT key, count(*), sum(value) FROM events WHERE value >= 0 AND key = ? GROUP BY key"
JOINING = "SELECT key, count(*), sum(value), sum(name) FROM events JOIN names USING (key) WHERE key = ? GROUP BY key"


def present(work: Work, _: str) -> Result:
    """Ask for ``at_once`` keys, each of which is there."""
    keys, at_once = work.options["keys"], work.options["at_once"]
    graph = loaded(CHAIN, keys, 1)
    fill(graph, np.arange(keys))
    clock, chosen = Clock(), np.random.default_rng(1)
    for _ in range(WARM_UP + work.options["reads"]):
        asked = chosen.choice(keys, at_once, replace=False).tolist()
        tuples = [(key,) for key in asked]
        reading = clock.timed(lambda tuples=tuples: graph.read("view", tuples))  # type: ignore[misc]
        if reading.missing.num_rows:
            raise Failed(f"all {at_once} keys are there, and {reading.missing.num_rows} were missing")
        check(reading.rows, asked, 1)
    del clock.seconds[:WARM_UP]
    rate = at_once * len(clock.seconds) / sum(clock.seconds)
    return Result(len(clock.seconds), clock.percentiles("us", 1e-6) | {"keys_per_s": rate})


def missing(work: Work, _: str) -> Result:
    """Ask for one key after the other, none of which is there, and wait for it."""
    with _asked(work) as ask:
        keys, each = work.options["keys"], work.options["each"]
        clock = Clock()
        for key in np.random.default_rng(1).permutation(keys)[: WARM_UP + work.options["reads"]].tolist():
            found = clock.timed(lambda key=key: ask(key))  # type: ignore[misc]
            if not (isinstance(found, pa.RecordBatch)):
                found = pa.record_batch([[value] for value in (found[0], found[2])], ["key", "total"])
            check(found, [key], each)
    del clock.seconds[:WARM_UP]
    return Result(len(clock.seconds), clock.percentiles("ms", 1e-3) | {"longest_ms": clock.longest_ms})


@contextlib.contextmanager
def _asked(work: Work) -> Iterator[Callable[[int], pa.RecordBatch | tuple[int, ...]]]:
    joins, keys, each = work.options["joins"], work.options["keys"], work.options["each"]
    if work.options["peer"]:
        with contextlib.closing(sqlite3.connect(":memory:")) as database:
            load(database, keys, each)
            sql = sql_of(joins=joins)
            yield lambda key: database.execute(sql, (key,)).fetchone()
        return
    graph = loaded(JOINED if joins else CHAIN, keys, each)
    fill(graph, np.arange(keys, keys + 1))  # by now what has come is sorted
    yield lambda key: _filled(graph, key)


def _filled(graph: PartialGraph, key: int) -> pa.RecordBatch:
    graph.read("view", [(key,)])
    (filled,) = graph.drain()
    return filled.rows


def sql_of(*, joins: bool) -> str:
    """What a graph answers, asked of SQLite."""
    return JOINING if joins else CHAINED


def load(database: sqlite3.Connection, keys: int, each: int) -> None:
    """The rows of `graphs`, with an index of the keys."""
    database.execute("CREATE TABLE events (key INTEGER, value INTEGER)")
    database.execute("CREATE TABLE names (key INTEGER, name INTEGER)")
    for number in range(each):
        for some in portions(keys):
            _insert(database, "events", some, some + number)
            if not number:
                _insert(database, "names", some, some * 7)
    database.execute("CREATE INDEX events_by_key ON events (key)")
    database.execute("CREATE INDEX names_by_key ON names (key)")


def _insert(database: sqlite3.Connection, table: str, *columns: Numbers) -> None:
    rows = zip(*(each.tolist() for each in columns), strict=True)
    database.executemany(f"INSERT INTO {table} VALUES (?, ?)", rows)  # noqa: S608 - one of our two names
