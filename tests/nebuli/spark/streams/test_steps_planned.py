"""Which steps a query plans to read, of a circuit that says one thing after the other, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from nebuli.circuits import CircuitStatus
from nebuli.rpc import circuit_pb2 as wire
from nebuli.spark.streams import circuit_readers, step_ranges
from nebuli.spark.streams.circuit_options import read_options
from nebuli.spark.streams.circuit_readers import CircuitBatchReader, CircuitStreamReader
from nebuli.spark.streams.errors import CircuitAway, StepsReplaced

SCHEMA = pa.schema([("shop", pa.string()), ("amount", pa.int64())])
Say = Callable[..., None]


def status(complete: int, *, catching_up: bool = False, paused: bool = False) -> CircuitStatus:
    return CircuitStatus.of(wire.StatusReply(complete=complete, catching_up=catching_up, paused=paused))


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Say:
    """Has the circuit say these, each time that it is asked, and the last one for ever.

    A second goes by whenever somebody looks at the clock.
    """
    left: list[CircuitStatus] = []
    seconds = count()

    def status_now() -> CircuitStatus:
        return left.pop(0) if len(left) > 1 else left[0]

    @contextmanager
    def linked(place: Any, what: str) -> Iterator[Any]:
        yield SimpleNamespace(status=status_now)

    monkeypatch.setattr(step_ranges, "linked", linked)
    monkeypatch.setattr(step_ranges, "pause", lambda: None)
    for module in (step_ranges, circuit_readers):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))

    def say(*found: CircuitStatus) -> None:
        left[:] = found

    return say


def options(**more: str) -> Any:
    given = {"circuit": "127.0.0.1:1", "output": "rows", "timeout": "30"} | more
    return read_options(given, "batch read" if "endingStep" in more else "streaming read")


def batch(**more: str) -> list[tuple[int, int]]:
    reader = CircuitBatchReader(options(endingStep="latest", **more), SCHEMA)
    return [(each.value.first, each.value.until) for each in reader.partitions()]


def stream(**more: str) -> CircuitStreamReader:
    return CircuitStreamReader(options(**more), SCHEMA)


BEGUN_AGAIN = (
    status(0, catching_up=True),
    status(100, catching_up=True),
    status(119, catching_up=True),
    status(120),
)


def test_a_batch_after_a_restart_has_all_steps_that_were_made(say: Say) -> None:
    say(*BEGUN_AGAIN)
    assert batch() == [(0, 120)]
    say(*BEGUN_AGAIN, status(121))
    assert stream(startingStep="latest").initialOffset() == {"step": 120}


def test_what_there_is_now_is_what_there_was_before_the_restart_too(say: Say) -> None:
    say(*BEGUN_AGAIN)
    reader = stream()
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset({"step": 110}, None) == {"step": 120}


def test_a_stream_that_is_not_told_where_it_is_does_not_plan_backwards(say: Say) -> None:
    """As PySpark 4.1 asks."""
    reader = stream()
    say(status(120))
    assert reader.latestOffset() == {"step": 120}
    say(*BEGUN_AGAIN)
    assert reader.latestOffset() == {"step": 120}


@pytest.mark.parametrize(
    ("paused", "said"), [(True, "is paused: start it"), (False, "all of its members run")]
)
def test_a_circuit_that_does_not_catch_up_is_away_and_not_replaced(say: Say, paused: bool, said: str) -> None:
    say(status(100, catching_up=True, paused=paused))
    with pytest.raises(CircuitAway, match=f"has not caught up .*within 30 s .*{said}"):
        batch()
    with pytest.raises(CircuitAway, match=said):
        stream().latestOffset({"step": 120}, None)


def test_a_circuit_that_has_caught_up_and_has_fewer_steps_is_another_one(say: Say) -> None:
    say(status(100))
    reader = stream()

    def wait() -> None:
        for _ in range(60):
            assert reader.latestOffset({"step": 120}, None) == {"step": 120}

    with pytest.raises(StepsReplaced, match=r"all steps below 120, but within 30 s .* only .*below 100"):
        wait()
    with pytest.raises(
        StepsReplaced, match="all steps below 120, but the circuit has computed only the steps below 100"
    ):
        reader.partitions({"step": 120}, {"step": 100})
    assert reader.partitions({"step": 100}, {"step": 100}) == []
