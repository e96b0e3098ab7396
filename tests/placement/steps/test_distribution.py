"""Where rows change members: what is inserted, what is left out, and that it does not change any output."""

from __future__ import annotations

import functools
import itertools
import math
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from placement import Query, SteppedPlan, check_stepped, distribute
from placement.checking.schemas import output_schema
from placement.plan import (
    AggregateOperator,
    BoundSink,
    DistinctOperator,
    FilterOperator,
    JoinOperator,
    ProjectOperator,
    SinkOperator,
    SourceOperator,
    UnionOperator,
    WindowOperator,
)
from placement.stepped_plan import (
    AlignOperator,
    ExchangeOperator,
    Exchanging,
    GatherOperator,
    InputOperator,
    ShardOperator,
    StepOperator,
)
from tests.support.documents import op, query
from tests.support.graphs import HOUR_US, SOURCES, TOPOLOGY, graphs
from tests.support.sizes import examples

Row = tuple[tuple[str, int | None], ...]
"""Sorted pairs of a column and its value."""
S0, S1 = op("source", "s0", logical="l0"), op("source", "s1", logical="l1")
JOIN = op("join", "j", inputs=["s0", "s1"], on=["a", "b"])
SPREAD = frozenset(SOURCES)


# An interpreter of operators, on lists of rows that are dicts by the names of columns.


def computed(operator: Any, inputs: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What an operator gives for all rows of its inputs; ``"<id>.<name>"`` is by the operator of the query."""
    match operator:
        case FilterOperator(predicate=sql):
            return [row for row in inputs[0] if row[_column(sql)] is not None and row[_column(sql)] > 0]
        case ProjectOperator(columns=columns):
            return [{name: _value(sql, row) for name, sql in columns.items()} for row in inputs[0]]
        case UnionOperator():
            return [row for rows in inputs for row in rows]
        case JoinOperator():
            return _joined(operator, inputs)
        case AggregateOperator(by=by):
            groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {} if by else {(): []}
            for row in inputs[0]:
                groups.setdefault(tuple(row[name] for name in by), []).append(row)
            calls = operator.aggregates.items()
            return [
                dict(zip(by, key, strict=True)) | {name: _aggregated(sql, rows) for name, sql in calls}
                for key, rows in groups.items()
            ]
        case DistinctOperator():
            return [dict(row) for row in {tuple(sorted(row.items())): None for row in inputs[0]}]
        case WindowOperator(time=time):
            starts = [(row, row[time] // HOUR_US * HOUR_US) for row in inputs[0]]
            return [row | {"window_start": at, "window_end": at + HOUR_US} for row, at in starts]
    return inputs[0]


def _column(sql: str) -> str:
    return sql.split('"')[1] if '"' in sql else sql


def _value(sql: str, row: Mapping[str, Any]) -> Any:
    value = row[_column(sql)]
    return value if value is None or not sql.endswith("+ 1") else value + 1


def _aggregated(sql: str, rows: Sequence[Mapping[str, Any]]) -> int | None:
    if sql == "count(*)":
        return len(rows)
    values = [row[_column(sql)] for row in rows if row[_column(sql)] is not None]
    return sum(values) if values else None


def _joined(join: JoinOperator, inputs: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    names = Counter(name for rows in inputs for name in {name for row in rows for name in row})
    found = []
    if math.prod(map(len, inputs)) > 4000:
        reject()
    for rows in itertools.product(*inputs):
        keys = [tuple(row[name] for name in join.on) for row in rows]
        if len(set(keys)) == 1 and None not in keys[0]:
            found.append(dict(zip(join.on, keys[0], strict=True)))
            for child, row in zip(join.inputs, rows, strict=True):
                prefix = re.sub(">.*", "", child)
                others = {name: value for name, value in row.items() if name not in join.on}
                found[-1] |= {f"{prefix}.{k}" if names[k] > 1 else k: v for k, v in others.items()}
    return found


def run(query: Query, inputs: Mapping[str, list[dict[str, Any]]]) -> dict[str, Counter[Row]]:
    """The outputs of a query, operator by operator, each on all rows that there are."""
    by_id = {operator.id: operator for operator in query.operators}

    @functools.cache
    def rows(key: str) -> list[dict[str, Any]]:
        operator = by_id[key]
        if isinstance(operator, SourceOperator):
            return inputs[key]
        return computed(operator, [rows(child) for child in operator.children])

    return {key: _counted(rows(key)) for key, each in by_id.items() if isinstance(each, SinkOperator)}


def run_distributed(
    plan: SteppedPlan, inputs: Mapping[str, list[list[dict[str, Any]]]]
) -> dict[str, Counter[Row]]:
    """The outputs of a distributed plan: at each member, each operator is given what is there."""
    members = range(plan.members)
    by_id = {operator.id: operator for operator in plan.operators}
    at: dict[str, list[list[dict[str, Any]]]] = {}
    outputs = {}
    for operator in plan.operators:
        below = [at[child] for child in operator.children]
        match operator:
            case InputOperator():
                at[operator.id] = inputs[operator.id]
            case ExchangeOperator(by=by):
                at[operator.id] = moved(below[0], by)
            case ShardOperator(by=by, member=member):
                assert not any(rows for m, rows in enumerate(below[0]) if m != member)
                at[operator.id] = moved(below[0], by)
            case GatherOperator(member=member):
                everything = [row for rows in below[0] for row in rows]
                at[operator.id] = [everything if m == member else [] for m in members]
            case AggregateOperator(by=()):  # of no rows it gives one
                gather = by_id[operator.input]
                assert isinstance(gather, GatherOperator)
                given = computed(operator, [below[0][gather.member]])
                at[operator.id] = [given if m == gather.member else [] for m in members]
            case _:
                at[operator.id] = [computed(operator, [rows[m] for rows in below]) for m in members]
        if isinstance(operator, BoundSink):
            away = [m for m, rows in enumerate(at[operator.id]) if rows and m != plan.homes[operator.id]]
            assert not away, "an output has rows away from its home"
            outputs[operator.id] = _counted(row for rows in at[operator.id] for row in rows)
    return outputs


def moved(rows: list[list[dict[str, Any]]], by: Sequence[str]) -> list[list[dict[str, Any]]]:
    """Rows at the members that a hash of these columns says."""
    found: list[list[dict[str, Any]]] = [[] for _ in rows]
    for row in itertools.chain(*rows):
        found[_hash([row[name] for name in by]) % len(rows)].append(row)
    return found


def _hash(values: Sequence[int | None]) -> int:
    """One that the order of the values matters to."""
    found = 17
    for value in values:
        found = (found * 31 + (7 if value is None else value * 2 + 1)) & 0xFFFF
    return found * 40503 >> 4


def _counted(rows: Iterable[Mapping[str, Any]]) -> Counter[Row]:
    return Counter(tuple(sorted(row.items())) for row in rows)


def inserted(*operators: dict[str, Any], members: int = 3, spread: Iterable[str] = SPREAD) -> list[str]:
    """How rows change members, in the plan's order: "gather of j at 1"; all of their columns, or some."""
    plan = distributed(query(*operators), members, spread)
    exchanging = [said(each) for each in plan.operators if isinstance(each, Exchanging)]
    return [each.replace(">columns", "") for each in exchanging]


def narrowed(*operators: dict[str, Any], spread: Iterable[str] = SPREAD) -> list[str]:
    """Of what some columns only are sent, and which: "a b of j"."""
    plan = distributed(query(*operators), 3, spread)
    projects = [each for each in plan.operators if isinstance(each, ProjectOperator) and ">" in each.id]
    return [f"{' '.join(each.columns)} of {each.input}" for each in projects]


def said(operator: StepOperator) -> str:
    match operator:
        case ExchangeOperator():
            return f"exchange of {operator.input} by {' '.join(operator.by)}"
        case ShardOperator():
            return f"shard of {operator.input} by {' '.join(operator.by)} from {operator.member}"
        case GatherOperator():
            return f"gather of {operator.input} at {operator.member}"
        case AlignOperator():
            return f"align of {operator.input}"
    raise AssertionError(operator)


def distributed(query: Query, members: int, spread: Iterable[str] = SPREAD) -> SteppedPlan:
    return distribute(check_stepped(query, TOPOLOGY), members, frozenset(spread))


def sink(key: str, child: str) -> dict[str, Any]:
    return op("sink", key, input=child, sink=f"o{key[-1]}")


def aggregate(key: str, child: str, *by: str) -> dict[str, Any]:
    return op("aggregate", key, input=child, by=by, aggregates={"n": "count(*)"})


def view(id_: str, child: str, *key: str) -> dict[str, Any]:
    return op("view", id_, input=child, key=key)


def renamed(key: str, child: str, **columns: str) -> dict[str, Any]:
    return op("project", key, input=child, columns=columns)


def test_late_rows_are_gathered_at_the_first_sinks_member_and_move_no_sink() -> None:
    """A sink's member is the same with them and without: at workers it is the one at the sink's node."""
    times = {"time": "t", "size": "1 hour"}
    sinks = sink("k0", "a"), sink("k1", "a")
    homes = []
    for late in ({}, {"late": "late.csv"}):
        window = op("window", "a", input="s0", **times, **late)
        plan = distributed(query(S0, window, *sinks), 3)
        assert plan.late_outputs == ({"a>late"} if late else set())
        homes.append({key: plan.homes[key] for key in ("k0", "k1")})
    assert homes[0] == homes[1] == {"k0": 0, "k1": 1}
    assert plan.homes["a>late"] == 0
    assert "gather of a>dropped at 0" in [
        said(each) for each in plan.operators if isinstance(each, GatherOperator)
    ]


@settings(max_examples=examples(300))
@given(graphs(4, 10), st.integers(2, 4), st.frozensets(st.sampled_from(SOURCES)), st.integers(0, 1 << 32))
def test_members_together_give_what_one_gives(
    query: Query, members: int, spread: frozenset[str], seed: int
) -> None:
    """DBSP-DIST-6, FT-LB-2: keys meet at one member, and an output is at one member, with all rows once."""
    plan = distributed(query, members, spread)
    random = Random(seed)
    inputs = {key: [random_row(random) for _ in range(8)] for key in SOURCES}
    at: dict[str, list[list[dict[str, Any]]]] = {key: [[] for _ in range(members)] for key in SOURCES}
    for key, rows in inputs.items():
        for row in rows:
            at[key][random.randrange(members) if key in spread else plan.homes.get(key, 0)].append(row)
    assert run_distributed(plan, at) == run(query, inputs)


def random_row(random: Random) -> dict[str, Any]:
    numbers = {name: random.choice([None, 0, 1, 2, 3, 4]) for name in "abc"}
    return numbers | {"t": random.choice([0, 1, HOUR_US, 5 * HOUR_US])}


@given(
    graphs(), st.integers(1, 4), st.frozensets(st.sampled_from(SOURCES)), st.randoms(use_true_random=False)
)
def test_a_distributed_plan_is_a_plan_whatever_the_order_in_the_file(query, members, spread, random) -> None:
    plan = distributed(query, members, spread)
    shuffled = random.sample(query.operators, len(query.operators))
    assert distributed(Query(operators=tuple(shuffled)), members, spread) == plan
    assert SteppedPlan.model_validate_json(plan.model_dump_json(by_alias=True)) == plan
    ids = [operator.id for operator in plan.operators]
    assert len(set(ids)) == len(ids)
    for index, operator in enumerate(plan.operators):
        assert set(operator.children) <= set(ids[:index])
    assert {key for key in ids if ">" not in key} == {each.id for each in query.operators} & set(ids)
    if members == 1:
        assert plan == check_stepped(query, TOPOLOGY)


@pytest.mark.parametrize(
    ("operators", "expected"),
    [
        (
            [S0, aggregate("g", "s0", "a", "b")],
            ["exchange of s0 by a b"],
        ),
        ([S0, op("distinct", "g", input="s0")], ["exchange of s0 by a b c t"]),
        ([S0, S1, {**JOIN, "id": "g"}], ["exchange of s0 by a b", "exchange of s1 by a b"]),
        (  # a group of what a join gives, by its keys in another order
            [S0, S1, JOIN, aggregate("g", "j", "b", "a")],
            ["exchange of s0 by a b", "exchange of s1 by a b"],
        ),
        (  # by one of them only
            [S0, S1, JOIN, aggregate("g", "j", "a")],
            ["exchange of s0 by a b", "exchange of s1 by a b", "exchange of j by a"],
        ),
        (  # by more than them: rows with all of these alike have also those
            [S0, S1, JOIN, aggregate("g", "j", "a", "b", "s0.c")],
            ["exchange of s0 by a b", "exchange of s1 by a b"],
        ),
        (  # a join's other input is to be divided by the same columns
            [S0, S1, aggregate("x", "s0", "a", "b"), op("join", "g", inputs=["x", "s1"], on=["a"])],
            ["exchange of s0 by a b", "exchange of x by a", "exchange of s1 by a"],
        ),
        (  # through a filter and other names; a name of a key for another column is none of a key
            [
                S0,
                aggregate("x", "s0", "a", "b"),
                op("filter", "f", input="x", predicate="n > 1"),
                renamed("p", "f", b="a", d="b", a="n"),
                aggregate("g", "p", "d", "b"),
            ],
            ["exchange of s0 by a b"],
        ),
        (
            [S0, aggregate("x", "s0", "a"), renamed("p", "x", a="n"), aggregate("g", "p", "a")],
            ["exchange of s0 by a", "exchange of p by a"],
        ),
        (  # computed, so no longer where the hash of it says
            [S0, aggregate("x", "s0", "a"), renamed("p", "x", a="a + 1"), aggregate("g", "p", "a")],
            ["exchange of s0 by a", "exchange of p by a"],
        ),
        (  # a union of what is divided alike, and of what is not
            [
                S0,
                S1,
                aggregate("x", "s0", "a"),
                aggregate("y", "s1", "a"),
                op("union", "u", inputs=["x", "y"]),
                aggregate("g", "u", "a"),
            ],
            ["exchange of s0 by a", "exchange of s1 by a"],
        ),
        (
            [
                S0,
                S1,
                aggregate("x", "s0", "a"),
                renamed("y", "s1", a="a", n="b"),
                op("union", "u", inputs=["x", "y"]),
                aggregate("g", "u", "a"),
            ],
            ["exchange of s0 by a", "exchange of u by a"],
        ),
        (  # a join takes the order of keys in which one of its inputs comes
            [
                S0,
                S1,
                aggregate("x", "s0", "b", "a"),
                op("join", "g", inputs=["x", "s1"], on=["a", "b"]),
            ],
            ["exchange of s0 by b a", "exchange of s1 by b a"],
        ),
        (  # of two orders one is given up
            [
                S0,
                S1,
                aggregate("x", "s0", "b", "a"),
                aggregate("y", "s1", "a", "b"),
                op("join", "g", inputs=["x", "y"], on=["a", "b"]),
            ],
            ["exchange of s0 by b a", "exchange of s1 by a b", "exchange of y by b a"],
        ),
        (  # a union of what is divided by columns that are not alike
            [
                S0,
                S1,
                aggregate("x", "s0", "a"),
                aggregate("y", "s1", "b"),
                renamed("z", "y", a="n", n="b"),
                op("union", "u", inputs=["x", "z"]),
                aggregate("g", "u", "a"),
            ],
            ["exchange of s0 by a", "exchange of s1 by b", "exchange of u by a"],
        ),
        ([S0, aggregate("x", "s0"), op("distinct", "g", input="x")], ["gather of s0 at 0"]),
        ([S0, aggregate("x", "s0"), aggregate("g", "x")], ["gather of s0 at 0", "gather of x at 0"]),
    ],
)
def test_an_exchange_stands_before_what_needs_keys_together_unless_they_are(
    operators: list[dict[str, Any]], expected: list[str]
) -> None:
    """DBSP-DIST-6: the plan shows the exchange before a join and a group."""
    found = inserted(*operators, sink("out0", "g"))
    assert [each for each in found if each != "gather of g at 0"] == expected


@pytest.mark.parametrize(
    ("operators", "expected"),
    [
        ([S0, view("v", "s0", "b", "a")], ["exchange of s0 by b a"]),
        ([S0, aggregate("g", "s0", "a", "b"), view("v", "g", "b", "a")], ["exchange of s0 by a b"]),
        (  # rows of a key are together where they are divided by some of its columns
            [S0, aggregate("g", "s0", "a"), view("v", "g", "n", "a")],
            ["exchange of s0 by a"],
        ),
        (
            [S0, aggregate("g", "s0", "a", "b"), view("v", "g", "b")],
            ["exchange of s0 by a b", "exchange of g by b"],
        ),
        (  # what reads a view finds its rows where they are
            [S0, view("v", "s0", "a"), aggregate("g", "v", "a", "b")],
            ["exchange of s0 by a"],
        ),
        ([S0, aggregate("g", "s0"), view("v", "g", "n")], ["gather of s0 at 0"]),
    ],
)
def test_a_view_has_the_rows_of_a_key_together(operators: list[dict[str, Any]], expected: list[str]) -> None:
    read = {each["input"] for each in operators if "input" in each}
    sinks = [
        sink("out0", each["id"]) for each in operators if each["type"] != "view" and each["id"] not in read
    ]
    found = inserted(*operators, *sinks)
    assert [each for each in found if each != "gather of g at 0" or not sinks] == expected


def test_rows_that_come_in_at_one_member_are_divided_for_a_view() -> None:
    assert inserted(S0, view("v", "s0", "a"), spread=()) == ["shard of s0 by a from 0"]


def test_filters_projects_unions_and_windows_have_no_exchange() -> None:
    """DBSP-DIST-5"""
    operators = [
        S0,
        S1,
        op("filter", "f", input="s0", predicate="a > 0"),
        op("union", "u", inputs=["f", "s1"]),
        op("project", "p", input="u", columns={"t": "t", "x": "a + b"}),
        op("filter", "w", input="p", predicate="x > 0"),
    ]
    assert inserted(*operators, sink("out0", "w")) == ["gather of w at 0"]


def test_outputs_are_gathered_at_members_in_turn_by_name() -> None:
    """FT-LB-2"""
    operators = [
        S0,
        sink("out2", "s0"),
        op("filter", "f", input="s0", predicate="a > 0"),
        sink("out0", "f"),
        sink("out3", "s0"),
        aggregate("g", "s0"),
        sink("out1", "g"),
    ]
    expected = ["f at 0", "s0 at 1", "s0 at 2", "s0 at 0"]
    found = inserted(*operators)
    assert found == [f"gather of {each}" for each in expected], "an aggregate is where its output is"
    assert distributed(query(*operators), 3).homes == {"s0": 0, "out0": 0, "out1": 1, "out2": 2, "out3": 0}


@pytest.mark.parametrize(
    ("above", "expected"),
    [
        ([aggregate("g", "s1", "b")], ["shard of s1 by b from 1"]),
        (
            [
                op("filter", "f", input="s1", predicate="a > 0"),
                renamed("p", "f", x="b", y="a"),
                aggregate("g", "p", "y", "x"),
            ],
            ["shard of p by y x from 1"],
        ),
        (
            [renamed("p", "s1", x="a + b"), aggregate("g", "p", "x")],
            ["shard of p by x from 1"],
        ),
        (  # what two read is divided once
            [op("filter", "f", input="s1", predicate="a > 0"), aggregate("g", "f", "b"), sink("out2", "f")],
            ["shard of f by b from 1", "gather of f>shard/1 at 2"],
        ),
        (  # of a window's keys there is one before it
            [
                op("window", "w", input="s1", time="t", size="1 hour"),
                aggregate("g", "w", "window_start", "b"),
            ],
            ["align of s1", "shard of s1>align by b from 1"],
        ),
        ([renamed("g", "s1", x="a + b")], []),  # what has no key above stays where it is
        ([aggregate("g", "s1")], ["gather of s1 at 0"]),
        (
            [op("join", "g", inputs=["s0", "s1"], on=["c"])],
            ["exchange of s0 by c", "shard of s1 by c from 1"],
        ),
        (  # the first that has keys counts
            [
                op("distinct", "d", input="s1"),
                aggregate("x", "s1", "b"),
                op("join", "g", inputs=["d", "x"], on=["b"]),
            ],
            ["shard of s1 by a b c t from 1", "exchange of s1>shard/1 by b", "exchange of d by b"],
        ),
    ],
)
def test_rows_that_come_in_at_one_member_are_sharded_by_the_keys_above_behind_filters_and_projects(
    above: list[dict[str, Any]], expected: list[str]
) -> None:
    """FT-LB-3: its plan; rows with equal keys are together, whichever connector brought them."""
    operators = [S0, S1, *above, sink("out0", "g"), sink("out1", "s0")]
    found = inserted(*operators, spread=["s0"])
    gathers = {"gather of g at 0", "gather of s0 at 1"}
    assert sorted(each for each in found if each not in gathers) == sorted(expected)


def test_of_what_an_aggregate_reads_only_the_columns_are_sent_that_it_needs() -> None:
    total = op("aggregate", "g", input="j", by=["s0.c"], aggregates={"n": "sum(b + a)"})
    assert narrowed(S0, S1, JOIN, total, sink("out0", "g")) == ["a b s0.c of j"]
    assert narrowed(S0, aggregate("g", "s0"), sink("out0", "g")) == ["a of s0"], (
        "rows cannot be of no columns"
    )


@pytest.mark.parametrize(
    "operators",
    [
        [S0, S1, JOIN, aggregate("g", "j", "a"), sink("out1", "j")],  # others read them, too
        [S0, S1, JOIN, aggregate("g", "j", "a", "b")],  # they stay where they are
        [S0, renamed("p", "s0", a="a"), aggregate("g", "p", "a")],  # there are no others
    ],
)
def test_columns_stay_where_leaving_them_out_saves_nothing(operators: list[dict[str, Any]]) -> None:
    assert narrowed(*operators, sink("out0", "g")) == []


def test_readers_share_an_exchange() -> None:
    operators = [S0, S1, JOIN, aggregate("x", "s0", "b", "a"), sink("out0", "j"), sink("out1", "x")]
    assert inserted(*operators) == [
        "exchange of s0 by a b",
        "exchange of s1 by a b",
        "gather of j at 0",
        "gather of x at 1",
    ]


def test_what_is_at_two_members_is_sharded_from_them() -> None:
    counts = [aggregate("x", "s0"), aggregate("y", "s1"), sink("out0", "x"), sink("out1", "j")]
    assert inserted(S0, S1, *counts, op("join", "j", inputs=["x", "y"], on=["n"])) == [
        "gather of s0 at 0",
        "gather of s1 at 1",
        "shard of x by n from 0",
        "shard of y by n from 1",
        "gather of j at 1",
    ]


def test_event_time_is_common_from_where_its_watermark_begins() -> None:
    """What closes windows has one watermark at all members: nothing but its align reads an origin."""
    operators = [
        S0,
        S1,
        op("union", "u", inputs=["s0", "s1"]),
        op("window", "w", input="u", time="t", size="1 hour"),
        aggregate("g", "w", "window_start", "a"),
        sink("out0", "g"),
        sink("out1", "s0"),
    ]
    assert inserted(*operators, spread=["s0"]) == [
        "align of s0",
        "align of s1",
        "shard of s1>align by a from 1",
        "exchange of w by window_start a",
        "gather of g at 0",
        "gather of s0>align at 1",
    ]


def test_columns_of_a_join_keep_their_names() -> None:
    operators = [S0, S1, JOIN, op("filter", "f", input="j", predicate="s1.c > s0.c"), sink("out0", "f")]
    plan = distributed(query(*operators), 2)
    columns = TOPOLOGY.logical[0].columns
    join = next(each for each in plan.operators if isinstance(each, JoinOperator))
    names = [column.name for column in output_schema(join, [columns, columns], [])]
    assert names == ["a", "b", "s0.c", "s0.t", "s1.c", "s1.t"]


def test_a_plan_is_distributed_once_and_over_somebody() -> None:
    plan = distributed(query(S0, sink("out0", "s0")), 2)
    with pytest.raises(ValueError, match="got a plan for 2, and 3 to distribute it to"):
        distribute(plan, 3, SPREAD)
    with pytest.raises(ValueError, match="and 0 to distribute it to"):
        distributed(query(S0, sink("out0", "s0")), 0)


@pytest.mark.processes
def test_every_process_makes_the_same_plan() -> None:
    """Members make it for themselves, and texts have other hashes in each of them: here ``x`` comes in two orders."""
    program = (
        "from tests.placement.steps.test_distribution import *\n"
        "s2 = op('source', 's2', logical='l2')\n"
        "x, y, z = aggregate('x', 's0', *'ab'), aggregate('y', 's1', *'ba'), aggregate('z', 's2', *'ba')\n"
        "all_ = op('join', 'all', inputs=['x', 'y', 'z'], on=['a', 'b'])\n"
        "some = op('join', 'some', inputs=['x', 'p'], on=['a', 'b'])\n"
        "p = renamed('p', 's2', a='a', b='b')\n"
        "plan = query(S0, S1, s2, p, x, y, z, all_, some, sink('out0', 'all'), sink('out1', 'some'))\n"
        "print(distributed(plan, 3).model_dump_json(by_alias=True))\n"
    )
    plans = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            encoding="utf-8",
        ).stdout
        for seed in "1234"
    ]
    assert len(plans[0]) > 1000
    assert len(set(plans)) == 1
