"""How far an output is read over HTTP where the circuit has only begun again, without members."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from nebuli.circuits import circuit_calls
from nebuli.circuits.circuit_calls import CircuitCalls
from nebuli.http import http_routes
from nebuli.http.collections.served_stores import ServedStores
from nebuli.steps.coordinator.call_connection import CallRoutes
from nebuli.store import Span
from tests.support.told_members import pushed_query

MADE = 120


class Coordinator:
    """It knows of the checkpoint only, until it has been looked at some times."""

    def __init__(self, looks: int | None) -> None:
        self._looks = looks
        self.complete = 100

    @property
    def complete_is_known(self) -> bool:
        if self._looks is not None:
            self._looks -= 1
            if self._looks <= 0:
                self.complete = MADE
        return self.complete == MADE


class Run:
    """Outputs have all steps, and nothing is in them."""

    def __init__(self, looks: int | None) -> None:
        query = pushed_query(2)
        self.plan, self.external = query.plan, query.external
        self.coordinator = Coordinator(looks)
        self.calls = CallRoutes()
        self.on_failure: list[Any] = []

    async def follow(self, output: str, first: int) -> AsyncIterator[Span]:
        yield Span(first, MADE + 1, [])
        await asyncio.Event().wait()


async def read(looks: int | None, **params: Any) -> httpx.Response:
    calls = CircuitCalls(Run(looks))  # type: ignore[arg-type]  # it is a stand-in
    transport = httpx.ASGITransport(http_routes.app(calls, ServedStores({})))
    async with asyncio.timeout(30), httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        return await client.get("/output_endpoint/rows", params=params)


def steps(answer: httpx.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    return [json.loads(line)["step"] for line in answer.text.splitlines()]


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit_calls, "_LOOK_S", 0.0)


async def test_all_steps_that_were_made_before_a_restart_are_read() -> None:
    assert steps(await read(5, from_step=90)) == [*range(90, MADE)]
    assert steps(await read(5, from_step=110)) == [*range(110, MADE)]


async def test_what_is_below_the_checkpoint_waits_for_nobody() -> None:
    assert steps(await read(None, from_step=90, until_step=95)) == [*range(90, 95)]


async def test_a_circuit_that_does_not_catch_up_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_routes, "_CATCH_UP_S", 0.05)
    answer = await read(None, from_step=90)
    assert (answer.status_code, answer.json()["error"]) == (503, "not_caught_up")
