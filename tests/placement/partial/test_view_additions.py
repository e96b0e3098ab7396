"""What a running query with views can be given, and where that is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from placement import Fragment, InvalidQuery, check, decompose, place_bound
from placement.partial.node_plan import planned_of
from placement.partial.view_additions import NoViews, addition_of, carried_over, with_addition
from tests.placement.partial.test_node_plan import ONE, TWO, with_bases
from tests.support.documents import op, query

COUNTS = op("aggregate", "counts", input="two", by=["k"], aggregates={"n": "count(*)"})
JOINED = op("join", "joined", inputs=["one", "counts"], on=["k"])


def running(*operators: dict[str, Any], bases: tuple[str, ...] = ("one", "two")) -> tuple[Fragment, ...]:
    """Source one at A, two at B with their counts, and their join at C, which a view has by k."""
    default = (ONE, TWO, COUNTS, JOINED, op("view", "v", input="joined", key=["k"]))
    nodes = with_bases(*bases)
    return decompose(place_bound(check(query(*(operators or default)), nodes), nodes)).fragments


def added(*operators: dict[str, Any], to: tuple[Fragment, ...] | None = None) -> Any:
    text = json.dumps({"operators": operators})
    return addition_of(text, running() if to is None else to, "more.json")


def mistakes(*operators: dict[str, Any], to: tuple[Fragment, ...] | None = None) -> list[str]:
    with pytest.raises(InvalidQuery) as caught:
        added(*operators, to=to)
    return [str(each) for each in caught.value.mistakes]


def test_it_is_where_what_it_reads_is_and_all_fragments_plan_it_alike():
    fragments = running()
    homes = {
        each.id: fragment.id for fragment in fragments for each in fragment.operators if ">" not in each.id
    }
    below = op("filter", "few", input="counts", predicate="n < 3")
    addition = added(op("view", "fewest", input="few", key=["k"]), below, to=fragments)
    assert addition.fragment == next(
        each.id
        for each in fragments
        if any(o.id == "counts" and o.type == "aggregate" for o in each.operators)
    )
    assert [each.id for each in addition.operators] == ["few", "fewest"]
    assert homes["v"] != addition.fragment
    more = with_addition(fragments, addition)
    plans = [planned_of(each) for each in more]
    assert all(plan.paths == plans[0].paths for plan in plans)
    before = planned_of(fragments[0])
    assert set(before.paths) <= set(plans[0].paths)
    assert [each.id for fragment in more for each in fragment.own if each.id == "fewest"] == ["fewest"]
    assert addition_of(addition_text(addition), more) == addition  # asked for again, it is there
    other = op("view", "others", input="few", key=["k"])
    assert added(other, to=more).fragment == addition.fragment
    assert carried_over(fragments, more[0].added) == more


def addition_text(addition: Any) -> str:
    return addition.model_dump_json(include={"operators"}, by_alias=True)


def test_what_is_full_is_where_all_rows_are_that_it_needs():
    by_n = op("view", "by_n", input="sums", key=["n"])
    fresh = op("aggregate", "sums", input="two", by=["k"], aggregates={"n": "count(*)"})
    assert planned_of(with_addition(running(), added(fresh, by_n))[0]).full
    (mistake,) = mistakes(op("view", "by_n", input="counts", key=["n"]))
    assert mistake.startswith(
        "more.json:1:16: view by_n: it needs the full state of counts by k, but this state is partial"
    )
    assert "(one of one, two)" in mistake
    (mistake,) = mistakes(
        op("aggregate", "sums", input="joined", by=[], aggregates={"n": "count(*)"}),
        op("view", "by_n", input="sums", key=["n"]),
    )
    assert "needs the full state of" in mistake or "in another fragment" in mistake
    streams = running(TWO, op("view", "v", input="two", key=["k"]), bases=())
    (mistake,) = mistakes(op("view", "w", input="two", key=["v"]), to=streams)
    assert "which is not a base, so its rows were not kept" in mistake


def test_what_is_wrong_is_said_with_its_place():
    assert mistakes(op("filter", "f", input="one", predicate="true")) == [
        "more.json:1:15: none of the operators to add is a view; expected an operator of type view"
    ]
    view = op("view", "w", input="tow", key=["k"])
    (mistake,) = mistakes(view)
    assert "view w: unknown input 'tow' (did you mean 'two'?)" in mistake
    (mistake,) = mistakes(op("view", "v", input="two", key=["k"]))
    assert (
        "the query already has an operator 'v': an added operator cannot be changed; use another id"
        in mistake
    )
    (mistake,) = mistakes(op("view", "w", name="v", input="two", key=["k"]))
    assert "already has the name 'v'" in mistake
    (mistake,) = mistakes(op("view", "w", input="two", key=["j"]))
    assert "its key has the unknown column 'j'" in mistake
    (mistake,) = mistakes(op("sink", "s", input="two", sink="out"))
    assert "unknown type 'sink'" in mistake
    (mistake,) = mistakes(op("view", "w", input="two", key=["k"], node="localhost:1"))
    assert "its input is at B:1, but its 'node' is localhost:1" in mistake
    both = op("union", "both", inputs=["one", "two"])
    (mistake,) = mistakes(both, op("view", "w", input="both", key=["k"]))
    assert "a running query gets no new channels" in mistake
    assert mistakes_of_text("{") == [
        "more.json:1:2: not valid JSON: Expecting property name enclosed in double quotes"
    ]


def mistakes_of_text(text: str) -> list[str]:
    with pytest.raises(InvalidQuery) as caught:
        addition_of(text, running(), "more.json")
    return [str(each) for each in caught.value.mistakes]


def test_of_an_operator_in_shards_more_is_read_where_they_are_put_together():
    """PS-EX-2: the shards plan it as well; none of them is read alone, and none is added."""
    divided = {**COUNTS, "by": ["k", "v"], "shard": {"into": 2, "by": ["k"]}}
    fragments = running(TWO, divided, op("view", "v", input="counts", key=["k"], node="C:1"))
    addition = added(op("view", "w", input="counts", key=["v"]), to=fragments)
    assert addition.fragment == "q/v"
    more = with_addition(fragments, addition)
    plans = [planned_of(each) for each in more]
    assert all(plan == plans[0] for plan in plans)
    fresh = [path for path in plans[0].paths if path.number >= len(planned_of(fragments[0]).paths)]
    assert [(str(each.source), str(each.target)) for each in fresh] == [
        ("counts by v", "w by v"),
        ("counts>0 by v", "counts by v"),
        ("counts>1 by v", "counts by v"),
        ("two by v", "counts>0 by v"),
        ("two by v", "counts>1 by v"),
    ]
    for part in ("counts>0", "two>shard"):
        (mistake,) = mistakes(op("view", "w", input=part, key=["k"]), to=fragments)
        assert f"view w: unknown input {part!r}" in mistake
    (mistake,) = mistakes(
        op("distinct", "d", input="counts", shard={"into": 2}),
        op("view", "w", input="d", key=["k"]),
        to=fragments,
    )
    assert "distinct d: a running query gets no new processes; omit 'shard'" in mistake
    (mistake,) = mistakes(op("view", "w", input="counts", key=["n"]), to=fragments)
    assert mistake == (
        "more.json:1:16: view w: it needs the full state of counts by k, but this state is partial in "
        "the running query (w by n needs every row of it: 'n' is a result of counts, "
        "which does not group by it): read a base (two) through added operators instead"
    )


def test_a_query_without_views_is_given_none():
    fragments = running(TWO, op("sink", "s", input="two", sink="out"))
    with pytest.raises(NoViews, match="add a view to the query's file"):
        added(op("view", "w", input="two", key=["k"]), to=fragments)
