"""Tables whose columns and values are what engineers trip over: nulls, NaN, times, quotes, odd names."""

from __future__ import annotations

import datetime as dt
from random import Random
from typing import Any

import pyarrow as pa

from nebuli.dataflow import arrow_schema
from topology import parse_topology

TOPOLOGY = parse_topology(
    """
logical:
  - name: t
    schema: &plain [{name: k, type: BIGINT}, {name: g, type: VARCHAR}, {name: x, type: DOUBLE}, {name: n, type: BIGINT}]
  - {name: u, schema: *plain}
  - name: d
    schema:
      - {name: k, type: INTEGER}
      - {name: day, type: DATE}
      - {name: ts, type: TIMESTAMP}
      - {name: ok, type: BOOLEAN}
      - {name: f, type: FLOAT}
      - {name: "wind speed", type: SMALLINT}
      - {name: Order, type: VARCHAR}
      - {name: s, type: VARCHAR}
nodes:
  - address: 127.0.0.1:27571
    physical: [{logical: t, type: CSV, path: t.csv}, {logical: u, type: CSV, path: u.csv},
               {logical: d, type: CSV, path: d.csv}]
    sinks: [{name: out, type: CSV, path: out.csv, mode: final}]
"""
)
_WHOLE = [None, 0, 1, 2, 3]
_TIMES = [
    dt.datetime(2020, 1, 1, 0, 0, 5),
    dt.datetime(2020, 1, 1, 0, 0, 17, 500000),
    dt.datetime(1969, 12, 31, 23, 59),
]
_VALUES: dict[str, list[Any]] = {
    "k": _WHOLE,
    "g": [None, "", "a", "é", "it's"],
    "x": [None, -0.0, 0.25, -0.5, 1.0, float("nan")],
    "n": [None, -2, 0, 1, 2],
    "day": [None, dt.date(2020, 1, 1), dt.date(2020, 2, 29), dt.date(1969, 12, 31)],
    "ts": [None, *(each.replace(tzinfo=dt.UTC) for each in _TIMES)],
    "ok": [None, True, False],
    "f": [None, 0.5, -1.0, float("nan")],
    "wind speed": [None, 1, 7, 300],
    "Order": [None, "x", "Y", "zäh"],
    "s": [None, "", "ab c", 'q"x', "10%"],
}


def tables(seed: int, count: int = 9) -> dict[str, pa.RecordBatch]:
    """So many rows of each; the same for the same seed."""
    random = Random(seed)
    found = {}
    for source in TOPOLOGY.logical:
        schema = arrow_schema(source.columns)
        arrays = [
            pa.array([random.choice(_VALUES[each.name]) for _ in range(count)], each.type) for each in schema
        ]
        found[source.name] = pa.record_batch(arrays, schema=schema)
    return found
