"""Queries with windows, made into one circuit by the planner, and streams of rows out of order."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import yaml
from hypothesis import strategies as st

from nebuli.dataflow import arrow_schema, zset
from placement import Fragment, decompose, place
from tests.nebuli.dataflow.driven import Driven
from tests.support.documents import op, query
from topology import Column, DataType, parse_topology

COLUMNS = (
    Column(name="t", type=DataType.TIMESTAMP),
    Column(name="k", type=DataType.INT64),
    Column(name="x", type=DataType.FLOAT64),
)
SCHEMA = arrow_schema(COLUMNS)
EPOCH = dt.datetime(2024, 1, 1)
Row = tuple[int | None, int | None, float | None]
"""Seconds after `EPOCH`, key, value."""
Changes = list[tuple[Row, int]]
ROWS: st.SearchStrategy[Row] = st.tuples(
    # Tens, so that rows are often at an end of a window, and watermarks too.
    st.integers(0, 60).map(lambda n: 10 * n),
    st.none() | st.integers(0, 2),
    st.none() | st.integers(-4, 4).map(lambda n: n / 4),
)
# Size and slide, in seconds: tumbling, sliding, and with a size that is not a multiple of the slide.
WINDOWS = st.sampled_from([(60, 60), (60, 20), (50, 20)])


def fragment(*operators: dict[str, Any], mode: str = "changes") -> Fragment:
    """These operators and a sink above the last, over logical sources a and b, all on one node."""
    schema = [column.model_dump(mode="json") for column in COLUMNS]
    node = {
        "address": "n:1",
        "physical": [{"logical": name, "type": "Generator", "count": 1} for name in "ab"],
        "sinks": [{"name": "out", "type": "Print", "mode": mode}],
    }
    topology = {"logical": [{"name": name, "schema": schema} for name in "ab"], "nodes": [node]}
    sink = op("sink", "out", input=operators[-1]["id"], sink="out")
    placed = place(query(*operators, sink), parse_topology(yaml.safe_dump(topology)))
    (only,) = decompose(placed).fragments
    return only


def circuit(fragment: Fragment) -> Driven:
    return Driven(fragment.operators, watermarks=fragment.watermarks, closings=fragment.closings)


def source(name: str) -> dict[str, Any]:
    return op("source", name, logical=name)


def window(key: str, child: str, size: int, slide: int, lateness: int, **more: Any) -> dict[str, Any]:
    times = {"size": f"{size} seconds", "slide": f"{slide} seconds", "lateness": f"{lateness} seconds"}
    return op("window", key, input=child, time="t", **times, **more)


def change(rows: Sequence[tuple[Row, int]]) -> pa.RecordBatch:
    seconds, keys, values = ([row[index] for row, _ in rows] for index in range(3))
    times = [None if each is None else EPOCH + dt.timedelta(seconds=each) for each in seconds]
    columns = [times, keys, values]
    arrays = [
        pa.array(column, pa.timestamp("us") if i == 0 else SCHEMA.field(i).type)
        for i, column in enumerate(columns)
    ]
    arrays[0] = arrays[0].cast(SCHEMA.field(0).type)
    weights = pa.array([weight for _, weight in rows], pa.int64())
    return pa.record_batch([*arrays, weights], schema=zset.weighted(SCHEMA))


def table(rows: Sequence[tuple[Row, int]]) -> pa.Table:
    """The rows themselves; a row taken back must have come before."""
    return pa.Table.from_batches([zset.expand(zset.consolidate(change(rows)))])


def starts(slide: int) -> pa.Table:
    """All starts of windows that rows can be in."""
    return pa.table(
        {"ws": pa.array([EPOCH + dt.timedelta(seconds=s) for s in range(-600, 601) if s % slide == 0])}
    )


def rows_of(batches: Sequence[pa.RecordBatch]) -> list[tuple[tuple[Any, ...], int]]:
    """Rows and their weights."""
    return [(tuple(row.values())[:-1], row["_weight"]) for batch in batches for row in batch.to_pylist()]


@st.composite
def streams(draw: st.DrawFn, lateness: int, *, weights: bool = True) -> list[Changes]:
    """Batches of rows that are out of order by no more than ``lateness`` seconds; some are taken back."""
    arrivals: list[tuple[float, Row, int]] = []
    for row in draw(st.lists(ROWS, max_size=30)):
        assert row[0] is not None
        delay = draw(st.integers(0, lateness))
        arrivals.append((row[0] + delay, row, 1))
        if weights and draw(st.booleans()):
            arrivals.append((row[0] + draw(st.integers(delay, lateness)), row, -1))
    arrivals.sort(key=lambda arrival: arrival[0])  # stable: a row comes before it is taken back
    return draw(cut([(row, weight) for _, row, weight in arrivals]))


@st.composite
def cut(draw: st.DrawFn, rows: Changes) -> list[Changes]:
    """The rows in batches."""
    places = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=6)))
    return [rows[start:end] for start, end in zip([0, *places], [*places, len(rows)], strict=True)]
