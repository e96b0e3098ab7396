"""The graphs that are measured, and their rows: some of each key, whose values follow from key and number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.running import Failed
from nebuli.dataflow import arrow_schema, zset
from nebuli.dataflow.partial import Base, PartialGraph, PartialNode, View
from nebuli.dataflow.partial.base_and_view import BaseNode
from placement.plan import AggregateOperator, FilterOperator, JoinOperator, ProjectOperator
from topology import Column, DataType

Numbers = np.ndarray[Any, np.dtype[np.int64]]
PORTION = 100_000


def _base(id_: str, *columns: str) -> Base:
    return Base(id_, tuple(Column(name=name, type=DataType.INT64) for name in columns))


EVENTS, NAMES = _base("events", "key", "value"), _base("names", "key", "name")
SUMS = AggregateOperator(
    id="sums", input="filtered", by=("key",), aggregates={"n": "count(*)", "total": "sum(value)"}
)
SHOWN = ProjectOperator(id="shown", input="sums", columns={"key": "key", "n": "n", "total": "total"})
VIEW = View("view", "shown", ("key",))
CHAIN: list[PartialNode] = [
    EVENTS,
    FilterOperator(id="filtered", input="events", predicate="value >= 0"),
    SUMS,
    SHOWN,
    VIEW,
]
"""Base, filter, aggregate, project and view."""
JOINED: list[PartialNode] = [
    EVENTS,
    NAMES,
    JoinOperator(id="joined", inputs=("events", "names"), on=("key",)),
    AggregateOperator(
        id="shown",
        input="joined",
        by=("key",),
        aggregates={"n": "count(*)", "total": "sum(value)", "names": "sum(name)"},
    ),
    VIEW,
]
"""Two bases, join, aggregate and view."""


FULL: list[PartialNode] = [
    *CHAIN[:3],
    ProjectOperator(
        id="shown", input="sums", columns={"key": "key", "n": "n", "total": "total", "again": "key + 0"}
    ),
    View("view", "shown", ("again",)),
]
"""The chain with a view that has all from the beginning: its key is computed, so it cannot be asked for."""


def written(base: Base, columns: Sequence[Numbers], weight: int = 1) -> pa.RecordBatch:
    """Rows to write, or to take back."""
    schema = arrow_schema(base.columns)
    rows = pa.record_batch([pa.array(each) for each in columns], schema=schema)
    return zset.with_weights(rows, np.full(rows.num_rows, weight))


def events(keys: Numbers, number: int = 0, weight: int = 1) -> pa.RecordBatch:
    """A row of each key."""
    return written(EVENTS, [keys, keys + number], weight)


def loaded(nodes: Iterable[PartialNode], keys: int, each: int) -> PartialGraph:
    """A graph whose bases have ``each`` rows of so many keys, and one name of each."""
    graph = PartialGraph(nodes)
    for number in range(each):
        for some in portions(keys):
            graph.write("events", events(some, number))
            if "names" in graph.nodes and not number:
                graph.write("names", written(NAMES, [some, some * 7]))
            graph.drain()
    return graph


def portions(count: int) -> Iterator[Numbers]:
    """The numbers below it in an order that is always the same, in portions."""
    numbers = np.random.default_rng(0).permutation(count)
    return (numbers[start : start + PORTION] for start in range(0, count, PORTION))


def fill(graph: PartialGraph, keys: Numbers, at_once: int = PORTION) -> None:
    """Have the keys be there."""
    for start in range(0, len(keys), at_once):
        graph.read("view", [(key,) for key in keys[start : start + at_once].tolist()])
        graph.drain()


def bytes_beside_bases(graph: PartialGraph) -> int:
    """The memory that everything takes that is made of what the bases have."""
    return sum(node.state_bytes for node in graph.nodes.values() if not isinstance(node, BaseNode))


def total(key: int, each: int) -> int:
    """What the values of a key sum up to."""
    return each * key + each * (each - 1) // 2


def check(rows: pa.RecordBatch, keys: Sequence[int], each: int) -> None:
    """Every key has its row."""
    found = dict(zip(rows.column("key").to_pylist(), rows.column("total").to_pylist(), strict=True))
    wanted = {key: total(key, each) for key in keys}
    if found != wanted:
        key = next(key for key in wanted if found.get(key) != wanted[key])
        raise Failed(f"key {key} should have {wanted[key]}, and has {found.get(key)}")
