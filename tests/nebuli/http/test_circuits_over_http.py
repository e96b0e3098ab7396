"""Queries in steps at workers over HTTP: passed on by the worker of the coordinator, to whichever process it has."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from nebuli.rpc.trust import Trust
from netchannel.tls import Credentials
from tests.nebuli.circuits.test_circuits_of_workers import of_circuits, started
from tests.support.authority import Authority
from tests.support.commands import Command, nebuli
from tests.support.fleet import Fleet, MakeFleet, kept_secret, tls_keys
from tests.support.ports import free_addresses
from tests.support.waiting import until_async

pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(300)]

LINES = {"content-type": "application/x-ndjson"}


class OverHttp(Fleet):
    """Whose first worker serves circuits over HTTP."""

    http = ""

    def _worker(self, number: int, file: Any) -> Command:
        if number:
            return super()._worker(number, file)
        (self.http,) = free_addresses(1) if not self.http else (self.http,)
        folder = self.directory / "worker0"
        folder.mkdir(exist_ok=True)
        return Command(
            *("worker", "--topology", file, "--node", self.nodes[0], "--http", self.http), directory=folder
        )


@asynccontextmanager
async def client_of(fleet: OverHttp, id_: str, **more: Any) -> AsyncIterator[httpx.AsyncClient]:
    scheme = "https" if "verify" in more else "http"
    async with httpx.AsyncClient(
        base_url=f"{scheme}://{fleet.http}/{id_}", timeout=60, trust_env=False, **more
    ) as client:
        yield client


async def until_there(client: httpx.AsyncClient) -> None:
    async def answers() -> bool:
        found = await client.get("/stats")
        return found.status_code == 200 and found.json()["phase"] == "running"

    await until_async(answers, "the circuit runs")


async def push(client: httpx.AsyncClient, handle: str, sequence: int, amount: int) -> httpx.Response:
    return await client.post(
        f"/input_endpoint/{handle}",
        params={"producer": "p", "sequence": sequence},
        content=f'{{"shop": "x", "amount": {amount}}}\n',
        headers=LINES,
    )


async def totals_are(client: httpx.AsyncClient, expected: list[list[Any]]) -> None:
    async def are() -> bool:
        answer = await client.get("/query", params={"sql": "SELECT shop, sales, amount FROM totals"})
        return answer.status_code == 200 and answer.json()["rows"] == expected

    await until_async(are, f"totals are {expected}")


async def test_a_query_at_workers_is_served_by_the_worker_of_its_coordinator(make_fleet: MakeFleet) -> None:
    """FT-API-7, FT-API-8: rows in, steps out, SQL, also with another process of the coordinator."""
    fleet = of_circuits(make_fleet(OverHttp))
    assert isinstance(fleet, OverHttp)
    id_, _ = await asyncio.to_thread(started, fleet)
    async with client_of(fleet, id_) as client:
        await until_there(client)
        assert (await push(client, "a", 0, 3)).status_code == 200
        await totals_are(client, [["x", 1, 3]])
        async with client.stream("GET", "/output_endpoint/rows", params={"follow": "true"}) as stream:
            lines = stream.aiter_lines()
            assert '"amount":3' in (await anext(lines)).replace(" ", "")
            assert (await push(client, "b", 0, 4)).status_code == 200
            assert '"amount":4' in (await anext(lines)).replace(" ", "")
        os.kill(await asyncio.to_thread(fleet.pid_of, id_, "coordinator"), signal.SIGKILL)
        await until_there(client)
        again = await push(client, "b", 0, 4)
        assert again.status_code == 200, "what was sent before counts once"
        await totals_are(client, [["x", 2, 7]])
        refused = await client.post("/scale", params={"members": 3})
        assert (refused.status_code, refused.json()["error"]) == (409, "not_scaled")
        assert f"'nebuli scale {id_} --members 3'" in refused.json()["what"]
        metrics = (await client.get("/metrics")).text
        assert "nebuli_circuit_steps_total" in metrics
        unknown = await client.get(f"http://{fleet.http}/nothing/stats")
        assert (unknown.status_code, unknown.json()["error"]) == (404, "unknown_query")
        page = await client.get("/stats", headers={"origin": "http://elsewhere.example"})
        assert (page.status_code, page.json()["error"]) == (403, "other_origin")
        assert (await client.post("/shutdown")).status_code == 202
    await asyncio.to_thread(fleet.wait_for_state, id_, "finished")
    async with client_of(fleet, id_) as client:
        over = await client.get("/stats")
        assert (over.status_code, over.json()["error"]) == (503, "not_running")


async def test_it_asks_for_the_certificates_and_the_secret_of_the_topology(
    make_fleet: MakeFleet, tmp_path: Path
) -> None:
    """The client verifies the worker, which asks for the client's certificate and the secret."""
    tls = Authority(tmp_path).issue("node")
    fleet = make_fleet(OverHttp)
    assert isinstance(fleet, OverHttp)
    fleet.data |= {"tls": tls_keys(tls), "secret": kept_secret(fleet.directory)}
    fleet.trust = Trust(tls, "correct horse")
    of_circuits(fleet)
    id_, _ = await asyncio.to_thread(started, fleet)
    known = {"verify": Credentials(tls, "sender").context()}
    bearer = {"authorization": "Bearer correct horse"}
    async with client_of(fleet, id_, headers=bearer, **known) as client:
        await until_there(client)
        assert (await push(client, "a", 0, 3)).status_code == 200
        await totals_are(client, [["x", 1, 3]])
    async with client_of(fleet, id_, **known) as client:
        without = await client.get("/stats")
        assert (without.status_code, without.json()["error"]) == (401, "secret_needed")
    async with client_of(fleet, id_, verify=True) as client:
        with pytest.raises(httpx.ConnectError, match="certificate"):
            await client.get("/stats")


def test_other_machines_are_not_let_in_without_tls_or_secret(make_fleet: MakeFleet) -> None:
    """Not with --insecure, either."""
    fleet = make_fleet()
    ended = nebuli(
        *("worker", "--topology", fleet.topology, "--node", fleet.nodes[0]),
        *("--http", "0.0.0.0:7000", "--insecure"),
        directory=fleet.directory,
    )
    assert ended.exit_code == 2
    assert "--http 0.0.0.0:7000 can be reached from other machines" in ended.error
