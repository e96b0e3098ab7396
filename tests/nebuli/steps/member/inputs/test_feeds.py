"""Sources that are read on by another process of a member."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from nebuli.steps.local.local_run import LocalRun
from nebuli.steps.protocol.triggers import TriggerSettings
from nebuli.steps.stepped_query import stepped_query
from placement import parse_query
from tests.support.waiting import until_async
from topology import parse_topology

pytestmark = [pytest.mark.processes, pytest.mark.long]

TOPOLOGY = """
logical:
  - {name: sales, schema: [{name: amount, type: int64}]}
nodes:
  - address: 127.0.0.1:27900
    physical: [{logical: sales, type: TCP, address: "ADDRESS"}]
    sinks: [{name: totals, type: CSV, path: totals.csv}]
"""
QUERY = """
{"operators": [
  {"id": "sales", "type": "source", "logical": "sales"},
  {"id": "totals", "type": "aggregate", "input": "sales", "by": [], "aggregates": {"amount": "sum(amount)"}},
  {"id": "out", "type": "sink", "input": "totals", "sink": "totals"}
]}
"""


class Lines:
    """A server that gives what it has not given yet to whoever connects; its first connection does not end by it."""

    def __init__(self) -> None:
        self.connections = 0
        self.over = asyncio.Event()

    async def give(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.connections == 1:
            writer.writelines(b"%d\n" % number for number in range(100))
            await writer.drain()
            await self.over.wait()
        else:
            writer.writelines(b"%d\n" % number for number in range(100, 150))
            await writer.drain()
        writer.close()


async def test_rows_of_a_source_that_cannot_be_read_again_are_kept_and_what_comes_then_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was logged is no connection's to give again: nothing of the next one is passed over for it."""
    monkeypatch.chdir(tmp_path)
    lines = Lines()
    server = await asyncio.start_server(lines.give, "127.0.0.1", 0)
    address = "{}:{}".format(*server.sockets[0].getsockname())
    topology = parse_topology(TOPOLOGY.replace("ADDRESS", address), "topology.yaml")
    query = stepped_query(parse_query(QUERY, "totals", "query.json"), topology, 1)
    async with asyncio.timeout(120), LocalRun(query, tmp_path / "state", tmp_path, TriggerSettings()) as run:

        async def stepped() -> bool:
            return run.coordinator.next_step > 0

        await until_async(stepped, "the first rows are in a step")
        process = run.members.process(0)
        assert process is not None
        os.kill(process, signal.SIGKILL)
        await run.until_ended()
    lines.over.set()
    server.close()
    await server.wait_closed()
    assert lines.connections == 2
    assert (tmp_path / "totals.csv").read_text("utf-8").splitlines() == ['"amount"', str(sum(range(150)))]
