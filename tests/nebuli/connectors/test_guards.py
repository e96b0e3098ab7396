"""A fragment comes to its end, and says so, whatever somebody else's source does."""

from __future__ import annotations

from threading import Event
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from nebuli.connectors import FragmentStopped, InputError, Signal, Source
from nebuli.connectors.provider import Provider, sink_of
from nebuli.dataflow import insertions
from nebuli.free.runner import FragmentRunner
from nebuli.rpc.status import Cause, FragmentState
from placement.plan import Fragment

FRAGMENT = Fragment.model_validate(
    {
        "id": "q/out",
        "node": "127.0.0.1:1",
        "operators": [
            {
                "id": "in",
                "type": "source",
                "logical": "l",
                "schema": [{"name": "n", "type": "int64"}],
                "physical": {"type": "CSV", "logical": "l", "path": "nowhere"},
            },
            {
                "id": "out",
                "type": "sink",
                "input": "in",
                "sink": "out",
                "target": {"name": "out", "type": "Null"},
            },
        ],
    }
)


class Somebodys(Source):
    def __init__(self) -> None:
        self.polls = iter([insertions(pa.record_batch([pa.array([1, 2])], ["n"])), Signal.END])

    def open(self) -> None:
        pass

    def poll(self) -> Any:
        return next(self.polls)

    def close(self, reason: str) -> None:
        raise OSError("it cannot be closed")


class Waiting(Somebodys):
    def __init__(self) -> None:
        self.polled, self.interrupted = Event(), Event()

    def poll(self) -> Any:
        self.polled.set()
        assert self.interrupted.wait(60)
        raise FragmentStopped("stopped")

    def interrupt(self) -> None:
        self.interrupted.set()


def started(source: Source | InputError) -> tuple[FragmentRunner, Event]:
    def made(*_: object) -> Source:
        if isinstance(source, InputError):
            raise source
        return source

    ended = Event()
    runner = FragmentRunner("1", FRAGMENT, ended.set, max_state_bytes=1 << 20)
    ends: Any = SimpleNamespace(source=made, sink=lambda operator, *_, resumed: sink_of(operator.target))
    provider: Provider = ends
    runner.start(provider)
    return runner, ended


def test_a_source_that_cannot_be_closed_is_logged_and_holds_up_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runner, ended = started(Somebodys())
    assert ended.wait(60)
    assert (runner.status.state, runner.status.rows_out) == (FragmentState.FINISHED, 2)
    assert "fragment q/out: its source cannot be closed" in caplog.text
    assert "it cannot be closed" in caplog.text


def test_a_source_that_waits_is_interrupted_when_its_query_is_stopped() -> None:
    source = Waiting()
    runner, ended = started(source)
    assert source.polled.wait(60)
    runner.stop()
    assert ended.wait(60)
    assert (runner.status.state, runner.status.cause) == (FragmentState.STOPPED, Cause.REQUEST)


def test_a_source_that_cannot_be_made_fails_its_fragment() -> None:
    runner, ended = started(InputError("it cannot be had"))
    assert ended.wait(60)
    status = runner.status
    assert (status.state, status.cause, status.error) == (
        FragmentState.FAILED,
        Cause.INPUT,
        "it cannot be had",
    )
