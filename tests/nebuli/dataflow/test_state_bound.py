"""What an operator keeps is bounded: past its bound it fails, and says who, how much and what to do."""

from __future__ import annotations

import pytest

from nebuli.dataflow import StateTooLarge
from placement.plan import (
    AggregateOperator,
    DistinctOperator,
    FragmentOperator,
    JoinOperator,
    NetworkSink,
    NetworkSource,
)
from tests.nebuli.dataflow.driven import Driven
from tests.nebuli.dataflow.plans import COLUMNS, change

BOUND = 100_000
STATEFUL = {
    "join": JoinOperator(id="j", inputs=("s", "t"), on=("k",)),
    "aggregate": AggregateOperator(id="a", input="s", by=("k",), aggregates={"n": "count(*)"}),
    "values of max": AggregateOperator(id="a", input="s", by=("g",), aggregates={"m": "max(k)"}),
    "values of count": AggregateOperator(id="a", input="s", by=("g",), aggregates={"m": "count(DISTINCT k)"}),
    "distinct": DistinctOperator(id="d", input="s"),
}


def source(id_: str) -> NetworkSource:
    columns = [column.model_dump() for column in COLUMNS]
    settings = {"id": id_, "channel": id_, "address": "nowhere", "schema": columns}
    return NetworkSource.model_validate(settings)


def circuit(operator: FragmentOperator, max_state_bytes: int) -> Driven:
    sink = NetworkSink(id="out", input=operator.id, channel="out", address="nowhere")
    return Driven([*map(source, operator.children), operator, sink], max_state_bytes=max_state_bytes)


def push(running: Driven, first: int) -> None:
    running.push("s", change([((first + index, "a", 0.5, 1), 1) for index in range(100)]))


@pytest.mark.parametrize("operator", STATEFUL.values(), ids=STATEFUL)
def test_an_operator_fails_at_its_bound_and_not_before(operator: FragmentOperator) -> None:
    running, held = circuit(operator, BOUND), [0]

    def push_on() -> None:
        for first in range(0, 100_000, 100):
            push(running, first)
            held.append(running.statistics()[operator.id].state_bytes)

    with pytest.raises(StateTooLarge) as caught:
        push_on()
    assert BOUND / 2 < max(held) <= BOUND
    assert (caught.value.operator, caught.value.bound) == (operator.id, BOUND)
    assert BOUND < caught.value.held <= 2 * BOUND
    assert f"operator {operator.id}: its state holds {caught.value.held:,} bytes, above its bound of " in str(
        caught.value
    )
    assert "max_state_bytes" in str(caught.value)


@pytest.mark.parametrize("operator", STATEFUL.values(), ids=STATEFUL)
def test_an_operators_own_bound_comes_before_the_circuits(operator: FragmentOperator) -> None:
    running = circuit(operator.model_copy(update={"max_state_bytes": 1000}), BOUND)
    with pytest.raises(StateTooLarge, match=r"above its bound of 1,000:"):
        push(running, 0)


def test_what_only_passes_through_has_no_bound() -> None:
    running = Driven(
        [source("s"), NetworkSink(id="out", input="s", channel="out", address="nowhere")], max_state_bytes=1
    )
    push(running, 0)


@pytest.mark.long
def test_rows_that_were_taken_back_do_not_count() -> None:
    running = circuit(STATEFUL["distinct"], BOUND)
    for first in range(0, 100_000, 100):
        for weight in (1, -1):
            running.push("s", change([((first + index, "a", 0.5, 1), weight) for index in range(100)]))
