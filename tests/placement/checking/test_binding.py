"""The schema check: what every operator gives out, and what is said where columns and types do not fit."""

from __future__ import annotations

from typing import Any

import pytest

from placement import (
    InvalidQuery,
    MultipleReaders,
    MultipleSinks,
    RetractingPlan,
    UnknownSink,
    UnknownSource,
    check,
    check_stepped,
    parse_query,
)
from placement.plan import BoundSink, BoundSource, UnionOperator
from tests.support.documents import op, query, topology
from topology import Topology, parse_topology

TOPOLOGY = parse_topology("""
logical:
  - name: flights
    schema:
      - {name: origin, type: string}
      - {name: hour, type: timestamp}
      - {name: delay, type: int64}
      - {name: temp, type: float64}
  - name: weather
    schema: [{name: origin, type: string}, {name: hour, type: timestamp}, {name: temp, type: float64}]
  - name: nowhere
    schema: [{name: origin, type: string}]
nodes:
  - address: a:1
    links: {downstream: [b:1]}
    physical: [{logical: flights, type: CSV, path: f.csv}, {logical: weather, type: Parquet, path: w.parquet}]
  - address: b:1
    sinks: [{name: out, type: Print, mode: changes}, {name: log, type: CSV, path: log.csv, mode: append}]
""")
F, W = op("source", "f", logical="flights"), op("source", "w", logical="weather")
JOIN = op("join", "j", inputs=["f", "w"], on=["origin", "hour"])


def chain(*operators: dict[str, Any], sink: str = "out") -> Any:
    """These operators, and a sink above the last."""
    return query(*operators, op("sink", "s", input=operators[-1]["id"], sink=sink))


def schema(key: str, *operators: dict[str, Any]) -> str:
    columns = check(chain(*operators), TOPOLOGY).schemas[key]
    return ", ".join(f"{column.name} {column.type}" for column in columns)


def test_every_operator_has_an_output_schema():
    project = op(
        "project", "p", input="j", columns={"o": "origin", "late": "delay > 15", "t": "w.temp + 1.0"}
    )
    aggregate = op(
        "aggregate", "a", input="p", by=["o"], aggregates={"n": "count(*)", "m": "avg(t)", "x": "max(t)"}
    )
    assert schema("j", F, W, JOIN) == (
        "origin string, hour timestamp, delay int64, f.temp float64, w.temp float64"
    )
    assert schema("p", F, W, JOIN, project) == "o string, late bool, t float64"
    assert schema("a", F, W, JOIN, project, aggregate) == "o string, n int64, m float64, x float64"
    assert schema("s", F, W, JOIN, project, aggregate) == "o string, n int64, m float64, x float64"


def test_sources_and_the_sink_are_bound_to_what_the_topology_says():
    """PL-PIN-1"""
    plan = check(chain(F, op("filter", "g", input="f", predicate="delay > 1")), TOPOLOGY)
    source, sink = plan.operators["f"], plan.operators["s"]
    assert isinstance(source, BoundSource)
    assert isinstance(sink, BoundSink)
    assert (source.physical.path, sink.target.type) == ("f.csv", "Print")
    assert plan.pins == {"f": "a:1", "s": "b:1"}
    assert list(plan.operators) == ["f", "g", "s"]


def test_a_logical_source_of_several_parts_becomes_a_union_with_its_id():
    nodes = topology({"A": "B", "B": ""}, {"s#1": "A", "s#2": "B"}, sink="B")
    plan = check(query(op("source", "s", logical="s"), op("sink", "out", input="s", sink="out")), nodes)
    assert plan.operators["s"] == UnionOperator(id="s", inputs=("s/0", "s/1"))
    assert plan.pins == {"s/0": "A:1", "s/1": "B:1", "out": "B:1"}


@pytest.mark.parametrize(
    ("operator", "said"),
    [
        (op("filter", "x", input="j", predicate="dely > 1"), ["filter x", "dely", "delay"]),
        (op("filter", "x", input="j", predicate="delay + 1"), ["filter x", "BIGINT; expected BOOLEAN"]),
        (op("filter", "x", input="j", predicate="origin > 1"), ["filter x", "VARCHAR", "INTEGER"]),
        (op("filter", "x", input="j", predicate="temp > 1"), ["filter x", "f.temp", "w.temp"]),
        (op("filter", "x", input="j", predicate="delay >"), ["filter x"]),
        (
            op("project", "x", input="j", columns={"a": "nope", "b": "delay"}),
            ["project x: column 'a'", "nope"],
        ),
        (op("project", "x", input="j", columns={"": "delay"}), ["project x: '' cannot name a column"]),
        (
            op("aggregate", "x", input="j", aggregates={"\ud800": "count(*)"}),
            [r"aggregate x: '\ud800' cannot name a column"],
        ),
        (op("project", "x", input="j", columns={"_weight": "delay"}), ["project x: ", "column '_weight'"]),
        (
            op("view", "x", input="j", key=["delay", "orign"]),
            ["view x: unknown column 'orign' (did you mean 'origin'?); expected one of origin, hour, delay"],
        ),
        (op("view", "x", input="j", key=["delay", "delay"]), ["view x: column 'delay' is in the key twice"]),
        (
            op("aggregate", "x", input="j", by=["nope"], aggregates={"n": "count(*)"}),
            ["unknown column 'nope'"],
        ),
        (
            op("aggregate", "x", input="j", by=["temp"], aggregates={"n": "count(*)"}),
            ["column 'temp' is ambiguous; expected f.temp or w.temp"],
        ),
        (
            op("aggregate", "x", input="j", by=["origin"], aggregates={"origin": "count(*)"}),
            ["aggregate x: two output columns are named 'origin'"],
        ),
        (
            op("aggregate", "x", input="j", aggregates={"n": "sum(origin)"}),
            ["aggregate x: column 'n'", "VARCHAR"],
        ),
    ],
)
def test_a_column_or_type_that_does_not_fit_is_named_with_its_operator(
    operator: dict[str, Any], said: list[str]
):
    with pytest.raises(InvalidQuery) as caught:
        check(chain(F, W, JOIN, operator), TOPOLOGY)
    assert len(caught.value.mistakes) == 1
    assert all(text in str(caught.value) for text in said), str(caught.value)


def test_join_keys_exist_on_both_sides_with_one_type():
    for on, said in (
        (["delay"], "join j: unknown column 'delay' in input w; expected one of origin, hour, temp"),
        (["origin", "origin"], "join j: key 'origin' is given twice"),
    ):
        with pytest.raises(InvalidQuery, match=said):
            check(chain(F, W, {**JOIN, "on": on}), TOPOLOGY)
    cast = op("project", "p", input="w", columns={"origin": "origin", "hour": "1"})
    with pytest.raises(
        InvalidQuery, match=r"join j: key 'hour' has different types: TIMESTAMP in f, INTEGER in p"
    ):
        check(chain(F, W, cast, {**JOIN, "inputs": ["f", "p"]}), TOPOLOGY)


@pytest.mark.parametrize("how", ["left", "right", "full"])
def test_an_outer_join_gives_the_columns_of_an_inner_one_of_two_inputs(how):
    bound = check(chain(F, W, {**JOIN, "how": how}), TOPOLOGY)
    assert bound.schemas["j"] == check(chain(F, W, JOIN), TOPOLOGY).schemas["j"]
    third = op("source", "f2", logical="flights")
    said = f"join j: a {how} join has 2 inputs, but this one has 3 .f, w, f2.; join two of them"
    with pytest.raises(InvalidQuery, match=said) as caught:
        check(chain(F, W, third, {**JOIN, "inputs": ["f", "w", "f2"], "how": how}), TOPOLOGY)
    assert len(caught.value.mistakes) == 1
    with pytest.raises(InvalidQuery, match="expected one of inner, left, right, full as how, got 'outer'"):
        check(chain(F, W, {**JOIN, "how": "outer"}), TOPOLOGY)


def test_a_union_takes_equal_schemas_only():
    union = op("union", "u", inputs=["f", "w"])
    with pytest.raises(
        InvalidQuery,
        match="union u: inputs differ: f has column delay BIGINT, but at this position w has temp DOUBLE",
    ):
        check(chain(F, W, union), TOPOLOGY)


@pytest.mark.parametrize(
    ("operators", "sink", "error", "said"),
    [
        (
            [op("source", "f", logical="fligths")],
            "out",
            UnknownSource,
            "source f: unknown logical source 'fligths' (did you mean 'flights'?); expected",
        ),
        (
            [op("source", "f", logical="nowhere")],
            "out",
            UnknownSource,
            "source f: no node has a physical source",
        ),
        ([F], "table", UnknownSink, "sink s: unknown sink 'table'; expected one of out, log"),
        (
            [F, op("aggregate", "a", input="f", by=["origin"], aggregates={"n": "count(*)"})],
            "log",
            RetractingPlan,
            "sink s: 'log' at b:1 appends, but aggregate a retracts rows",
        ),
    ],
)
def test_what_the_topology_does_not_have_is_an_error_of_its_own(operators, sink, error, said):
    """PL-ERR-1"""
    with pytest.raises(error) as caught:
        check(chain(*operators, sink=sink), TOPOLOGY)
    assert said in str(caught.value)


def test_all_mistakes_are_reported_with_their_places_and_none_follows_from_another():
    text = """{"operators": [
  {"id": "f", "type": "source", "logical": "flights"},
  {"id": "p", "type": "project", "input": "f",
   "columns": {"a": "delay + origin", "b": "upper(delay)"}},
  {"id": "g", "type": "filter", "input": "p", "predicate": "zzz"},
  {"id": "s", "type": "sink", "input": "g", "sink": "nosuch"}]}"""
    with pytest.raises(InvalidQuery) as caught:
        check(parse_query(text, file="q.json"), TOPOLOGY)
    places = [(mistake.line, mistake.column) for mistake in caught.value.mistakes]
    assert places == [(4, 21), (4, 44), (6, 53)]


def test_a_part_of_a_source_that_has_the_id_of_another_operator_is_refused():
    nodes: Topology = topology({"A": ""}, {"s#1": "A", "s#2": "A"}, sink="A")
    plan = query(
        op("source", "s", logical="s"),
        op("filter", "s/1", input="s", predicate="k > 0"),
        op("sink", "out", input="s/1", sink="out"),
    )
    with pytest.raises(
        InvalidQuery, match="source s: its part gets the id 's/1', which another operator already has"
    ):
        check(plan, nodes)


GRAPH = """{"operators": [
  {"id": "f", "type": "source", "logical": "flights"},
  {"id": "late", "type": "filter", "input": "f", "predicate": "delay > 15"},
  {"id": "s", "type": "sink", "input": "late", "sink": "log"},
  {"id": "a", "type": "aggregate", "input": "late", "by": ["origin"], "aggregates": {"n": "count(*)"}},
  {"id": "s2", "type": "sink", "input": "a", "sink": "out"}]}"""


def test_what_is_to_run_free_has_one_sink_and_is_a_tree():
    """PL-ERR-1: more than one sink; the message names both, where the second is, and what to do."""
    with pytest.raises(MultipleReaders) as caught:
        check(parse_query(GRAPH, file="q.json"), TOPOLOGY)
    readers, sinks = str(caught.value).splitlines()
    assert readers == (
        "q.json:5:45: aggregate a: 'late' is already read by sink s; a free query is a tree: "
        "repeat, under other ids, the operators that both read, or run it in steps (nebuli run "
        "--stepped --state DIR)"
    )
    assert sinks == (
        "q.json:6:3: sink s2: a second sink in addition to sink s; expected exactly one in a "
        "free query: make it a separate query, or run it in steps (nebuli run --stepped --state DIR)"
    )
    apart = query(F, W, op("sink", "s", input="f", sink="out"), op("sink", "s2", input="w", sink="log"))
    with pytest.raises(
        MultipleSinks, match="sink s2: a second sink in addition to sink s; expected exactly one"
    ):
        check(apart, TOPOLOGY)


def test_in_steps_a_query_has_named_inputs_and_outputs():
    plan = check_stepped(parse_query(GRAPH, name="delays"), TOPOLOGY)
    assert (plan.name, plan.members) == ("delays", 1)
    assert [(each.id, each.type) for each in plan.operators] == [
        ("f", "input"),
        ("late", "filter"),
        ("s", "sink"),
        ("a", "aggregate"),
        ("s2", "sink"),
    ]
    assert [each.logical for each in plan.inputs] == ["flights"]
    assert [each.target.type for each in plan.outputs] == ["CSV", "Print"]


def test_in_steps_rows_may_come_from_nowhere_that_is_known():
    """They are pushed: the schema is all that counts."""
    plan = check_stepped(chain(op("source", "n", logical="nowhere")), TOPOLOGY)
    assert [each.id for each in plan.inputs] == ["n"]
    with pytest.raises(UnknownSource, match="source n: unknown logical source 'elsewhere'"):
        check_stepped(chain(op("source", "n", logical="elsewhere")), TOPOLOGY)


def test_in_steps_a_kept_channel_has_a_consumer():
    """Else a member that is killed reads it from its beginning again. Where nothing survives a kill, it needs none."""

    def attached(more: str = "") -> Topology:
        return parse_topology(f"""
logical: [{{name: n, schema: [{{name: n, type: int64}}]}}]
nodes:
  - address: a:1
    physical: [{{logical: n, type: Channel, address: "k:1", channel: c{more}}}]
    sinks: [{{name: out, type: Print, mode: changes}}]
""")

    reading = chain(op("source", "n", logical="n"))
    with pytest.raises(
        InvalidQuery,
        match=r"n: node a:1 reads 'n' from channel c at k:1 without a consumer: .*; add 'consumer'",
    ):
        check_stepped(reading, attached())
    assert [each.id for each in check_stepped(reading, attached(", consumer: q")).inputs] == ["n"]
    assert [*check(reading, attached()).operators] == ["n", "s"]


def test_in_steps_the_other_mistakes_stay_mistakes():
    text = GRAPH.replace('"input": "late", "sink": "log"', '"input": "a", "sink": "log"').replace(
        "> 15", "+ 1"
    )
    with pytest.raises(InvalidQuery) as caught:
        check_stepped(parse_query(text, file="q.json"), TOPOLOGY)
    assert [(each.line, each.column) for each in caught.value.mistakes] == [
        (3, text.splitlines()[2].index('"delay +') + 1)
    ]
    with pytest.raises(
        RetractingPlan, match=r"^q\.json:4:53: sink s: 'log' at b:1 appends, but aggregate a retracts"
    ):
        check_stepped(parse_query(text.replace("+ 1", "> 1"), file="q.json"), TOPOLOGY)


def test_a_sink_is_written_by_one_operator():
    text = GRAPH.replace('"sink": "log"', '"sink": "out"')
    with pytest.raises(
        InvalidQuery, match=r"^q\.json:6:54: sink s2: 'out' at b:1 is already written by sink s"
    ):
        check_stepped(parse_query(text, file="q.json"), TOPOLOGY)


V = op("view", "v", input="f", key=["origin"])


def test_a_view_gives_on_what_it_is_given_or_is_the_root():
    with_reader = check(chain(F, V, op("filter", "g", input="v", predicate="delay > 1")), TOPOLOGY)
    assert with_reader.schemas["v"] == with_reader.schemas["f"] == with_reader.schemas["s"]
    alone = check(query(F, V), TOPOLOGY)
    assert (alone.root, alone.schemas["v"]) == ("v", with_reader.schemas["v"])


def test_a_query_that_runs_free_has_one_root_views_included():
    """The message says what else to do: a view may have a reader."""
    two = query(F, op("sink", "s", input="f", sink="out"), W, op("view", "by_hour", input="w", key=["hour"]))
    with pytest.raises(
        MultipleSinks,
        match=r"view by_hour: a second root in addition to sink s; .*: make it a separate query, or let "
        r"the operators above it read the view",
    ):
        check(two, TOPOLOGY)


def test_in_steps_views_are_anywhere_and_sinks_have_their_results_all_the_same():
    """A program shuts such a query down, which then has its end."""
    view = op("view", "v", input="f", key=["origin"])
    alone = check_stepped(query(F, view), TOPOLOGY)
    assert [each.type for each in alone.operators] == ["input", "view"]
    several = query(
        F, view, op("sink", "s", input="v", sink="out"), op("view", "w", input="v", key=["origin"])
    )
    plan = check_stepped(several, TOPOLOGY)
    assert [each.id for each in plan.views] == ["v", "w"]
    assert [each.id for each in plan.outputs] == ["s"]
    with pytest.raises(InvalidQuery, match="view v: unknown column 'orign'"):
        check_stepped(query(F, {**view, "key": ["orign"]}), TOPOLOGY)


@pytest.mark.parametrize(
    ("above", "node", "said"),
    [
        ([], "b:1", None),
        ([], "c:1", "1:138: view v: unknown node 'c:1' (did you mean 'b:1'?); expected one of a:1, b:1"),
        (
            [op("sink", "s", input="v", sink="out")],
            "b:1",
            "1:138: view v: s reads this view, so the view is placed on a node with",
        ),
    ],
)
def test_only_a_view_that_nothing_reads_may_name_its_node(
    above: list[dict[str, Any]], node: str, said: str | None
):
    reading = query(F, {**V, "node": node}, *above)
    if said is None:
        assert check(reading, TOPOLOGY).pins == {"f": "a:1", "v": "b:1"}
        return
    with pytest.raises(InvalidQuery) as caught:
        check(reading, TOPOLOGY)
    assert str(caught.value).startswith(said)


def test_a_sink_whose_result_comes_at_the_end_of_a_query_with_views_is_refused():
    """Which has no end."""
    nodes = topology({"A": ""}, {"f#1": "A"}, sink="A", mode="final")
    operators = [op("source", "f", logical="f"), op("view", "v", input="f", key=["k"])]
    with pytest.raises(
        InvalidQuery, match=r"a query with views \(v\) does not end; expected mode changes or append"
    ):
        check(query(*operators, op("sink", "s", input="v", sink="out")), nodes)


def test_in_steps_a_result_is_not_inserted_into_a_collection_at_the_end():
    """Each change is written there, once."""
    nodes = topology(
        {"A": ""}, {"f#1": "A"}, sink="A", type="Collection", store="store", collection="c", mode="final"
    )
    reading = query(op("source", "f", logical="f"), op("sink", "s", input="f", sink="out"))
    assert check(reading, nodes).root == "s"
    with pytest.raises(
        InvalidQuery, match=r"into collection c at the end .* expected mode changes or append"
    ):
        check_stepped(reading, nodes)


@pytest.mark.parametrize(
    ("operator", "shard", "said"),
    [
        ({"by": ["origin"]}, {"into": 1}, "expected at least 2 as into, got 1"),
        (
            {"by": ["origin"]},
            {"into": 2, "by": ["hour"]},
            "it does not group by column 'hour'; expected origin",
        ),
        ({"by": ["origin"]}, {"into": 2, "by": ["origin", "origin"]}, "column 'origin' is given twice"),
        ({"by": []}, {"into": 2}, "it has a single group, which cannot be divided"),
    ],
)
def test_an_operator_is_divided_by_columns_that_it_groups_by(
    operator: dict[str, Any], shard: dict[str, Any], said: str
):
    groups = op("aggregate", "n", input="f", aggregates={"n": "count(*)"}, shard=shard, **operator)
    with pytest.raises(InvalidQuery) as caught:
        check(query(F, groups, op("view", "v", input="n", key=["n"])), TOPOLOGY)
    assert said in str(caught.value)


def test_a_join_is_divided_by_columns_that_it_joins_by():
    join = {**JOIN, "shard": {"into": 2, "by": ["temp"]}}
    with pytest.raises(InvalidQuery, match="it does not join by column 'temp'; expected one of origin, hour"):
        check(query(F, W, join, op("view", "v", input="j", key=["origin"])), TOPOLOGY)


def test_only_a_query_with_views_that_runs_free_has_shards():
    operators = [F, op("distinct", "d", input="f", shard={"into": 2}), op("sink", "s", input="d", sink="out")]
    with pytest.raises(
        InvalidQuery, match="distinct d: only a query with a view can have operators in shards"
    ):
        check(query(*operators), TOPOLOGY)
    with pytest.raises(InvalidQuery, match="distinct d: in steps, rows are divided among all members"):
        check_stepped(query(*operators), TOPOLOGY)
