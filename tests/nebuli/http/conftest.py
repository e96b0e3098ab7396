"""A circuit of three members that is served over HTTP by this process, and a client of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from nebuli.http.http_server import served_over_http
from nebuli.rpc.trust import NO_TRUST, Trust
from nebuli.steps.local.local_run import LocalRun
from nebuli.steps.protocol.triggers import TriggerSettings
from nebuli.steps.stepped_query import stepped_query
from placement import parse_query
from tests.nebuli.circuits.conftest import QUERY, TOPOLOGY
from topology import parse_topology


@dataclass
class Served:
    """A run, where it is served, and a client."""

    run: LocalRun
    url: str
    client: httpx.AsyncClient

    async def push(self, handle: str, producer: str, sequence: int, *lines: str) -> httpx.Response:
        """JSON lines into an input."""
        return await self.client.post(
            f"/input_endpoint/{handle}",
            params={"producer": producer, "sequence": sequence},
            content="\n".join(lines),
            headers={"content-type": "application/x-ndjson"},
        )

    async def query(self, sql: str) -> list[list[Any]]:
        """The rows of a SELECT."""
        answer = await self.client.post("/query", json={"sql": sql})
        assert answer.status_code == 200, answer.text
        rows: list[list[Any]] = answer.json()["rows"]
        return rows

    async def until(self, sql: str, expected: list[list[Any]]) -> None:
        """Wait until a SELECT gives this."""
        async with asyncio.timeout(60):
            while await self.query(sql) != expected:  # noqa: ASYNC110 - made by other processes
                await asyncio.sleep(0.02)


Serve = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Serves the circuit, from a state that goes on, until it is left or shut down."""
    monkeypatch.chdir(tmp_path)

    @asynccontextmanager
    async def serving(
        members: int = 3, trust: Trust = NO_TRUST, keep_output_bytes: int | None = None
    ) -> AsyncIterator[Served]:
        query = stepped_query(
            parse_query(QUERY, "totals", "query.json"), parse_topology(TOPOLOGY, "topology.yaml"), members
        )
        settings = TriggerSettings(checkpoint_s=None)
        run = LocalRun(query, tmp_path / "state", tmp_path, settings, keep_output_bytes=keep_output_bytes)
        began: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def serve_it() -> None:
            async with run, served_over_http(run, "127.0.0.1:0", trust) as url:
                began.set_result(url)
                await run.until_shut_down()

        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            group.create_task(serve_it())
            url = await began
            async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
                yield Served(run, url, client)
            await run.shut_down()

    return serving
