"""Fingerprints: the same for circuits that mean the same, and for no others."""

from __future__ import annotations

from typing import Any

import pytest

from nebuli.dataflow import SteppedCircuit
from nebuli.dataflow.steps import fingerprint
from placement import SteppedPlan, check_stepped, distribute
from tests.nebuli.dataflow.graphs import SOURCES, TOPOLOGY
from tests.nebuli.dataflow.steps.test_saved_runs import windowed
from tests.support.documents import op, query


def plan(members: int = 2, sink: str = "o0", **settings: Any) -> SteppedPlan:
    """An aggregate by k, with other settings."""
    aggregate = {"by": ["k"], "aggregates": {"n": "count(*)", "m": "sum(n)"}} | settings
    operators = [
        op("source", "a", logical="a"),
        op("aggregate", "g", input="a", **aggregate),
        op("sink", "out", input="g", sink=sink),
    ]
    return distribute(check_stepped(query(*operators), TOPOLOGY), members, SOURCES)


def of(plan: SteppedPlan) -> str:
    return SteppedCircuit(plan, 0).fingerprint


def test_it_is_the_same_for_all_members() -> None:
    assert len({SteppedCircuit(plan(4), member).fingerprint for member in range(4)}) == 1


@pytest.mark.parametrize(
    "other",
    [
        plan(sink="o1"),
        plan(max_state_bytes=5),
        plan().model_copy(update={"name": "other"}),
        plan().model_copy(update={"operators": plan().operators[::-1]}),
    ],
    ids=["another sink", "another bound", "another name", "another order"],
)
def test_it_is_the_same_where_state_is(other: SteppedPlan) -> None:
    assert of(other) == of(plan())


@pytest.mark.parametrize(
    "other",
    [
        plan(members=3),
        plan(members=1),
        plan(by=["k", "g"]),
        plan(aggregates={"n": "count(*)", "m": "sum(k)"}),
        plan(aggregates={"m": "sum(n)", "n": "count(*)"}),
        plan(aggregates={"n": "count(*)"}),
    ],
)
def test_it_is_another_where_state_is_another(other: SteppedPlan) -> None:
    assert of(other) != of(plan())


def test_the_order_of_what_is_said_of_event_time_does_not_matter() -> None:
    timed = windowed(2)
    turned = {"watermarks": timed.watermarks[::-1], "closings": timed.closings[::-1]}
    assert len(timed.watermarks) > 1
    assert of(timed.model_copy(update=turned)) == of(timed)


def test_it_is_another_for_another_format(monkeypatch: pytest.MonkeyPatch) -> None:
    before = of(plan())
    monkeypatch.setattr(fingerprint, "HASHES", fingerprint.HASHES + 1)
    assert of(plan()) != before


def test_it_does_not_change_between_versions() -> None:
    assert of(plan()) == "e4a98136bb81fa674be0f2d6992818b529237b685d45b5297c5f581f65240e0c"


def test_of_an_inner_join_it_is_what_it_was_before_there_were_others() -> None:
    """States of it that were saved then are read."""
    before = "57ec5812a61a178cb4b87cc56be042818f872c27ae5d0bbc5ace8b58293ee1af"
    ends = [
        op("source", "a", logical="a"),
        op("source", "b", logical="b"),
        op("sink", "out", input="j", sink="o0"),
    ]

    def joined(**settings: Any) -> str:
        join = op("join", "j", inputs=["a", "b"], on=["k"], **settings)
        return of(distribute(check_stepped(query(*ends, join), TOPOLOGY), 2, SOURCES))

    assert joined() == joined(how="inner") == before
    assert len({before, joined(how="left"), joined(how="right"), joined(how="full")}) == 4
