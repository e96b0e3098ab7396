"""Event time in plans: where watermarks begin, what they close, and what is said where they cannot."""

from __future__ import annotations

from typing import Any

import pytest

from placement import (
    BoundPlan,
    InvalidQuery,
    RetractingPlan,
    SteppedPlan,
    check,
    check_stepped,
    decompose,
    parse_query,
    place,
)
from placement.durations import microseconds
from tests.support.documents import op, query
from topology import parse_topology

TOPOLOGY = parse_topology("""
logical:
  - name: flights
    schema: [{name: origin, type: string}, {name: hour, type: timestamp}, {name: delay, type: int64}]
  - name: weather
    schema: [{name: origin, type: string}, {name: hour, type: timestamp}, {name: wind, type: float64}]
  - name: airports
    schema: [{name: origin, type: string}, {name: town, type: string}]
nodes:
  - address: a:1
    links: {downstream: [c:1]}
    physical: [{logical: flights, type: CSV, path: f.csv}, {logical: airports, type: CSV, path: a.csv}]
  - address: b:1
    links: {downstream: [c:1]}
    physical: [{logical: flights, type: CSV, path: f.csv}, {logical: weather, type: CSV, path: w.csv}]
  - address: c:1
    sinks: [{name: out, type: Print}, {name: log, type: CSV, path: log.csv, mode: append}]
""")
F, W, A = (op("source", name[0], logical=name) for name in ("flights", "weather", "airports"))
HOUR = 3_600_000_000


def window(key: str, child: str, time: str = "hour", **more: Any) -> dict[str, Any]:
    return op("window", key, input=child, time=time, size="1 hour", **more)


def aggregate(key: str, child: str, *by: str) -> dict[str, Any]:
    return op("aggregate", key, input=child, by=by, aggregates={"n": "count(*)"})


def plan(*operators: dict[str, Any], sink: str = "out") -> BoundPlan:
    return check(query(*operators, op("sink", "s", input=operators[-1]["id"], sink=sink)), TOPOLOGY)


def origins(bound: BoundPlan) -> list[tuple[str, str]]:
    return [(each.operator, each.time) for each in bound.watermarks.values()]


def closings(bound: BoundPlan) -> dict[str, tuple[str, int]]:
    return {key: (each.column, each.to_end_us) for key, each in bound.closings.items()}


def test_a_watermark_begins_at_each_source_under_its_own_name_of_the_time() -> None:
    renamed = op("project", "p", input="f", columns={"o": "origin", "at": "hour"})
    kept = op("filter", "k", input="p", predicate="o <> 'JFK'")
    bound = plan(F, renamed, kept, window("v", "k", "at", lateness="5 minutes", idle_after="1 minute"))
    assert origins(bound) == [("f/0", "hour"), ("f/1", "hour")]
    assert {(each.lateness, each.idle_after) for each in bound.watermarks.values()} == {
        ("5 minutes", "1 minute")
    }
    assert [f"{c.name} {c.type}" for c in bound.schemas["v"]] == [
        "o string",
        "at timestamp",
        "window_start timestamp",
        "window_end timestamp",
    ]


def test_a_watermark_of_a_key_of_a_join_begins_in_all_inputs_and_of_another_column_in_one() -> None:
    join = op("join", "j", inputs=["w", "f"], on=["origin", "hour"])
    assert origins(plan(W, F, join, window("v", "j"))) == [("w", "hour"), ("f/0", "hour"), ("f/1", "hour")]
    join = op("join", "j", inputs=["w", "a"], on=["origin"])
    assert origins(plan(W, A, join, window("v", "j"))) == [("w", "hour")]
    join = op("join", "j", inputs=["w", "f"], on=["origin"])
    assert origins(plan(W, F, join, window("v", "j", "w.hour"))) == [("w", "hour")]


def test_a_computed_time_has_its_watermark_where_it_is_computed() -> None:
    computed = op("project", "p", input="w", columns={"at": "hour + INTERVAL 1 HOUR"})
    assert origins(plan(W, computed, window("v", "p", "at"))) == [("p", "at")]


def test_what_has_a_window_in_its_key_is_closed_by_the_watermark() -> None:
    sliding = window("x", "w", slide="15 minutes")
    bound = plan(
        F,
        W,
        window("v", "f"),
        op("filter", "late", input="v", predicate="delay > 15"),
        op("project", "p", input="late", columns={"origin": "origin", "begins": "window_start"}),
        op("distinct", "d", input="p"),
        aggregate("g", "d", "origin", "begins"),
        op("project", "q", input="g", columns={"origin": "origin", "window_start": "begins"}),
        sliding,
        aggregate("h", "x", "window_end", "window_start"),
        op("join", "j", inputs=["q", "h"], on=["window_start"]),
    )
    # One window is an hour after its start, the other at its end; the join has windows of two kinds as its key.
    assert closings(bound) == {"d": ("begins", HOUR), "g": ("begins", HOUR), "h": ("window_end", 0)}
    assert bound.closings["h"].slide_us == HOUR // 4


def test_windows_of_one_kind_are_joined_by_their_columns() -> None:
    join = op("join", "j", inputs=["v", "x"], on=["origin", "window_end"])
    bound = plan(F, W, window("v", "f"), window("x", "w"), join, aggregate("g", "j", "window_end"))
    assert closings(bound) == {"j": ("window_end", 0), "g": ("window_end", 0)}


@pytest.mark.parametrize(
    "computed",
    [
        op(
            "project",
            "p",
            input="x",
            columns={"origin": "origin", "window_end": "window_end - INTERVAL 1 HOUR"},
        ),
        op("aggregate", "p", input="x", by=["origin"], aggregates={"window_end": "max(window_end)"}),
    ],
)
def test_a_key_that_one_input_computes_from_its_windows_closes_nothing(computed: dict[str, Any]) -> None:
    """Its watermark says nothing of such a column: rows may come for it later."""
    join = op("join", "j", inputs=["v", "p"], on=["origin", "window_end"])
    by = aggregate("g", "j", "window_end")
    assert closings(plan(F, W, window("v", "f"), window("x", "w"), computed, join, by)) == {}
    of_a_table = op("project", "p", input="w", columns={"origin": "origin", "window_end": "hour"})
    assert closings(plan(F, W, window("v", "f"), of_a_table, join, by)) == {
        "j": ("window_end", 0),
        "g": ("window_end", 0),
    }


def test_windows_that_are_no_key_of_a_join_are_closed_behind_it_only_where_they_are_alone() -> None:
    join = op("join", "j", inputs=["v", "a"], on=["origin"])
    assert closings(plan(F, A, window("v", "f"), join, aggregate("g", "j", "window_start"))) == {
        "g": ("window_start", HOUR)
    }
    join = op("join", "j", inputs=["v", "x"], on=["origin"])
    by = aggregate("g", "j", "v.window_start")
    assert closings(plan(F, W, window("v", "f"), window("x", "w"), join, by)) == {}


@pytest.mark.parametrize(
    ("how", "inputs", "closes"),
    [
        ("left", ["v", "p"], True),
        ("right", ["v", "p"], False),
        ("full", ["v", "p"], False),
        ("left", ["p", "v"], False),
        ("full", ["v", "x"], True),
    ],
)
def test_an_outer_join_closes_windows_that_each_input_has_whose_rows_are_all_given(
    how: str, inputs: list[str], closes: bool
) -> None:
    """What has no windows has no row that is late, and so none may be dropped as such."""
    of_a_table = op("project", "p", input="w", columns={"origin": "origin", "window_end": "hour"})
    join = op("join", "j", inputs=inputs, on=["origin", "window_end"], how=how)
    given = [window("x", "w") if "x" in inputs else of_a_table]
    expected = dict.fromkeys("jg", ("window_end", 0)) if closes else {}
    bound = plan(F, W, window("v", "f"), *given, join, aggregate("g", "j", "window_end"))
    assert closings(bound) == expected


def test_a_window_that_may_be_null_is_none_behind_an_outer_join() -> None:
    by = aggregate("g", "j", "window_start")
    for how, inputs, closes in [("left", "va", True), ("right", "va", False), ("left", "av", False)]:
        join = op("join", "j", inputs=list(inputs), on=["origin"], how=how)
        expected = {"g": ("window_start", HOUR)} if closes else {}
        assert closings(plan(F, A, window("v", "f"), join, by)) == expected


def test_a_union_has_windows_where_all_its_inputs_have_the_same() -> None:
    other = op(
        "project",
        "p",
        input="x",
        columns={"origin": "origin", "hour": "hour", "delay": "1::BIGINT"}
        | {name: name for name in ("window_start", "window_end")},
    )
    union = op("union", "u", inputs=["v", "p"])
    by = aggregate("g", "u", "window_end")
    assert closings(plan(F, W, window("v", "f"), window("x", "w"), other, union, by)) == {
        "g": ("window_end", 0)
    }
    sliding = window("x", "w", slide="30 minutes")
    assert closings(plan(F, W, window("v", "f"), sliding, other, union, by)) == {}


def test_an_appending_sink_takes_aggregates_over_windows_and_what_is_made_of_them() -> None:
    closed = (F, window("v", "f"), aggregate("g", "v", "window_end", "origin"))
    plan(*closed, sink="log")
    plan(*closed, aggregate("h", "g", "window_end"), op("distinct", "d", input="h"), sink="log")
    plan(F, op("distinct", "d", input="f"), sink="log")
    join = op("join", "j", inputs=["x", "g"], on=["origin", "window_end"])
    plan(*closed, W, window("x", "w"), join, sink="log")
    outer = op("join", "j", inputs=["x", "v"], on=["origin", "window_end"], how="full")
    plan(F, W, window("v", "f"), window("x", "w"), outer, sink="log")
    with pytest.raises(
        RetractingPlan, match=r"join j retracts rows; .* or a join on the columns of a window"
    ):
        plan(F, W, window("v", "f"), window("x", "w"), {**outer, "on": ["origin"]}, sink="log")
    with pytest.raises(RetractingPlan, match=r"aggregate g and join j retracts rows"):
        plan(
            F, W, aggregate("g", "f", "origin"), {**outer, "inputs": ["w", "g"], "on": ["origin"]}, sink="log"
        )
    with pytest.raises(RetractingPlan, match=r"aggregate h retracts rows; .* by the columns of a window"):
        plan(*closed, aggregate("h", "g", "origin"), sink="log")
    with pytest.raises(RetractingPlan, match=r"aggregate g retracts rows"):
        plan(F, aggregate("g", "f", "origin"), op("distinct", "d", input="g"), sink="log")


@pytest.mark.parametrize(
    ("operators", "said"),
    [
        ((window("v", "f", "delay"),), "window v: column 'delay' is BIGINT; expected DATE or TIMESTAMP"),
        ((window("v", "f", "time"),), "window v: unknown column 'time'"),
        (
            (window("v", "f"), op("project", "p", input="v", columns={"hour": "hour"}), window("x", "p")),
            "window x: p already has windows of v; expected an input without windows",
        ),
        (
            (
                op("project", "p", input="f", columns={"hour": "hour", "window_end": "delay"}),
                window("v", "p"),
            ),
            "window v: two output columns are named 'window_end'",
        ),
        (
            (
                op("aggregate", "g", input="f", by=["origin"], aggregates={"last": "max(hour)"}),
                window("v", "g", "last"),
            ),
            (
                "window v: 'last' is a result of aggregate g, so its values change; expected a 'by' "
                "column of that aggregate"
            ),
        ),
    ],
)
def test_a_window_that_cannot_be_is_refused_with_its_reason(operators: Any, said: str) -> None:
    with pytest.raises(InvalidQuery) as caught:
        plan(F, *operators)
    assert len(caught.value.mistakes) == 1
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            '"size": "an hour"',
            "expected a whole number and a unit (milliseconds, seconds, minutes, hours, days)",
        ),
        ('"size": "0 hours"', "above zero"),
        ('"size": "200000000 days"', "expected 36500 days at most, got '200000000 days'"),
        ('"size": "1 hour", "idle_after": "106752 days"', "expected 36500 days at most, got '106752 days'"),
        ('"size": "1 hour", "slide": "2 hours"', "slide 2 hours is longer than size 1 hour"),
        ('"size": "1 day", "slide": "1 second"', "a row would be in 86,400 windows"),
    ],
)
def test_lengths_that_make_no_windows_are_refused_with_their_place(fields: str, said: str) -> None:
    text = f"""{{"operators": [
  {{"id": "f", "type": "source", "logical": "flights"}},
  {{"id": "v", "type": "window", "input": "f", "time": "hour", {fields}}},
  {{"id": "s", "type": "sink", "input": "v", "sink": "out"}}]}}"""
    with pytest.raises(InvalidQuery) as caught:
        parse_query(text, file="q.json")
    (mistake,) = caught.value.mistakes
    assert mistake.line == 3
    assert said in str(mistake)


def test_durations_are_numbers_of_units() -> None:
    assert [microseconds(each) for each in ("250 milliseconds", "1 second", "90 minutes", "1 day")] == [
        250_000,
        1_000_000,
        5_400_000_000,
        86_400_000_000,
    ]
    for wrong in ("1", "1.5 hours", "-1 hour", "1 month", "1  hour", "1 hour ", "hour", "1 hours and more"):
        with pytest.raises(ValueError, match="expected a whole number and a unit"):
            microseconds(wrong)


def test_plans_of_any_depth_have_event_time() -> None:
    filters = [
        op("filter", f"f{index + 1}", input="f" if index == 0 else f"f{index}", predicate="delay > 0")
        for index in range(3000)
    ]
    assert origins(plan(F, *filters, window("v", "f3000"))) == [("f/0", "hour"), ("f/1", "hour")]
    first = aggregate("f0", "f", "origin")
    above = [op("filter", f"f{n + 1}", input=f"f{n}", predicate="n > 0") for n in range(3000)]
    with pytest.raises(RetractingPlan, match="aggregate f0 retracts rows"):
        plan(F, first, *above, sink="log")


def test_a_fragment_has_the_watermarks_and_closings_of_its_own_operators() -> None:
    placed = place(
        query(F, window("v", "f"), aggregate("g", "v", "window_end"), op("sink", "s", input="g", sink="out")),
        TOPOLOGY,
    )
    found = {
        fragment.node: (
            [each.operator for each in fragment.watermarks],
            [each.operator for each in fragment.closings],
        )
        for fragment in decompose(placed).fragments
    }
    assert found == {"a:1": (["f/0"], []), "b:1": (["f/1"], []), "c:1": ([], ["g"])}


def stepped(first: dict[str, Any], second: dict[str, Any], *more: dict[str, Any]) -> SteppedPlan:
    """Two windows of the flights, each counted."""
    counts = [aggregate(f"{each['id']}-n", each["id"], "window_start") for each in (first, second)]
    sinks = [op("sink", f"s{n}", input=each["id"], sink=("out", "log")[n]) for n, each in enumerate(counts)]
    return check_stepped(query(F, *more, first, second, *counts, *sinks), TOPOLOGY)


def test_in_steps_windows_of_the_same_rows_share_their_watermark() -> None:
    long = op("window", "w", input="k", time="at", size="2 hours", lateness="60 seconds")
    names = op("project", "k", input="f", columns={"at": "hour"})
    plan = stepped(window("v", "f", lateness="1 minute"), long, names)
    assert [(each.operator, each.time) for each in plan.watermarks] == [("f", "hour")]
    ends = {each.operator: (each.column, each.to_end_us) for each in plan.closings}
    assert ends == {"v-n": ("window_start", HOUR), "w-n": ("window_start", 2 * HOUR)}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"lateness": "1 hour"}, r"'hour' \(lateness 1 hour, idle_after none\)"),
        ({"idle_after": "1 minute"}, r"'hour' \(lateness 0 seconds, idle_after 1 minute\)"),
        ({"input": "k", "time": "other"}, r"'day' \(lateness 0 seconds, idle_after none\)"),
    ],
)
def test_windows_that_want_different_watermarks_of_the_same_rows_are_refused(
    changed: dict[str, Any], said: str
) -> None:
    days = op(
        "project", "f", input="g", columns={"hour": "hour + INTERVAL 1 HOUR", "day": "hour + INTERVAL 1 DAY"}
    )
    flights = op("source", "g", logical="flights")
    again = op("project", "k", input="f", columns={"hour": "hour", "other": "day"})
    first, second = window("v", "k"), window("w", "k") | changed
    counts = [aggregate(f"{each['id']}-n", each["id"], "window_start") for each in (first, second)]
    sinks = [op("sink", f"s{n}", input=each["id"], sink=("out", "log")[n]) for n, each in enumerate(counts)]
    message = (
        rf"window [vw]: the watermark of f already follows .*{said}.*; read the rows through a "
        rf"separate source operator"
    )
    with pytest.raises(InvalidQuery, match=message):
        check_stepped(query(flights, days, again, first, second, *counts, *sinks), TOPOLOGY)


def test_a_time_that_comes_by_very_many_ways_is_traced_once() -> None:
    ways = [op("union", f"u{n}", inputs=[f"u{n - 1}" if n else "f"] * 2) for n in range(100)]
    more = [op("union", f"w{n}", inputs=[f"w{n - 1}" if n else "v"] * 2) for n in range(100)]
    operators = [F, *ways, window("v", "u99"), *more, aggregate("n", "w99", "window_start")]
    plan = check_stepped(query(*operators, op("sink", "s", input="n", sink="out")), TOPOLOGY)
    assert [(each.operator, each.time) for each in plan.watermarks] == [("f", "hour")]


def test_event_time_passes_views():
    """Down to where a time comes from, and up to where a window closes."""
    views = [op("view", "r", input="f", key=["origin"]), op("view", "v", input="w", key=["window_start"])]
    bound = plan(F, views[0], window("w", "r"), views[1], aggregate("a", "v", "window_start"), sink="log")
    assert origins(bound) == [("f/0", "hour"), ("f/1", "hour")]
    assert list(bound.closings) == ["a"]


def test_a_plan_knows_the_aggregates_whose_input_only_grows() -> None:
    """Of windows what is given once, too; not above what changes, nor in an outer join without windows."""
    inner, left = (op("join", how, inputs=["f", "w"], on=["origin"], how=how) for how in ("inner", "left"))
    last = op("aggregate", "last", input="first", by=["origin"], aggregates={"high": "max(n)"})
    windowed = window("v", "f")
    once, outer = (
        aggregate("first", "v", "origin", "window_start"),
        op("join", "o", inputs=["v", "x"], on=["window_start", "origin"], how="left"),
    )
    for operators, expected in (
        ([F, W, inner, aggregate("first", "inner", "origin"), last], {"first"}),
        ([F, W, left, aggregate("first", "left", "origin"), last], set()),
        ([F, windowed, once, last], {"first", "last"}),
        ([F, W, windowed, window("x", "w"), outer, aggregate("first", "o", "origin"), last], {"first"}),
        ([F, op("distinct", "d", input="f"), aggregate("first", "d", "origin"), last], {"first"}),
    ):
        assert plan(*operators).only_growing == expected


@pytest.mark.parametrize("follow", ["true", "false"])
@pytest.mark.parametrize("mode", ["append", "changes"])
def test_a_collection_that_is_followed_has_no_appending_sink(follow: str, mode: str) -> None:
    """Its rows may be taken back, whatever is computed of them; read at a time they stay."""
    topology = parse_topology(f"""
logical: [{{name: rows, schema: [{{name: k, type: int64}}]}}]
nodes:
  - address: a:1
    physical: [{{logical: rows, type: Collection, store: s, collection: c, follow: {follow}}}]
    sinks: [{{name: log, type: CSV, path: log.csv, mode: {mode}}}]
""")
    asked = query(
        op("source", "in", logical="rows"),
        op("filter", "f", input="in", predicate="k > 0"),
        op("sink", "s", input="f", sink="log"),
    )
    if (follow, mode) == ("true", "append"):
        with pytest.raises(
            RetractingPlan,
            match=r"'log' at a:1 appends, but source in retracts rows; expected .* \(follow: false\)",
        ):
            check(asked, topology)
    else:
        check(asked, topology)
    if mode == "changes":
        counted = query(
            op("source", "in", logical="rows"),
            aggregate("n", "in", "k"),
            op("sink", "s", input="n", sink="log"),
        )
        assert check(counted, topology).only_growing == (set() if follow == "true" else {"n"})
