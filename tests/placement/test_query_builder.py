"""Queries built by method calls: the plan is that of the same query in JSON and in SQL."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from typing import Any

import pytest

import placement
from placement import InvalidQuery, Query, parse_query, parse_statement
from placement.query_builder import Relation, source
from tests.placement.statements.generator import Generator
from tests.placement.statements.odd_tables import TOPOLOGY
from tests.placement.statements.plans import plan
from tests.placement.statements.test_random_statements import topology_of
from tests.support.sizes import seeds

T = {"id": "t", "type": "source", "logical": "t"}
U = {"id": "u", "type": "source", "logical": "u"}
D = {"id": "d", "type": "source", "logical": "d"}

SAME: dict[str, tuple[Relation, list[dict[str, Any]], str]] = {
    "filter, group, aggregate": (
        source("t").filter("x > 1").group_by("g").aggregate(n="COUNT(*)", total="SUM(x)"),
        [
            T,
            {"id": "f", "type": "filter", "input": "t", "predicate": "x > 1"},
            {"id": "a", "type": "aggregate", "input": "f", "by": ["g"],
             "aggregates": {"n": "COUNT(*)", "total": "SUM(x)"}},
        ],
        "SELECT g, count(*) AS n, sum(x) AS total FROM t WHERE x > 1 GROUP BY g",
    ),
    "join": (
        source("t").project(k="k", g="g").join(source("u").project({"k": "k"}, n="n"), on="k", how="left"),
        [
            T,
            U,
            {"id": "p", "type": "project", "input": "t", "columns": {"k": "k", "g": "g"}},
            {"id": "q", "type": "project", "input": "u", "columns": {"k": "k", "n": "n"}},
            {"id": "j", "type": "join", "inputs": ["p", "q"], "on": ["k"], "how": "left"},
        ],
        "SELECT * FROM (SELECT k, g FROM t) LEFT JOIN (SELECT k, n FROM u) USING (k)",
    ),
    "union, distinct": (
        source("t").project(k="k").union(source("u").project(k="k")).distinct(),
        [
            T,
            U,
            {"id": "p", "type": "project", "input": "t", "columns": {"k": "k"}},
            {"id": "q", "type": "project", "input": "u", "columns": {"k": "k"}},
            {"id": "a", "type": "union", "inputs": ["p", "q"]},
            {"id": "b", "type": "distinct", "input": "a"},
        ],
        "SELECT k FROM t UNION SELECT k FROM u",
    ),
    "window": (
        source("d")
        .window("ts", "1 day", slide="1 hour", lateness="5 seconds", late="late.csv", idle_after="1 hour")
        .group_by("window_end")
        .aggregate(n="COUNT(*)"),
        [
            D,
            {"id": "w", "type": "window", "input": "d", "time": "ts", "size": "1 day", "slide": "1 hour",
             "lateness": "5 seconds", "late": "late.csv", "idle_after": "1 hour"},
            {"id": "a", "type": "aggregate", "input": "w", "by": ["window_end"], "aggregates": {"n": "COUNT(*)"}},
        ],
        """SELECT window_end, count(*) AS n
           FROM HOP(d, ts, INTERVAL '1 hour', INTERVAL '1 day', lateness := INTERVAL '5 seconds',
                    idle_after := INTERVAL '1 hour', late := 'late.csv')
           GROUP BY window_end""",
    ),
    "one row of all": (
        source("t").aggregate({"row count": "COUNT(*)"}),
        [T, {"id": "a", "type": "aggregate", "input": "t", "aggregates": {"row count": "COUNT(*)"}}],
        'SELECT count(*) AS "row count" FROM t',
    ),
}  # fmt: skip


@pytest.mark.parametrize(("built", "operators", "statement"), SAME.values(), ids=SAME)
def test_calls_json_and_sql_give_one_plan(
    built: Relation, operators: list[dict[str, Any]], statement: str
) -> None:
    sink = {"id": "out", "type": "sink", "input": operators[-1]["id"], "sink": "out"}
    of_calls = plan(built.sink("out").query())
    assert of_calls == plan(parse_query(json.dumps({"operators": [*operators, sink]})))
    assert of_calls == plan(parse_statement(f"INSERT INTO out {statement}", TOPOLOGY))


@pytest.mark.parametrize("first", seeds(range(0, 100, 25)))
def test_every_statement_can_be_built_by_calls_and_is_read_again_from_their_json(first: int) -> None:
    for seed in range(first, first + 25):
        generator = Generator(seed)
        query = parse_statement(f"INSERT INTO out {generator.statement()}", topology_of(generator.schemas))
        built = by_calls(query)
        assert plan(built.query()) == plan(query)
        assert plan(parse_query(built.to_json())) == plan(query)


def by_calls(query: Query) -> Relation:
    """The query with a call for each of its operators."""
    made: dict[str, Relation] = {}
    for each in query.operators:
        fields = each.model_dump(exclude={"id", "type", "input", "inputs"}, exclude_defaults=True)
        first, *others = [made[child] for child in each.children] or [None]
        match each.type:
            case "source":
                made[each.id] = source(**fields)
            case "project":
                assert first is not None
                made[each.id] = first.project(fields["columns"])
            case "aggregate":
                assert first is not None
                made[each.id] = first.group_by(*fields.get("by", ())).aggregate(fields["aggregates"])
            case "sink":
                assert first is not None
                return first.sink(fields["sink"])
            case type_:
                made[each.id] = getattr(first, type_)(*others, **fields)
    raise AssertionError("a statement has a sink")


def test_what_only_query_files_have_is_the_same_too() -> None:
    view = (
        source("t")
        .group_by("g", "k")
        .aggregate(n="count(*)")
        .named("counts")
        .bounded(5_000)
        .sharded(2, "g")
        .view("g", name="by_g", max_bytes=9_000, evict="random", node="127.0.0.1:1")
    )
    operators = [
        T,
        {"id": "counts", "type": "aggregate", "input": "t", "by": ["g", "k"], "aggregates": {"n": "count(*)"},
         "max_state_bytes": 5_000, "shard": {"into": 2, "by": ["g"]}},
        {"id": "view", "type": "view", "input": "counts", "key": ["g"], "name": "by_g", "max_bytes": 9_000,
         "evict": "random", "node": "127.0.0.1:1"},
    ]  # fmt: skip
    assert view.query() == parse_query(json.dumps({"operators": operators}))


def test_a_relation_that_several_read_is_one_operator() -> None:
    rows = source("t").filter("x > 1")
    few = rows.project(k="k")
    query = few.sink("out").query(rows.sink("more"), name="two sinks")
    assert [each.id for each in query.operators] == ["t", "filter", "project", "out", "more"]
    assert query.name == "two-sinks"
    twice = source("t").join(source("t"), on="k").sink("t").query()
    assert [each.id for each in twice.operators] == ["t", "t_2", "join", "t_3"]


WRONG: list[tuple[Callable[[], Relation], list[dict[str, Any]]]] = [
    (lambda: source("tt").sink("out"), [T | {"id": "tt", "logical": "tt"}]),
    (lambda: source("t").filter("y > 1").sink("out"),
     [T, {"id": "filter", "type": "filter", "input": "t", "predicate": "y > 1"}]),
    (lambda: source("t").project().sink("out"), [T, {"id": "project", "type": "project", "input": "t", "columns": {}}]),
    (lambda: source("t").aggregate(n="count(*").sink("out"),
     [T, {"id": "aggregate", "type": "aggregate", "input": "t", "aggregates": {"n": "count(*"}}]),
    (lambda: source("t").filter("x > 1").bounded(5).sink("out"),
     [T, {"id": "filter", "type": "filter", "input": "t", "predicate": "x > 1", "max_state_bytes": 5}]),
    (lambda: source("d").window("ts", "1 hour", slide="2 hours").sink("out"),
     [D, {"id": "window", "type": "window", "input": "d", "time": "ts", "size": "1 hour", "slide": "2 hours"}]),
]  # fmt: skip


@pytest.mark.parametrize(("build", "operators"), WRONG)
def test_what_is_wrong_is_refused_as_in_json_and_at_the_line_of_its_call(
    build: Callable[[], Relation], operators: list[dict[str, Any]]
) -> None:
    sink = {"id": "out", "type": "sink", "input": operators[-1]["id"], "sink": "out"}
    with pytest.raises(InvalidQuery) as of_json:
        placement.check(parse_query(json.dumps({"operators": [*operators, sink]})), TOPOLOGY)
    with pytest.raises(InvalidQuery) as of_calls:
        placement.check(build().query(), TOPOLOGY)
    assert type(of_calls.value) is type(of_json.value)
    (ours,), (theirs,) = of_calls.value.mistakes, of_json.value.mistakes
    assert (ours.message, ours.file) == (theirs.message, __file__)
    assert ours.line is not None
    assert ours.line - build.__code__.co_firstlineno in (0, 1)


def test_each_call_of_a_chain_has_its_own_line() -> None:
    rows = (
        source("t")
        .filter("x > 1")
        .filter("y > 1")
    )  # fmt: skip
    with pytest.raises(InvalidQuery) as error:
        placement.check(rows.sink("out").query(), TOPOLOGY)
    here = test_each_call_of_a_chain_has_its_own_line.__code__.co_firstlineno
    assert [each.line for each in error.value.mistakes] == [here + 4]


def test_another_thing_than_a_relation_is_no_input() -> None:
    with pytest.raises(TypeError, match=r"expected a relation, got 'u': start one with nebuli\.source"):
        source("t").join("u", on="k")  # type: ignore[arg-type] - that is the point


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda rows: rows.project("k"),
            "project needs a column name for each expression, got 'k': write project",
        ),
        (
            lambda rows: rows.aggregate("sum(n)"),
            "aggregate needs a column name for each expression, got 'sum\\(n\\)'",
        ),
        (lambda rows: rows.join(source("u"), on=3), "expected column names, got 3"),
        (lambda rows: rows.group_by(["k"]), "expected column names, got \\['k'\\]"),
        (lambda rows: rows.distinct().sharded(2, 4), "expected column names, got 4"),
        (lambda rows: rows.view(["k", 1]), "expected column names, got 1"),
        (lambda rows: rows.named(3), "an id is a str, got 3"),
    ],
)
def test_arguments_of_another_type_are_named_at_the_call(
    call: Callable[[Relation], object], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        call(source("t"))


def test_a_placement_is_a_table_in_a_notebook() -> None:
    placed = placement.place(source("t").filter("x < 1").named("a<b").sink("out").query(), TOPOLOGY)
    head, *rows = (
        placed._repr_html_().removeprefix("<table><tr>").removesuffix("</tr></table>").split("</tr><tr>")
    )
    assert head == "<th>operator</th><th>type</th><th>node</th><th>why</th>"
    expected = [
        (key, each.type, placed.nodes[key], placed.reasons[key])
        for key, each in placed.plan.operators.items()
    ]
    assert len(expected) == 3
    assert [html.unescape(row)[4:-5].split("</td><td>") for row in rows] == [[*each] for each in expected]
    assert "<td>a&lt;b</td><td>filter</td>" in rows[1]
