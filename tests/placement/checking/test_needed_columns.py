"""Which columns are read: those that somebody needs, and all where the names or the order of others hang on them."""

from __future__ import annotations

from typing import Any

import pytest

from placement import check, check_stepped
from placement.checking.schemas import output_schema
from placement.plan import BoundSource, UnionOperator
from tests.placement.checking.test_binding import JOIN, TOPOLOGY, F, W, chain
from tests.support.documents import op, query
from topology import parse_topology

WINDOW = {"time": "hour", "size": "1 hour"}
BY_WINDOW = op("aggregate", "a", input="v", by=["window_start"], aggregates={"n": "count(*)"})


def read(*operators: dict[str, Any]) -> dict[str, list[str]]:
    found = check(chain(*operators), TOPOLOGY).operators.values()
    return {
        each.id: [column.name for column in each.columns] for each in found if isinstance(each, BoundSource)
    }


@pytest.mark.parametrize(
    ("operators", "columns"),
    [
        ([F], "origin hour delay temp"),
        ([F, op("distinct", "d", input="f")], "origin hour delay temp"),
        (
            [
                F,
                op("project", "p", input="f", columns={"o": "origin", "d": "delay"}),
                op("view", "v", input="p", key=["o"]),
                op("aggregate", "a", input="v", aggregates={"n": "count(*)"}),
            ],
            "origin delay",
        ),
        ([F, op("filter", "g", input="f", predicate="delay > 1 OR delay IS NULL")], "origin hour delay temp"),
        ([F, op("project", "p", input="f", columns={"x": "delay + 1", "y": "origin"})], "origin delay"),
        ([F, op("aggregate", "a", input="f", by=["origin"], aggregates={"m": "max(temp)"})], "origin temp"),
        ([F, op("aggregate", "a", input="f", aggregates={"n": "count(*)"})], "origin"),
        ([F, op("window", "v", input="f", **WINDOW), BY_WINDOW], "hour"),
        ([F, op("window", "v", input="f", late="late.csv", **WINDOW), BY_WINDOW], "origin hour delay temp"),
        (
            [
                F,
                op("filter", "g", input="f", predicate="temp < 9"),
                op("project", "p", input="g", columns={"x": "delay"}),
            ],
            "delay temp",
        ),
    ],
)
def test_a_file_is_read_for_what_is_needed(operators: list[dict[str, Any]], columns: str) -> None:
    assert read(*operators) == {"f": columns.split()}


def test_a_join_needs_its_keys_and_the_names_that_both_have() -> None:
    count = op("aggregate", "a", input="j", aggregates={"n": "count(*)"})
    assert read(F, W, JOIN, count) == {"f": ["origin", "hour", "temp"], "w": ["origin", "hour", "temp"]}
    late = op("project", "p", input="j", columns={"d": "delay", "t": "f.temp"})
    plan = check(chain(F, W, JOIN, late), TOPOLOGY)
    assert [column.name for column in plan.schemas["j"]] == ["origin", "hour", "delay", "f.temp", "w.temp"]


def test_what_a_network_carries_is_narrow_too() -> None:
    middle = op("filter", "g", input="f", predicate="delay > 1")
    plan = check(chain(F, middle, op("aggregate", "a", input="g", aggregates={"n": "count(*)"})), TOPOLOGY)
    assert [column.name for column in plan.schemas["g"]] == ["delay"]


def test_a_source_that_cannot_be_asked_for_some_columns_gives_all() -> None:
    document = """
logical: [{name: n, schema: [{name: a, type: int64}, {name: b, type: int64}]}]
nodes:
  - address: a:1
    physical: [{logical: n, type: Generator}, {logical: n, type: CSV, path: n.csv}]
    sinks: [{name: out, type: Print, mode: changes}]
"""
    count = op("aggregate", "a", input="n", aggregates={"n": "count(b)"})
    plan = check(chain(op("source", "n", logical="n"), count), parse_topology(document))
    sources = [each for each in plan.operators.values() if isinstance(each, BoundSource)]
    assert [[column.name for column in each.columns] for each in sources] == [["a", "b"], ["a", "b"]]


def test_in_steps_an_input_has_what_all_its_readers_need():
    operators = [
        F,
        op("aggregate", "a", input="f", by=["origin"], aggregates={"n": "count(*)"}),
        op("aggregate", "b", input="f", by=["hour"], aggregates={"n": "count(*)"}),
        op("sink", "s", input="a", sink="out"),
        op("sink", "t", input="b", sink="table"),
    ]
    topology = parse_topology(
        TOPOLOGY.to_yaml().replace("name: log", "name: table").replace("append", "changes")
    )
    (leaf,) = check_stepped(query(*operators), topology).inputs
    assert [column.name for column in leaf.columns] == ["origin", "hour"]


def test_inputs_of_a_union_stay_alike_where_one_has_another_reader():
    operators = [
        F,
        op("source", "g", logical="flights"),
        op("union", "u", inputs=["f", "g"]),
        op("aggregate", "a", input="u", by=["origin"], aggregates={"n": "count(*)"}),
        op("filter", "h", input="f", predicate="delay > 1"),
        op("aggregate", "b", input="h", by=["hour"], aggregates={"n": "count(*)"}),
        op("join", "j", inputs=["a", "c"], on=["n"]),
        op("project", "c", input="b", columns={"n": "n"}),
    ]
    plan = check_stepped(chain(*operators[:-2], operators[-1], operators[-2]), TOPOLOGY)
    schemas = {each.id: each.columns for each in plan.inputs}
    union = next(each for each in plan.operators if isinstance(each, UnionOperator))
    faults: list[Any] = []
    output_schema(union, [schemas[child] for child in union.inputs], faults)
    assert not faults
