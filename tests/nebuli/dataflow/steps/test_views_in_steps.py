"""Views in steps: each key's rows are at the member that its hash says, and are found there without the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nebuli.dataflow import SteppedCircuit, hashing
from nebuli.dataflow.errors import StateTooLarge
from nebuli.dataflow.state import KeyedState, Run, consolidated
from nebuli.dataflow.steps.contents import of_keys
from nebuli.dataflow.steps.exchange_parts import owners_of
from nebuli.dataflow.zset import consolidate, empty, weighted
from placement.steps.whereabouts import divisions
from tests.nebuli.dataflow.dealing import Change, Members, Row, Rows, rows_of, spelled_row, zset_of
from tests.nebuli.dataflow.graphs import (
    KEYS,
    SOURCES,
    Graph,
    accumulated,
    graphs,
    steps,
)
from tests.support.sizes import examples

SPREADS = st.lists(st.sampled_from(SOURCES), unique=True).map(tuple)


def keys_of(rows: Rows, key: Sequence[str]) -> list[Row]:
    """The keys of rows that have the columns ``kgxn``, and one that none has."""
    places = ["kgxn".index(name) for name in key]
    found = {tuple(row[place] for place in places) for row in rows}
    return [*found, tuple(["nobody's" if name == "g" else 77 for name in key])]


def batch_of(keys: Sequence[Row], key: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
    fields = [schema.field(name) for name in key]
    columns = [
        pa.array([float("nan") if each[place] == "NaN" else each[place] for each in keys], field.type)
        for place, field in enumerate(fields)
    ]
    return pa.record_batch(columns, schema=pa.schema(fields))


def check_view(members: Members, view: str, key: tuple[str, ...], expected: Rows) -> None:
    """All members together have the rows, and each key is found at its member, with its rows."""
    circuits = members.circuits
    schema = circuits[0].tables[view]
    runs = [circuit.contents(view) for circuit in circuits]
    assert all(each is not None for each in runs)
    everything = consolidate([run.rows for each in runs for run in each or ()] or [empty(schema)])
    assert rows_of(everything) == expected
    wanted = keys_of(expected, key)
    keys = batch_of(wanted, key, schema)
    division = divisions(members.plan)[view]
    if isinstance(division, int):
        owners = np.full(len(wanted), division)
    else:
        hashes = hashing.hash_rows([keys.column(name) for name in division], len(wanted))
        owners = owners_of(hashes, len(circuits))
    for member, its in enumerate(runs):
        rows, counts = of_keys(its or (), key, keys, schema)
        assert (counts[owners != member] == 0).all(), "a key has rows at a member that is not its own"
        ends = np.cumsum(counts)
        for number in np.flatnonzero(owners == member).tolist():
            found = rows.slice(ends[number] - counts[number], counts[number])
            places = ["kgxn".index(name) for name in key]
            of_key = {
                row: weight
                for row, weight in expected.items()
                if tuple(row[place] for place in places) == wanted[number]
            }
            assert rows_of(found) == Counter(of_key)


@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(), st.data(), steps(), st.integers(1, 4), st.lists(st.integers(1, 4), max_size=3), SPREADS)
def test_random_views_have_what_brute_force_says_at_each_step_with_any_members(
    graph: Graph,
    data: st.DataObject,
    all_steps: list[dict[str, Change]],
    members: int,
    then: list[int],
    spread: tuple[str, ...],
) -> None:
    """One between others, and one that nothing reads: over any operators, and other members from step to step."""
    child, key = data.draw(st.sampled_from(graph.readable)), data.draw(st.sampled_from(KEYS))
    between = graph.add("view", [child], lambda inputs: inputs[0], key=list(key))
    sink = graph.add_sink(between)
    graph.operators.append({"type": "view", "id": "last", "input": between, "key": ["k"]})
    plans = [graph.plan(number, spread) for number in then]
    circuits = Members(graph.plan(members, spread), 1, spread, plans)
    inputs = dict.fromkeys(SOURCES, Rows())
    for step in all_steps:
        circuits.step(step)
        inputs = accumulated(inputs, step)
        expected = graph.outputs(inputs)[sink]
        check_view(circuits, between, key, expected)
        check_view(circuits, "last", ("k",), expected)


SCHEMA = weighted(pa.schema([("key", pa.int64()), ("text", pa.string())]))


def change(*rows: tuple[int, str, int]) -> pa.RecordBatch:
    columns = zip(zip(*rows, strict=True), SCHEMA, strict=True)
    return pa.record_batch([pa.array(values, field.type) for values, field in columns], schema=SCHEMA)


def test_keys_are_found_without_looking_at_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared with the keys are the rows that have their hashes, of a hundred thousand."""
    state = KeyedState(["key"], consolidated)
    for start in range(0, 100_000, 10_000):
        state.insert(Run.of(change(*((number, "x", 1) for number in range(start, start + 10_000))), ["key"]))
    state.insert(Run.of(change((7, "x", -1), (7, "y", 2)), ["key"]))
    runs = [run for part in state.runs for run in part]
    compared: list[int] = []

    def verified(self: KeyedState, probe: Run, candidates: Any) -> Any:
        compared.extend(
            each.num_rows if isinstance(each, pa.RecordBatch) else len(each.probe) for each in candidates
        )
        return original(self, probe, candidates)

    original = KeyedState._verified
    monkeypatch.setattr(KeyedState, "_verified", verified)
    wanted = pa.record_batch({"key": pa.array([*range(20), 100_000], pa.int64())})
    rows, counts = of_keys(runs, ["key"], wanted, SCHEMA)
    assert counts.tolist() == [1] * 20 + [0]
    assert spelled_row(rows.to_pylist()[7].values()) == (7, "y", 2)
    assert sum(compared) == 22


def test_a_view_past_its_bound_is_named() -> None:
    """As any operator that keeps rows, though it is full whatever budget it has."""
    graph = Graph()
    graph.operators.append({"type": "view", "id": "v", "input": "a", "key": ["k"], "max_bytes": 1000})
    graph.add_sink("b")
    circuit = SteppedCircuit(graph.plan(1), 0, max_state_bytes=10_000)
    rows: Change = [((number, "g", 0.5, number), 1) for number in range(1000)]
    with pytest.raises(StateTooLarge, match="operator v"):
        for _ in circuit.step({"a": zset_of(rows, "kgxn", circuit.inputs["a"])}):
            pass
