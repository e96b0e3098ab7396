"""A member that was cut off while another process has taken its place, as an executor that Spark has given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import pytest

from nebuli.steps.coordinator.member_connection import MemberConnection
from nebuli.steps.errors import Forsaken
from nebuli.steps.local.local_run import LocalRun
from nebuli.steps.member.member_order import MemberOrder
from nebuli.steps.member.member_run import Said, serve
from nebuli.steps.protocol.triggers import TriggerSettings
from nebuli.steps.stepped_query import stepped_query
from nebuli.store.errors import LogTaken
from netchannel import ReceiverServer
from placement import parse_query
from tests.nebuli.steps.spark.orders import orders
from tests.support.waiting import until_async
from topology import parse_topology

ROWS = 4000
TOPOLOGY = f"""
logical: [{{name: numbers, schema: [{{name: n, type: int64}}]}}]
nodes:
  - address: 127.0.0.1:27900
    physical: [{{logical: numbers, type: Generator, count: {ROWS}, rows_per_s: 1000}}]
    sinks: [{{name: out, type: CSV, path: sums.csv}}]
"""
QUERY = """
{"operators": [
  {"id": "in", "type": "source", "logical": "numbers"},
  {"id": "sums", "type": "aggregate", "input": "in", "by": ["n"], "aggregates": {"rows": "count(*)"}},
  {"id": "out", "type": "sink", "input": "sums", "sink": "out"}
]}
"""


async def test_a_member_that_no_coordinator_comes_to_ends(tmp_path: Path) -> None:
    (order,) = orders(tmp_path, 1)
    said: list[Said] = []
    with pytest.raises(
        Forsaken, match=r"member 0 ends, because no coordinator has been connected for 0\.2 s"
    ):
        await serve(order, lambda what, _: said.append(what), forsaken_s=0.2)
    assert said == [Said.READY]


class InThisProcess:
    """A home, and its members: one is left running when another takes its place, which is begun again when it ends."""

    host = "127.0.0.1"

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.serving: list[asyncio.Task[None]] = []
        self._order: MemberOrder
        self._line: MemberConnection

    def members(
        self,
        orders: Sequence[MemberOrder],
        lines: Sequence[MemberConnection],
        _receiver: ReceiverServer,
        _done: Callable[[], int],
    ) -> Self:
        (self._order,), (self._line,) = orders, lines
        return self

    async def __aenter__(self) -> Self:
        self.begin()
        return self

    def begin(self) -> None:
        serving = serve(self._order, lambda _, address: self._line.reach(address), forsaken_s=3.0)
        self.serving.append(asyncio.create_task(serving))
        self.serving[-1].add_done_callback(self._begin_again)

    def _begin_again(self, ended: asyncio.Task[None]) -> None:
        if not ended.cancelled() and ended.exception() is not None and ended is self.serving[-1]:
            self.begin()

    async def __aexit__(self, *_: object) -> None:
        for each in self.serving:
            each.cancel()
        await asyncio.gather(*self.serving, return_exceptions=True)

    def process(self, _member: int) -> None:
        return None

    async def taking(self) -> list[str]:
        raise AssertionError("nothing is taken over")

    async def failed(self) -> None:
        await asyncio.Event().wait()


@pytest.mark.long
async def test_a_member_that_was_replaced_does_no_harm_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads its source on, and ends its step, and so does the other one: each row is in the result once."""
    monkeypatch.chdir(tmp_path)
    query = stepped_query(parse_query(QUERY, "q", "q.json"), parse_topology(TOPOLOGY, "t.yaml"), 1)
    home = InThisProcess()
    settings = TriggerSettings(checkpoint_s=0.2)
    async with asyncio.timeout(60), LocalRun(query, tmp_path / "state", tmp_path, settings, home=home) as run:

        async def has_stepped() -> bool:
            return run.coordinator.done > 3

        await until_async(has_stepped, "steps")
        home.begin()
        await run.until_ended()
        replaced = home.serving[0]
        await asyncio.wait([replaced])
    assert isinstance(replaced.exception(), Forsaken | LogTaken)
    _, *lines = (tmp_path / "sums.csv").read_text("utf-8").splitlines()
    assert sorted(lines) == sorted(f"{n},1" for n in range(ROWS))
