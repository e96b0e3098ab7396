"""Circuits in steps: a join and an aggregate over rows of four columns, and one step after the other of one member."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import yaml

from nebuli.dataflow import Offload, SteppedCircuit
from nebuli.dataflow.zset import weighted
from placement import SteppedPlan, check_stepped, distribute, parse_query
from topology import parse_topology

COLUMNS = {"left": "kabc", "right": "kxyz"}
"""Of the two logical sources, all int64."""
SINK = {"id": "out", "type": "sink", "sink": "out"}
QUERIES: Mapping[str, list[dict[str, Any]]] = {
    "join": [
        {"id": "left", "type": "source", "logical": "left"},
        {"id": "right", "type": "source", "logical": "right"},
        {"id": "join", "type": "join", "inputs": ["left", "right"], "on": ["k"]},
        {**SINK, "input": "join"},
    ],
    "sums": [
        {"id": "left", "type": "source", "logical": "left"},
        {
            "id": "sums",
            "type": "aggregate",
            "input": "left",
            "by": ["k"],
            "aggregates": {"n": "count(*)", "a": "sum(a)", "b": "avg(b)"},
        },
        {**SINK, "input": "sums"},
    ],
    "extremes": [
        {"id": "left", "type": "source", "logical": "left"},
        {
            "id": "extremes",
            "type": "aggregate",
            "input": "left",
            "by": ["k"],
            "aggregates": {"least": "min(a)", "greatest": "max(a)"},
        },
        {**SINK, "input": "extremes"},
    ],
}
ENOUGH_BYTES = 1 << 36


def plan_of(query: str, members: int) -> SteppedPlan:
    """One of `QUERIES` over so many members, whose inputs come in at all of them."""
    topology = parse_topology(
        yaml.safe_dump(
            {
                "logical": [
                    {"name": name, "schema": [{"name": column, "type": "int64"} for column in columns]}
                    for name, columns in COLUMNS.items()
                ],
                "nodes": [{"address": "n:1", "sinks": [{"name": "out", "type": "Print", "mode": "changes"}]}],
            }
        )
    )
    plan = check_stepped(parse_query(json.dumps({"operators": QUERIES[query]}), name=query), topology)
    return distribute(plan, members, {"left", "right"})


def circuit_of(query: str) -> SteppedCircuit:
    """The only member of its plan."""
    return SteppedCircuit(plan_of(query, 1), 0, max_state_bytes=ENOUGH_BYTES)


def rows_of(source: str, keys: np.ndarray[Any, np.dtype[np.int64]], more: int = 0) -> pa.RecordBatch:
    """A Z-set with these keys, each row once; the other columns follow from the key, and are by so much more."""
    key, *others = COLUMNS[source]
    values = {key: keys, **{name: keys * 7 + place + more for place, name in enumerate(others)}}
    schema = weighted(pa.schema([(name, pa.int64()) for name in values]))
    columns = [*values.values(), np.ones(len(keys), dtype=np.int64)]
    return pa.record_batch([pa.array(each) for each in columns], schema=schema)


def step(circuit: SteppedCircuit, inputs: Mapping[str, pa.RecordBatch]) -> dict[str, pa.RecordBatch]:
    """A whole step of a circuit that has no other members."""
    work = circuit.step(inputs)
    try:
        while True:
            if isinstance(each := next(work), Offload):
                each.do()
    except StopIteration as ended:
        outputs: dict[str, pa.RecordBatch] = ended.value
        return outputs


def shuffled(rows: int, portion: int) -> Iterator[np.ndarray[Any, np.dtype[np.int64]]]:
    """The numbers below ``rows`` in an order that is always the same, in portions."""
    keys = np.random.default_rng(0).permutation(rows)
    return (keys[start : start + portion] for start in range(0, rows, portion))
