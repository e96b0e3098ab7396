"""Circuits in steps: what comes out of a step is what brute force says, however rows are dealt out to members."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nebuli.dataflow import (
    DataflowError,
    StateTooLarge,
    SteppedCircuit,
    hashing,
    operators,
    rows,
    state,
    stepped_circuit,
    zset,
)
from nebuli.dataflow.joins import join, outer_join
from placement import SteppedPlan, check_stepped
from placement.graph import bottom_up
from tests.nebuli.dataflow import test_stepped_windows as windows
from tests.nebuli.dataflow.dealing import Change, Members, Rows, rows_of, zset_of
from tests.nebuli.dataflow.graphs import (
    AGGREGATES,
    HOW,
    KEYS,
    PREDICATES,
    PROJECTIONS,
    SOURCES,
    TOPOLOGY,
    Graph,
    accumulated,
    difference,
    graphs,
    steps,
)
from tests.nebuli.dataflow.windowed import source, window
from tests.support.documents import op, query
from tests.support.sizes import examples
from tests.support.stepping import run_alone

SPREADS = st.sampled_from([SOURCES, SOURCES[:1], ()])
SCALES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def check(
    graph: Graph,
    all_steps: list[dict[str, Change]],
    members: int,
    spread: tuple[str, ...],
    seed: int,
    then: Sequence[int] = (),
) -> None:
    """Every step of so many members, ``then`` others, and of one, is the difference that brute force makes."""
    several = Members(graph.plan(members, spread), seed, spread, [graph.plan(each, spread) for each in then])
    alone = Members(graph.plan(1), seed, SOURCES)
    inputs: dict[str, Rows] = {source: Counter() for source in SOURCES}
    outputs: dict[str, Rows] = {sink: Counter() for sink in graph.sinks}
    for step in all_steps:
        inputs = accumulated(inputs, step)
        before, outputs = outputs, graph.outputs(inputs)
        wanted = {sink: difference(outputs[sink], before[sink]) for sink in outputs}
        for given_ in (several.step(step), alone.step(step)):
            assert {sink: rows_of(batch) for sink, batch in given_.items()} == wanted


@settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(), steps(), st.integers(1, 4), SPREADS, st.integers(0, 1000))
def test_random_graphs_are_what_brute_force_says(
    graph: Graph, all_steps: list[dict[str, Change]], members: int, spread: tuple[str, ...], seed: int
) -> None:
    """DBSP-DIST-4: what the members give is, together, what one gives."""
    check(graph, all_steps, members, spread, seed)


@settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(), steps(), st.integers(1, 4), SCALES, SPREADS, st.integers(0, 1000))
def test_random_graphs_go_on_with_other_numbers_of_members(
    graph: Graph,
    all_steps: list[dict[str, Change]],
    members: int,
    then: list[int],
    spread: tuple[str, ...],
    seed: int,
) -> None:
    """DBSP-REQ-3: before each step the state may go to more members, or to fewer."""
    check(graph, all_steps, members, spread, seed, then)


def _all_alike(_: Sequence[Any], rows: int) -> Any:
    return np.zeros(rows, dtype=np.uint64)


def one(kind: str, index: int) -> Graph:
    """A graph of one operator."""
    graph = Graph()
    match kind:
        case "filter":
            graph.add_filter("a", index % len(PREDICATES))
        case "project":
            graph.add_projection("a", index % len(PROJECTIONS))
        case "union":
            graph.add_union(["a", "b", "a"])
        case "distinct":
            graph.add_distinct("a")
        case "aggregate":
            graph.add_aggregate("a", *AGGREGATES[index % len(AGGREGATES)])
        case "outer join":
            graph.add_join(["a", "b"], KEYS[index % len(KEYS)], HOW[index % len(HOW)])
        case _:
            graph.add_join(["a", "b", "a"][: 2 + index % 2], KEYS[index % len(KEYS)])
    return graph.finish()


@pytest.mark.parametrize(
    "kind", ["filter", "project", "union", "distinct", "aggregate", "join", "outer join"]
)
@settings(max_examples=examples(100), deadline=None)
@given(
    st.integers(0, 27),
    steps(),
    st.integers(1, 4),
    SPREADS,
    st.integers(0, 1000),
    st.sampled_from([hashing.hash_rows, _all_alike]),
    st.sampled_from([2, 3, rows.MAX_BATCH_ROWS]),
)
def test_each_operator_is_what_brute_force_says(
    kind: str,
    index: int,
    all_steps: list[dict[str, Change]],
    members: int,
    spread: tuple[str, ...],
    seed: int,
    hash_rows: Any,
    most: int,
) -> None:
    """Also where all hashes collide, and where a step is worked on in many pieces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashing, "hash_rows", hash_rows)
        for module in (rows, zset, join, outer_join, state, stepped_circuit):
            patch.setattr(module, "MAX_BATCH_ROWS", most)
        patch.setattr(state, "_MUCH_ROWS", most)
        check(one(kind, index), all_steps, members, spread, seed)


# -- floats, whose sums depend on the order of what is added


def ugly(count: int, seed: int) -> Change:
    """Floats of which two hold no sum of three: what is left of small ones depends on what was added before."""
    drawn = random.Random(seed)
    values = [drawn.choice([3e300, -3e300, 1e100, -1e100, 0.1, 0.7, -0.0]) for _ in range(count)]
    return [((n % 3, "a", value, n % 2), drawn.choice([1, 1, 3])) for n, value in enumerate(values)]


@pytest.mark.parametrize("hash_rows", [hashing.hash_rows, _all_alike])
def test_sums_of_floats_are_the_same_to_the_bit(hash_rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "hash_rows", hash_rows)
    graph = Graph()
    graph.add_sink(graph.add_aggregate("a", ("k",), {"g": "max(g)", "x": "sum(x)", "n": "count(*)"}))
    graph.add_sink(graph.add_aggregate("a", ("n",), {"g": "max(g)", "x": "avg(x)", "k": "count(*)"}))
    graph.finish()
    found = set()
    for seed in range(12):
        for module in (zset, stepped_circuit):  # also where the work comes in many pieces
            monkeypatch.setattr(module, "MAX_BATCH_ROWS", 7 if seed % 3 else 65536)
        members = Members(graph.plan(1 + seed % 4), seed, SOURCES)
        given_ = [members.step({"a": ugly(60, step)}) for step in range(4)]
        found.add(tuple(batch.serialize().to_pybytes() for outputs in given_ for batch in outputs.values()))
    assert len(found) == 1


def test_equal_floats_are_one_wherever_they_come_from() -> None:
    """1 / x tells 0.0 and -0.0 apart: what an input, an expression or an aggregate gives is 0.0."""
    ops = [
        op("source", "a", logical="a"),
        op("source", "b", logical="b"),
        op("project", "p", input="a", columns={"k": "k", "x": "-x"}),
        op("aggregate", "m", input="p", by=["k"], aggregates={"x": "min(x)"}),
        *(
            op("project", f"of {each}".replace(" ", "_"), input=each, columns={"r": "1 / x"})
            for each in "abpm"
        ),
        *(op("sink", f"out_{each}", input=f"of_{each}", sink=f"o{n}") for n, each in enumerate("abpm")),
    ]
    plan = check_stepped(query(*ops), TOPOLOGY)
    outputs = Members(plan, 1, SOURCES).step({"a": [((1, "a", 0.0, 1), 1)], "b": [((1, "a", -0.0, 1), 1)]})
    assert {sink: batch.column(0).to_pylist() for sink, batch in outputs.items()} == {
        f"out_{each}": [float("inf")] for each in "abpm"
    }


# -- an aggregate of everything


TOTAL = {"k": "count(k)", "g": "min(g)", "x": "sum(x)", "n": "sum(k)"}


@pytest.mark.parametrize("members", [1, 3])
def test_without_by_there_is_a_row_from_the_first_step_on(members: int) -> None:
    graph = Graph()
    graph.add_sink(graph.add_aggregate("a", (), TOTAL))
    running = Members(graph.finish().plan(members), 1, SOURCES)
    nothing, something = (0, None, None, None), (1, "a", 0.5, 1)
    row = (1, "a", 0.5, 1)
    wanted = [({}, {nothing: 1}), ({"a": [(row, 1)]}, {nothing: -1, something: 1}), ({}, {})]
    for step, out in [*wanted, ({"a": [(row, -1)]}, {nothing: 1, something: -1})]:
        assert rows_of(running.step(step)["out0"]) == Counter(out)
    for first in ({"a": [(row, 1)]}, {"a": [(row, 1), ((2, "b", 1.0, 1), 1), ((2, "b", 1.0, 1), -1)]}):
        assert rows_of(Members(graph.plan(members), 1, SOURCES).step(first)["out0"]) == Counter(
            {something: 1}
        )
    cancelled = {"a": [(row, 1), (row, -1)]}
    assert rows_of(Members(graph.plan(members), 1, SOURCES).step(cancelled)["out0"]) == Counter({nothing: 1})


def test_without_by_all_rows_have_to_be_at_one_member() -> None:
    graph = Graph()
    id_ = graph.add_aggregate("a", (), TOTAL)
    plan = graph.finish().plan(1).model_copy(update={"members": 2})
    with pytest.raises(DataflowError, match=r"operator aggregate2: .* one member"):
        SteppedCircuit(plan, 0)
    assert id_


# -- pieces of work


def of_input(circuit: SteppedCircuit, name: str, count: int) -> pa.RecordBatch:
    numbers = np.arange(count)
    columns = {
        "k": numbers,
        "g": pa.array(["a"] * count),
        "x": numbers / 4,
        "n": numbers % 7,
        "_weight": numbers * 0 + 1,
    }
    schema = circuit.inputs[name]
    return pa.record_batch([pa.array(columns[each]) for each in schema.names], schema=schema)


def test_others_have_their_turn_between_pieces_of_bounded_size() -> None:
    """A step goes on when it is asked to."""
    graph = Graph()
    graph.add_sink(graph.add_join(["a", "b"], ("k",)))
    graph.add_sink(graph.add_aggregate("a", ("k",), {"g": "max(g)", "x": "sum(x)", "n": "count(*)"}))
    circuit = SteppedCircuit(graph.plan(1), 0)
    rows_, seen = 300_000, list[int]()
    pushes = {"join": join.Join.push, "aggregate": stepped_circuit.Aggregate.push}
    with pytest.MonkeyPatch.context() as patch:
        for kind, push in pushes.items():

            def counted(self: Any, port: int, batch: pa.RecordBatch, push: Any = push) -> Any:
                seen.append(batch.num_rows)
                return push(self, port, batch)

            patch.setattr(join.Join if kind == "join" else stepped_circuit.Aggregate, "push", counted)
        turns = sum(1 for _ in circuit.step({name: of_input(circuit, name, rows_) for name in SOURCES}))
    assert sum(seen) == 3 * rows_
    assert max(seen) < 2 * rows.MAX_BATCH_ROWS
    assert turns >= 3 * rows_ / rows.MAX_BATCH_ROWS


def test_a_record_goes_from_an_input_through_operators_to_an_output_in_one_thread() -> None:
    """DBSP-DIST-1."""
    graph = Graph()
    sink = graph.add_sink(graph.add_projection(graph.add_filter("a", 0), 0))
    circuit, trace = SteppedCircuit(graph.finish().plan(1), 0), list[tuple[int, str]]()
    with pytest.MonkeyPatch.context() as patch:
        for kind in (operators.PassThrough, operators.Filter, operators.Project):
            push = kind.push

            def traced(self: Any, port: int, batch: pa.RecordBatch, push: Any = push) -> Any:
                trace.append((threading.get_ident(), type(self).__name__))
                return push(self, port, batch)

            patch.setattr(kind, "push", traced)
        before = threading.active_count()
        (outputs,) = run_alone(
            [circuit], [{"a": zset_of([((1, "a", 0.5, 3), 1)], "kgxn", circuit.inputs["a"])}]
        )
        assert threading.active_count() == before
    assert rows_of(outputs[sink]) == Counter({(3, "A", -0.5, 1): 1})
    assert trace == [(threading.get_ident(), each) for each in ("PassThrough", "Filter", "Project")]
    through = {id_: (each.rows_in, each.rows_out) for id_, each in circuit.statistics().items()}
    assert through == {
        "a": (1, 1),
        "filter2": (1, 1),
        "project3": (1, 1),
        sink: (1, 1),
        "b": (0, 0),
        "out1": (0, 0),
    }


@pytest.mark.parametrize("cut", [1, 7, 100])
def test_rows_that_are_only_chosen_and_computed_stay_as_they_came(cut: int) -> None:
    """However they are cut, as long as each is there once; else equal ones are one row."""
    graph = Graph()
    sink = graph.add_sink(graph.add_projection("a", 0))
    circuit = SteppedCircuit(graph.finish().plan(1), 0)
    change = zset_of([((n, "a", 0.5, n), 1) for n in range(100)], "kgxn", circuit.inputs["a"])
    numbers = list(range(0, 100, cut))
    batches = [change.slice(start, cut) for start in numbers]
    again, (outputs,) = SteppedCircuit(graph.finish().plan(1), 0), run_alone([circuit], [{"a": batches}])
    assert outputs[sink].column(0).to_pylist() == list(range(100))
    (outputs,) = run_alone([again], [{"a": [*batches, change]}])
    assert outputs[sink].num_rows == 100
    assert set(zset.weights_of(outputs[sink]).tolist()) == {2}


# -- what is refused


def test_an_operator_past_its_bound_is_named() -> None:
    circuit = SteppedCircuit(one("distinct", 0).plan(1), 0, max_state_bytes=100_000)
    run_alone([circuit], [{"a": of_input(circuit, "a", 500)}])
    with pytest.raises(
        StateTooLarge, match=r"operator distinct2: its state holds .* above its bound of 100,000"
    ):
        run_alone([circuit], [{"a": of_input(circuit, "a", 5000)}])
    with pytest.raises(DataflowError, match="not finished"):
        run_alone([circuit], [{}])


def test_errors_name_the_operator_and_the_expression() -> None:
    ops = [
        op("source", "a", logical="a"),
        op("project", "p", input="a", columns={"y": "k // n"}),
        op("sink", "out", input="p", sink="o0"),
    ]
    circuit = SteppedCircuit(check_stepped(query(*ops), TOPOLOGY), 0)
    with pytest.raises(
        DataflowError, match=r"operator p: divide by zero in k // n, in the expression 'k // n'"
    ):
        run_alone([circuit], [{"a": of_input(circuit, "a", 1)}])


def test_inputs_that_do_not_exist_or_fit_are_refused() -> None:
    circuit = SteppedCircuit(one("distinct", 0).plan(1), 0)
    with pytest.raises(DataflowError, match="nobody is not one of the inputs a, b"):
        run_alone([circuit], [{"nobody": []}])
    circuit = SteppedCircuit(one("distinct", 0).plan(1), 0)
    with pytest.raises(DataflowError, match="operator a: a batch has the columns"):
        run_alone([circuit], [{"a": of_input(circuit, "a", 1).select(["k", "_weight"])}])


@pytest.mark.parametrize("member", [-1, 2])
def test_a_member_that_does_not_exist_is_refused(member: int) -> None:
    with pytest.raises(DataflowError, match=f"no member {member} of 2"):
        SteppedCircuit(one("filter", 0).plan(2), member)


def test_every_output_has_a_batch_in_every_step() -> None:
    circuit = SteppedCircuit(one("union", 0).plan(1), 0)
    (outputs,) = run_alone([circuit], [{}])
    assert {name: (batch.num_rows, batch.schema) for name, batch in outputs.items()} == {
        name: (0, schema) for name, schema in circuit.outputs.items()
    }


def test_what_is_given_and_taken_back_in_a_step_moves_no_time_above_a_join() -> None:
    """Where time is computed above a join, whose own rows depend on how its state lies."""
    operators = (
        source("a"),
        source("b"),
        op("project", "q", input="b", columns={"k": "k", "y": "x"}),
        op("join", "j", inputs=["a", "q"], on=["k"]),
        op("project", "p", input="j", columns={"t": "t + INTERVAL 1 HOUR", "y": "y"}),
        window("w", "p", 60, 60, 0),
    )
    for members in (1, 3):
        running = Members(windows.plan(members, "ab", *operators), 1, "ab")
        running.step({"b": [((0, 1, 0.5), 1)], "a": [((10, 1, 0.5), 1)]})
        running.step({"a": [((5000, 1, 0.5), 1), ((5000, 1, 0.5), -1)]})
        running.step({"a": [((4000, 1, 0.5), 1)], "b": [((0, 1, 0.5), -1)]})
        assert running.step({"a": [((20, 1, 0.5), 1)], "b": [((0, 1, 0.5), 1)]})["out"].num_rows
        assert not sum(each.statistics()["w"].late_rows for each in running.circuits)


# -- what nothing may depend on

ENTIRELY = """
import sys
sys.path[:0] = [{root!r}]
from tests.nebuli.dataflow.test_stepped_circuit import entirely
print(entirely())
"""


def mixed() -> Graph:
    graph = Graph()
    joined = graph.add_join(["a", "b"], ("k",))
    for by, aggregates in AGGREGATES:
        graph.add_sink(graph.add_aggregate("a", by, aggregates))
    graph.add_sink(graph.add_distinct(joined))
    return graph


def entirely() -> str:
    """All outputs of some steps to the bit, the fingerprint, and the names of the tables."""
    members = Members(mixed().plan(3), 5, SOURCES)
    outputs = [members.step({"a": ugly(40, step), "b": ugly(7, -step)}) for step in range(3)]
    text = [batch.serialize().to_pybytes().hex() for each in outputs for batch in each.values()]
    circuit = members.circuits[0]
    return "\n".join([*text, circuit.fingerprint, *circuit.save().tables])


@pytest.mark.processes
def test_hash_seeds_do_not_matter() -> None:
    found = set()
    for seed in ("0", "1"):
        command = [sys.executable, "-c", ENTIRELY.format(root=str(Path(__file__).parents[3]))]
        environment = os.environ | {"PYTHONHASHSEED": seed}
        found.add(
            subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=True).stdout
        )
    assert found == {entirely() + "\n"}


def shuffled(graph: Graph, seed: int) -> SteppedPlan:
    operators = list(graph.operators)
    random.Random(seed).shuffle(operators)
    return check_stepped(query(*operators), TOPOLOGY)


def test_members_may_have_the_operators_of_their_plan_in_any_order() -> None:
    """They ask for the same exchanges in the same order."""
    graph = Graph()
    graph.add_sink(graph.add_join(["a", "b"], ("k",)))
    graph.add_sink(graph.add_aggregate("a", *AGGREGATES[0]))
    plan = graph.plan(2)
    children = {each.id: each.children for each in plan.operators}
    by_id = {each.id: each for each in plan.operators}
    orders = [bottom_up(children, *sinks) for sinks in (("out0", "out1"), ("out1", "out0"))]
    plans = [plan.model_copy(update={"operators": tuple(by_id[id_] for id_ in order)}) for order in orders]
    circuits = [SteppedCircuit(each, member) for member, each in enumerate(plans)]
    outputs = run_alone(
        circuits, [{"a": of_input(circuits[0], "a", 9)}, {"b": of_input(circuits[0], "b", 9)}]
    )
    assert sum(outputs[0]["out0"].column("_weight").to_pylist()) == 9


def test_the_order_in_a_querys_file_does_not_matter() -> None:
    found = set()
    for seed in range(4):
        plan = shuffled(mixed(), seed)
        members = Members(plan, seed, SOURCES)
        outputs = members.step({"a": ugly(40, 1), "b": ugly(7, 2)})
        batches = [outputs[name].serialize().to_pybytes() for name in sorted(outputs)]
        found.add((members.circuits[0].fingerprint, *batches))
    assert len(found) == 1
