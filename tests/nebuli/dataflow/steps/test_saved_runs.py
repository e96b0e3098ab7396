"""Saved state: to go on from it is to go on; it is small where little is new; and what is wrong with it is said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nebuli.dataflow import (
    CircuitChanged,
    DataflowError,
    Saved,
    StateDamaged,
    StateUnusable,
    SteppedCircuit,
)
from nebuli.dataflow.steps import saved_runs
from placement import SteppedPlan
from tests.nebuli.dataflow import test_stepped_windows as windows
from tests.nebuli.dataflow.dealing import Members
from tests.nebuli.dataflow.graphs import AGGREGATES, ROWS, SOURCES, Graph
from tests.nebuli.dataflow.windowed import source, window
from tests.support.documents import op
from tests.support.sizes import examples
from tests.support.stepping import run_alone

Tables = dict[str, dict[bytes, Any]]


class Database:
    """What a member's circuit has put, as a store would keep it: bytes by table and key."""

    def __init__(self) -> None:
        self.tables: Tables = {}
        self.put_bytes = 0

    def put(self, saved: Saved) -> None:
        self.put_bytes = 0
        for table, key in saved.new:
            content = bytes(saved.tables[table][key]())
            self.put_bytes += len(content)
            self.tables.setdefault(table, {})[key] = content
        for table, key in saved.gone:
            del self.tables[table][key]
        everything = {
            table: {key: bytes(encode()) for key, encode in entries.items()}
            for table, entries in saved.tables.items()
        }
        assert everything == {table: entries for table, entries in self.tables.items() if entries}
        saved.kept()


def everything() -> Graph:
    """Every operator that keeps something, two of them read by several, and one without rows of its own."""
    graph = Graph()
    joined = graph.add_join(["a", "b"], ("k",))
    for by, aggregates in AGGREGATES:
        graph.add_sink(graph.add_aggregate("a", by, aggregates))
    graph.add_sink(graph.add_distinct(joined))
    graph.add_sink(graph.add_aggregate(joined, *AGGREGATES[3]))
    return graph


def windowed(members: int) -> SteppedPlan:
    return windows.plan(
        members,
        "ab",
        source("a"),
        source("b"),
        op("union", "u", inputs=["a", "b"]),
        window("w", "u", 60, 20, 30),
        op(
            "aggregate",
            "g",
            input="w",
            by=windows.BY,
            aggregates={"n": "count(*)", "s": "avg(x)", "m": "max(x)", "d": "count(DISTINCT x)"},
        ),
    )


PLANS: list[tuple[Callable[[int], SteppedPlan], st.SearchStrategy[Any]]] = [
    (
        everything().plan,
        ROWS | ROWS.map(lambda row: (*row[:2], None if row[2] is None else row[2] * 0.3, row[3])),
    ),
    (windowed, windows.ROWS),
]


@st.composite
def histories(draw: st.DrawFn, rows: st.SearchStrategy[Any]) -> list[Any]:
    """Steps, and what is done between them."""
    changes = st.lists(st.tuples(rows, st.sampled_from([1, 1, 2])), max_size=5)
    step = st.fixed_dictionaries(dict.fromkeys(SOURCES, changes))
    return draw(
        st.lists(step | step | st.sampled_from(["save", "save in vain", "crash", "upgrade"]), max_size=14)
    )


@settings(max_examples=examples(120), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.sampled_from(PLANS), st.integers(1, 3), st.integers(0, 99))
def test_to_go_on_from_saved_state_is_to_go_on(
    data: st.DataObject, chosen: tuple[Any, Any], count: int, seed: int
) -> None:
    """To the bit: with floats whose sums depend on their order, dealt out to members at random.

    An upgrade is a crash, after which each further save is in a format of its own.
    """
    plan, rows = chosen
    alone, running = Members(plan(1), seed, SOURCES), Members(plan(count), seed, SOURCES)
    databases = [Database() for _ in range(count)]
    since: list[Any] = []
    with pytest.MonkeyPatch.context() as version:
        for action in data.draw(histories(rows)):
            match action:
                case "save":
                    for circuit, database in zip(running.circuits, databases, strict=True):
                        database.put(circuit.save())
                    since = []
                case "save in vain":
                    for circuit in running.circuits:
                        circuit.save()
                case "crash" | "upgrade":
                    if action == "upgrade":
                        version.setattr(saved_runs, "READS", saved_runs.READS | {saved_runs.FORMAT + 1})
                        version.setattr(saved_runs, "FORMAT", saved_runs.FORMAT + 1)
                    running = Members(plan(count), seed, SOURCES)
                    for circuit, database in zip(running.circuits, databases, strict=True):
                        circuit.load(database.tables)
                    for step, outputs in since:
                        assert same(running.step(step), outputs)
                case step:
                    outputs = alone.step(step)
                    assert same(running.step(step), outputs)
                    since.append((step, outputs))


def same(ours: dict[str, pa.RecordBatch], theirs: dict[str, pa.RecordBatch]) -> bool:
    """To the bit, in which equal rows have one order: NaN equals itself in bytes only."""
    as_bytes = [
        {name: batch.serialize().to_pybytes() for name, batch in each.items()} for each in (ours, theirs)
    ]
    return as_bytes[0] == as_bytes[1]


def joined(rows: int, first: int = 0) -> pa.RecordBatch:
    """Rows of an input of ``everything``."""
    schema = SteppedCircuit(everything().plan(1), 0).inputs["a"]
    keys = np.arange(first, first + rows)
    columns = {
        "k": keys,
        "g": pa.array(["text"] * rows),
        "x": keys / 4,
        "n": keys % 7,
        "_weight": np.ones(rows, int),
    }
    return pa.record_batch([pa.array(columns[name]) for name in schema.names], schema=schema)


def test_what_is_saved_again_is_only_what_is_new() -> None:
    circuit, database = SteppedCircuit(everything().plan(1), 0), Database()
    run_alone([circuit], [{"a": joined(20_000)}])
    database.put(circuit.save())
    whole = database.put_bytes
    assert whole > 2_000_000
    for step in range(5):
        run_alone([circuit], [{"a": joined(20, 100_000 + 20 * step)}])
    database.put(circuit.save())
    assert database.put_bytes < whole / 50
    database.put(circuit.save())
    assert database.put_bytes == 0


def test_what_was_saved_in_vain_is_saved_again() -> None:
    circuit, database = SteppedCircuit(everything().plan(1), 0), Database()
    run_alone([circuit], [{"a": joined(100)}])
    in_vain = circuit.save()
    saved = circuit.save()
    assert list(saved.new) == list(in_vain.new) != []
    database.put(saved)


def test_nothing_of_an_older_format_is_left_when_its_state_is_saved_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not the runs either that have been merged since: a version with these could not be loaded."""
    circuit, database = SteppedCircuit(everything().plan(1), 0), Database()
    run_alone([circuit], [{"a": joined(100)}])
    database.put(circuit.save())
    monkeypatch.setattr(saved_runs, "READS", frozenset({saved_runs.FORMAT, saved_runs.FORMAT + 1}))
    monkeypatch.setattr(saved_runs, "FORMAT", saved_runs.FORMAT + 1)
    upgraded = SteppedCircuit(everything().plan(1), 0)
    upgraded.load(database.tables)
    for step in range(20):
        run_alone([upgraded], [{"a": joined(100, 100 * step)}])
    database.put(upgraded.save())
    assert database.put_bytes == sum(
        len(each) for table in database.tables.values() for each in table.values()
    )
    SteppedCircuit(everything().plan(1), 0).load(database.tables)


def test_rows_that_nobody_has_looked_up_yet_are_saved_too() -> None:
    graph = Graph()
    graph.add_sink(graph.add_join(["a", "b"], ("k",)))
    plan, database = graph.plan(1), Database()
    circuit = SteppedCircuit(plan, 0)
    run_alone([circuit], [{"a": joined(100)}])
    database.put(circuit.save())
    again = SteppedCircuit(plan, 0)
    again.load(database.tables)
    (outputs,) = run_alone([again], [{"b": joined(100)}])
    assert outputs["out0"].num_rows == 100


def test_how_far_event_time_has_come_is_saved_too() -> None:
    members, database = Members(windowed(1), 1, SOURCES), Database()
    members.step({name: [((1000, 1, 0.5), 1)] for name in SOURCES})
    database.put(members.circuits[0].save())
    again = Members(windowed(1), 1, SOURCES)
    again.circuits[0].load(database.tables)
    again.step({"a": [((10, 1, 0.5), 1)]})
    assert again.circuits[0].statistics()["w"].late_rows == 3


def test_taking_the_state_encodes_nothing_and_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    circuit = SteppedCircuit(everything().plan(1), 0)
    run_alone([circuit], [{"a": joined(2_000)}])
    with monkeypatch.context() as patch:
        patch.setattr(pa.ipc, "new_stream", None)
        saved = circuit.save()
    reference = {key: bytes(encode()) for key, encode in entries(saved)}
    for step in range(20):
        run_alone(
            [circuit],
            [{"a": joined(100, 100 * step), "b": joined(10).rename_columns(joined(1).schema.names)}],
        )
    assert {key: bytes(encode()) for key, encode in entries(saved)} == reference


def entries(saved: Saved) -> Sequence[tuple[Any, Any]]:
    return [((table, key), encode) for table, each in saved.tables.items() for key, encode in each.items()]


def test_loading_hashes_and_copies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    circuit, database = SteppedCircuit(everything().plan(1), 0), Database()
    run_alone([circuit], [{"a": joined(20_000)}])
    database.put(circuit.save())
    again = SteppedCircuit(everything().plan(1), 0)
    monkeypatch.setattr("nebuli.dataflow.hashing.hash_rows", None)
    before = pa.total_allocated_bytes()
    again.load(database.tables)
    assert pa.total_allocated_bytes() - before < 100_000
    held = {id_: each.state_bytes for id_, each in again.statistics().items()}
    assert sum(held.values()) > 2_000_000


def test_no_two_runs_have_one_name() -> None:
    circuit = SteppedCircuit(everything().plan(1), 0)
    run_alone([circuit], [{"a": joined(100), "b": joined(100).slice(50)}])
    names = [key for (_, key), _ in entries(circuit.save()) if key != b"manifest"]
    assert len(names) == len(set(names)) > 10


def saved_tables(plan: SteppedPlan) -> Tables:
    circuit, database = SteppedCircuit(plan, 0), Database()
    run_alone([circuit], [{"a": joined(100)}])
    database.put(circuit.save())
    return database.tables


def test_state_of_another_circuit_is_refused() -> None:
    tables = saved_tables(everything().plan(1))
    graph = everything()
    graph.add_sink(graph.add_filter("a", 0))
    other = SteppedCircuit(graph.plan(1), 0)
    with pytest.raises(CircuitChanged, match=r"continue with the query .* start from scratch") as caught:
        other.load(tables)
    assert isinstance(caught.value, StateUnusable)
    assert caught.value.running == other.fingerprint != caught.value.saved
    for fingerprint in (caught.value.running, caught.value.saved):
        assert fingerprint in str(caught.value)
    with pytest.raises(DataflowError, match="into a new circuit"):
        next(other.step({}))


def test_state_of_another_member_is_refused() -> None:
    plan = everything().plan(2)
    circuits = [SteppedCircuit(plan, member) for member in range(2)]
    run_alone(circuits, [{"a": joined(100)}, {}])
    database = Database()
    database.put(circuits[0].save())
    with pytest.raises(StateDamaged, match="member 0, not 1"):
        SteppedCircuit(plan, 1).load(database.tables)


def _lost(tables: Tables) -> None:
    del tables["aggregate6"][next(key for key in tables["aggregate6"] if key != b"manifest")]


def _cut(tables: Tables) -> None:
    key = next(key for key in tables["aggregate6"] if key != b"manifest")
    tables["aggregate6"][key] = tables["aggregate6"][key][:-100]


def _no_run(tables: Tables) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, joined(1).schema) as writer:
        writer.write_batch(joined(1))
    key = next(key for key in tables["aggregate6"] if key != b"manifest")
    tables["aggregate6"][key] = sink.getvalue().to_pybytes()


def _left_over(tables: Tables) -> None:
    tables["aggregate6"][b"x"] = b""


def _without_manifest(tables: Tables) -> None:
    del tables["aggregate6"][b"manifest"]


def _other_manifest(tables: Tables) -> None:
    tables["aggregate6"][b"manifest"] = b'{"states": []}'


def _no_json(tables: Tables) -> None:
    tables["aggregate6"][b"manifest"] = b"{"


def _other_table(tables: Tables) -> None:
    tables["nobody"] = {}


@pytest.mark.parametrize(
    "damage",
    [_lost, _cut, _no_run, _left_over, _without_manifest, _other_manifest, _no_json, _other_table],
)
def test_damaged_state_is_refused(damage: Callable[[Tables], None]) -> None:
    tables = saved_tables(everything().plan(1))
    assert "aggregate6" in tables
    damage(tables)
    with pytest.raises(
        StateDamaged, match=r"the saved state of (aggregate6|nobody) is damaged, at .*: .*; restore"
    ):
        SteppedCircuit(everything().plan(1), 0).load(tables)


def test_a_circuit_that_has_begun_is_not_loaded_into() -> None:
    circuit = SteppedCircuit(everything().plan(1), 0)
    run_alone([circuit], [{}])
    with pytest.raises(DataflowError, match="load the state into a new circuit"):
        circuit.load({})


def test_a_step_that_was_not_finished_leaves_nothing_to_save() -> None:
    circuit = SteppedCircuit(everything().plan(1), 0)
    step = circuit.step({"a": joined(100)})
    next(step)
    step.close()
    with pytest.raises(DataflowError, match="not finished"):
        circuit.save()
    with pytest.raises(DataflowError, match="not finished"):
        next(circuit.step({}))
