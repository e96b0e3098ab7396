"""Which engine a fragment gets, and what is refused for it, with operator, node and reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from placement import NotOnEngine, decompose, parse_query, place
from placement.plan import SparkEngine
from topology import EngineName, Topology, TopologyError, parse_topology

COLUMNS = [
    {"name": "k", "type": "int64"},
    {"name": "s", "type": "string"},
    {"name": "u", "type": "uint8"},
    {"name": "f", "type": "float64"},
]
CSV = {"type": "CSV", "path": "in.csv"}
ENDLESS = {"type": "Generator"}


def cut(
    operators: list[dict[str, Any]],
    *,
    physical: dict[str, Any] = CSV,
    columns: list[dict[str, str]] = COLUMNS,
    engines: tuple[str, str] = ("embedded", "spark"),
    capacity: int | None = 0,
) -> dict[str, SparkEngine | None]:
    """The engines of the fragments of a query over two nodes in a row: a source at the first, a sink at the second.

    With capacity 0 at the first, all that computes is at the second.
    """
    first, second = ({"engine": engine} for engine in engines)
    if capacity is not None:
        first["capacity"] = capacity
    sink = {"name": "out", "type": "Null", "mode": "changes"}
    nodes = [
        {
            "address": "a:1",
            "links": {"downstream": ["b:1"]},
            "physical": [{"logical": "rows", **physical}],
            **first,
        },
        {"address": "b:1", "sinks": [sink], **second},
    ]
    topology = Topology.model_validate({"logical": [{"name": "rows", "schema": columns}], "nodes": nodes})
    ends = [
        {"id": "in", "type": "source", "logical": "rows"},
        {"id": "out", "type": "sink", "input": operators[-1]["id"] if operators else "in", "sink": "out"},
    ]
    query = parse_query(json.dumps({"operators": [ends[0], *operators, ends[1]]}))
    return {each.node: each.engine for each in decompose(place(query, topology)).fragments}


FILTER = {"id": "some", "type": "filter", "input": "in", "predicate": "k > 0"}
COUNT = {"id": "counted", "type": "aggregate", "input": "in", "by": ["k"], "aggregates": {"n": "count(*)"}}


def project(sql: str) -> list[dict[str, Any]]:
    return [{"id": "p", "type": "project", "input": "in", "columns": {"x": sql}}]


def refused(operators: list[dict[str, Any]], **settings: Any) -> str:
    with pytest.raises(NotOnEngine) as caught:
        cut(operators, **settings)
    return str(caught.value)


def test_what_computes_at_a_node_with_the_engine_spark_is_sparks() -> None:
    local = SparkEngine(master="local[*]", bounded=True)
    assert cut([FILTER]) == {"a:1": None, "b:1": local}
    assert cut([FILTER], engines=("spark", "spark"), capacity=None) == {"a:1": local, "b:1": None}
    assert cut([FILTER], physical=ENDLESS)["b:1"] == SparkEngine(master="local[*]", bounded=False)
    assert cut([FILTER], physical={**ENDLESS, "count": 7})["b:1"] == local
    assert cut([], engines=("spark", "spark")) == {"a:1": None, "b:1": None}


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("u + 1", "u + 1 computes in uint8, but Spark's integers are signed; cast an operand to int64"),
        ("-u", "-u computes in uint8, but Spark's integers are signed; cast an operand to int64"),
        (
            "CAST(k AS UTINYINT)",
            "CAST(k AS UTINYINT) casts to uint8, but Spark's integers are signed; cast to int64",
        ),
        (
            "CAST(u AS UBIGINT)",
            "CAST(u AS UBIGINT) is uint64, for which Spark has no type; cast columns to int64 first",
        ),
        (
            "CAST(s AS BIGINT)",
            (
                "CAST(s AS BIGINT) parses int64 from strings, but Spark accepts different "
                "strings; let the source parse them"
            ),
        ),
        (
            "CAST(s AS DATE)",
            (
                "CAST(s AS DATE) parses date from strings, but Spark accepts different strings; "
                "let the source parse them"
            ),
        ),
    ],
)
def test_an_expression_that_spark_would_compute_otherwise_is_refused(sql: str, reason: str) -> None:
    """SP-ENG-2."""
    said = refused(project(sql)).splitlines()[0]
    assert said == f"project p at b:1, whose engine is spark: {reason}, in {sql}"


def test_a_column_that_spark_has_no_type_for_is_refused() -> None:
    """SP-ENG-2."""
    columns = [{"name": "k", "type": "int64"}, {"name": "big", "type": "uint64"}]
    assert refused([FILTER], columns=columns) == (
        "filter some at b:1, whose engine is spark: column big is uint64, for which Spark has no type; "
        "cast it to int64 first"
    )


def test_every_reason_is_given() -> None:
    """SP-ENG-2."""
    wrong = [*project("CAST(s AS INT)"), {**FILTER, "input": "p", "predicate": "x < CAST('1' AS INT)"}]
    assert [line.partition(" at ")[0] for line in refused(wrong).splitlines()] == ["project p", "filter some"]


def test_an_edge_into_spark_must_not_take_rows_back() -> None:
    """SP-ENG-2: an aggregate of the embedded engine takes rows back; one on Spark, over inputs that end, does not."""
    after = {**FILTER, "input": "counted", "predicate": "n > 1"}
    assert refused([COUNT, after], capacity=1) == (
        "filter some at b:1, whose engine is spark: its input counted retracts rows, because "
        "aggregate counted at a:1 does, but Spark only accepts rows that are never retracted; "
        "set the engine of that aggregate's node to spark too, or the engine of this node to embedded"
    )
    engines = cut([COUNT, after], capacity=1, engines=("spark", "spark"))
    assert engines == dict.fromkeys(("a:1", "b:1"), SparkEngine(master="local[*]", bounded=True))


def test_a_collection_that_is_followed_takes_rows_back_and_one_read_at_a_time_does_not() -> None:
    kept = {"type": "Collection", "store": "s", "collection": "c"}
    assert (
        "filter some at b:1, whose engine is spark: its input in retracts rows, because source "
        "in follows collection c, but Spark only accepts rows that are never retracted; read the "
        "source with follow: false, or set the engine of this node to embedded"
    ) in refused([FILTER], physical=kept)
    local = SparkEngine(master="local[*]", bounded=True)
    assert cut([FILTER], physical={**kept, "follow": False}) == {"a:1": None, "b:1": local}
    assert cut([FILTER], physical=kept, engines=("embedded", "embedded")) == {"a:1": None, "b:1": None}


def test_an_outer_join_of_the_embedded_engine_takes_rows_back_and_one_on_spark_does_not() -> None:
    """SP-ENG-2."""
    other = {"id": "in2", "type": "source", "logical": "rows"}
    join = {"id": "joined", "type": "join", "inputs": ["in", "in2"], "on": ["k"]}
    after = {**FILTER, "input": "joined", "predicate": "k > 0"}
    said = refused([other, {**join, "how": "left"}, after], capacity=1)
    assert "its input joined retracts rows, because join joined at a:1 does" in said
    assert "set the engine of that join's node to spark too" in said
    spark = dict.fromkeys(("a:1", "b:1"), SparkEngine(master="local[*]", bounded=True))
    assert cut([other, {**join, "how": "left"}, after], capacity=1, engines=("spark", "spark")) == spark
    assert cut([other, join, after], capacity=1)["a:1"] is None


def test_without_an_end_spark_computes_row_by_row() -> None:
    """SP-ENG-2: in append mode a result is given out once, and never changes."""
    said = refused([COUNT], physical=ENDLESS)
    assert said.startswith(
        "aggregate counted at b:1, whose engine is spark: its input does not end (source in), "
        "and its result is only known when the input ends: in append mode Spark only outputs final rows"
    )
    join = {"id": "joined", "type": "join", "inputs": ["in", "in2"], "on": ["k"]}
    other = {"id": "in2", "type": "source", "logical": "rows"}
    assert (
        "joined at b:1, whose engine is spark: its input does not end (source in, source in2), and Spark "
        "would " in (refused([other, join], physical=ENDLESS))
    )
    assert refused([COUNT], physical={"type": "TCP", "address": "c:1"}) == said


TOPOLOGY = """\
nodes:
  - address: a:1
    engine: {engine}
    master: {master}
"""


@pytest.mark.parametrize(
    "master", ["local", "local[2]", "local[*]", "local[2,4]", "spark://h:7077", "sc://h:15002"]
)
def test_a_master_is_where_spark_runs(master: str) -> None:
    (node,) = parse_topology(TOPOLOGY.format(engine="spark", master=master)).nodes
    assert node.spark_master == master


@pytest.mark.parametrize(
    ("engine", "master", "mistake"),
    [
        (
            "Spark",
            "local",
            "3:13: expected one of embedded, spark as engine, got 'Spark' (did you mean 'spark'?)",
        ),
        (
            "spark",
            "yarn",
            "4:13: expected local[N], local[*], local-cluster[EXECUTORS,CORES,MIB], spark://host:port or, ",
        ),
        (
            "embedded",
            "local",
            "4:13: master is a key of the engine spark, but this node has another engine; expected engine: spark",
        ),
    ],
)
def test_a_wrong_engine_is_named(engine: str, master: str, mistake: str) -> None:
    with pytest.raises(TopologyError) as caught:
        parse_topology(TOPOLOGY.format(engine=engine, master=master), "t.yaml")
    assert mistake in str(caught.value).splitlines()[0]


@pytest.mark.parametrize("line", ["", "    engine: embedded\n", "    engine: spark\n"])
@pytest.mark.parametrize(
    ("engine", "shown"),
    [("spark", ("spark", "local[3]", "local[3]")), ("embedded", ("embedded", None, None))],
)
def test_an_engine_for_all_nodes_takes_masters_whatever_the_document_says(
    line: str, engine: EngineName, shown: tuple[str, str | None, str | None]
) -> None:
    text = TOPOLOGY.format(engine="embedded", master="local[3]").replace("    engine: embedded\n", line)
    (node,) = parse_topology(text, "t.yaml", engine).nodes
    assert (node.engine, node.master, node.spark_master) == shown
    with pytest.raises(TopologyError, match="expected one of embedded, spark as engine, got 'Spark'"):
        parse_topology(TOPOLOGY.format(engine="Spark", master="local"), "t.yaml", engine)


def test_one_engine_for_all_nodes() -> None:
    topology = parse_topology(TOPOLOGY.format(engine="spark", master="local"))
    (node,) = topology.with_engine("spark").nodes
    assert node.spark_master == "local"
    (node,) = topology.with_engine("embedded").nodes
    assert (node.engine, node.master) == ("embedded", None)


TIMED = [*COLUMNS, {"name": "t", "type": "timestamp"}, {"name": "d", "type": "date"}]
WINDOW = {
    "id": "hours",
    "type": "window",
    "input": "in",
    "time": "t",
    "size": "1 hour",
    "lateness": "5 minutes",
}
BY_HOUR = {
    "id": "by_hour",
    "type": "aggregate",
    "input": "hours",
    "by": ["window_start"],
    "aggregates": {"n": "count(*)"},
}


def test_an_aggregate_by_windows_needs_no_end() -> None:
    engine = SparkEngine(master="local[*]", bounded=False)
    assert cut([WINDOW, BY_HOUR], physical=ENDLESS, columns=TIMED)["b:1"] == engine
    between = [WINDOW, {**FILTER, "input": "hours"}, {**BY_HOUR, "input": "some"}]
    assert cut(between, physical=ENDLESS, columns=TIMED)["b:1"] == engine


@pytest.mark.parametrize(
    ("operators", "reason"),
    [
        (
            [{**WINDOW, "late": "late.csv"}, BY_HOUR],
            "it has a file for late rows, but Spark does not return these rows",
        ),
        (
            [{**WINDOW, "idle_after": "5 seconds"}, BY_HOUR],
            "it has 'idle_after', but Spark waits for every input",
        ),
        ([{**WINDOW, "time": "d"}, BY_HOUR], "its time d is a date, but Spark's windows are over timestamps"),
        (
            [WINDOW],
            "out reads this window, but on endless input Spark closes windows only for an aggregate by ",
        ),
        (
            [WINDOW, {**BY_HOUR, "by": ["k"]}],
            "by_hour reads this window, but on endless input Spark closes windows only for an",
        ),
        (
            [
                {"id": "p", "type": "project", "input": "in", "columns": {"t": "t + INTERVAL 1 HOUR"}},
                {**WINDOW, "input": "p"},
                BY_HOUR,
            ],
            (
                "its time is computed by p, on Spark as well, but Spark's watermark must come "
                "from a column that Spark reads"
            ),
        ),
    ],
)
def test_a_window_that_spark_cannot_close_is_refused(operators: list[dict[str, Any]], reason: str) -> None:
    """SP-ENG-2."""
    said = refused(operators, physical=ENDLESS, columns=TIMED).splitlines()[0]
    assert said.startswith(f"window hours at b:1, whose engine is spark: {reason}")


def test_different_values_are_counted_of_inputs_that_end() -> None:
    """SP-ENG-2."""
    by_hour = {**BY_HOUR, "aggregates": {"n": "count(DISTINCT k)"}}
    assert "aggregate by_hour at b:1" in refused([WINDOW, by_hour], physical=ENDLESS, columns=TIMED)
    cut([WINDOW, by_hour], columns=TIMED)


def test_nothing_of_a_query_with_views_runs_on_spark() -> None:
    """Upqueries of its views go through its operators."""
    said = refused([FILTER, {"id": "by_k", "type": "view", "input": "some", "key": ["k"]}]).splitlines()
    assert [line.partition(", whose")[0] for line in said] == ["filter some at b:1", "view by_k at b:1"]
    assert all(
        "the query has views (by_k), whose keys are filled through the query's" in line for line in said
    )
    assert all(line.endswith("set the engine of this node to embedded") for line in said)


def test_event_time_does_not_pass_spark() -> None:
    """SP-ENG-2."""
    said = refused(
        [FILTER, {**WINDOW, "input": "some"}, BY_HOUR], physical=ENDLESS, columns=TIMED, **SPARK_FIRST
    )
    assert said == (
        "window hours at b:1: the watermark of its time does not pass some, which Spark computes "
        "on endless input; set the engine of this node to spark too, or the engine of some's node to embedded"
    )


SPARK_FIRST: dict[str, Any] = {"engines": ("spark", "embedded"), "capacity": 1}
