"""Writes, and views that join what runs."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from benchmarks.running import Failed
from benchmarks.work import Result, Work
from nebuli.dataflow.partial import Filled, PartialGraph, PartialNode, View
from placement.plan import AggregateOperator, ProjectOperator

from .graphs import CHAIN, FULL, events, fill, loaded
from .timing import Clock

WARM_UP = 5
BY_VALUE = AggregateOperator(id="counts", input="events", by=("value",), aggregates={"n": "count(*)"})
COUNTED: list[PartialNode] = [BY_VALUE, View("counted", "counts", ("value",))]
COUNTED_FULL: list[PartialNode] = [
    BY_VALUE,
    ProjectOperator(id="again", input="counts", columns={"value": "value + 0", "n": "n"}),
    View("counted", "again", ("value",)),
]


def writes(work: Work, _: str) -> Result:
    """Rows of any keys, so many at once, each of which is worked off."""
    keys, at_once, full = work.options["keys"], work.options["at_once"], work.options["full"]
    graph = loaded(FULL if full else CHAIN, keys, 1)
    if not full:
        fill(graph, np.arange(keys // 100))
    clock, chosen = Clock(), np.random.default_rng(1)
    for number in range(WARM_UP + work.options["writes"]):
        rows = events(chosen.integers(0, keys, at_once), number)

        def write(rows: object = rows) -> None:
            graph.write("events", rows)  # type: ignore[arg-type]
            graph.drain()

        clock.timed(write)
    del clock.seconds[:WARM_UP]
    rate = at_once * len(clock.seconds) / sum(clock.seconds)
    return Result(len(clock.seconds), clock.percentiles("ms", 1e-3) | {"rows_per_s": rate})


def added(work: Work, _: str) -> Result:
    """A view by a column that the base has no index of; afterwards everything that is still to do, bit by bit."""
    keys, each, full = work.options["keys"], work.options["each"], work.options["full"]
    graph = loaded(CHAIN, keys, each)
    fill(graph, np.arange(keys, keys + 1))
    asked = keys // 2
    clock, began = Clock(), time.perf_counter()
    clock.timed(lambda: graph.add(COUNTED_FULL if full else COUNTED))
    if full:
        _work_off(graph, clock)
    counts = graph.read("counted", [(asked,)]).rows
    while not counts.num_rows:
        (counts,) = [filled.rows for filled in _step(graph, clock)] or [counts]
    first_s = time.perf_counter() - began
    if counts.column("n").to_pylist() != [min(each, asked + 1)]:
        raise Failed(f"{each} rows have the value {asked}, and there are {counts.to_pylist()}")
    _work_off(graph, clock)
    measures = {"first_ms": first_s * 1e3, "longest_ms": clock.longest_ms}
    return Result(1, measures | {"settled_s": time.perf_counter() - began})


def _step(graph: PartialGraph, clock: Clock) -> Sequence[Filled]:
    return clock.timed(lambda: graph.step(graph.moves()[0]))


def _work_off(graph: PartialGraph, clock: Clock) -> None:
    while graph.moves():
        _step(graph, clock)
