"""The service does what its description says, for whatever fits the description, and for a lot that does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
import schemathesis

from nebuli.http.http_server import served_over_http
from nebuli.rpc.trust import NO_TRUST
from nebuli.steps.local.local_run import LocalRun
from nebuli.steps.protocol.triggers import TriggerSettings
from nebuli.steps.stepped_query import stepped_query
from nebuli.store.collections.collections import Collections
from placement import parse_query
from tests.nebuli.circuits.conftest import QUERY, TOPOLOGY, batch
from tests.support.described_calls import answers_as_described
from topology import parse_topology

pytestmark = pytest.mark.processes
SALES = pa.schema([("shop", pa.string()), ("amount", pa.int64())])


@schemathesis.serializer("application/x-ndjson", "application/vnd.apache.arrow.stream")
def as_it_is(context: object, value: object) -> bytes:
    """Bodies of these types are texts, or bytes."""
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A circuit of two members, and a collection, on a loop of their own."""
    folder = tmp_path_factory.mktemp("served")
    found: list[str] = []
    ready, over = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        topology = parse_topology(
            TOPOLOGY.replace("path: totals.csv", f"path: {folder}/totals.csv"), "t.yaml"
        )
        query = stepped_query(parse_query(QUERY, "totals", "query.json"), topology, 2)
        run = LocalRun(query, folder / "state", Path(folder), TriggerSettings(checkpoint_s=None))
        kept = folder / "kept"
        async with Collections(kept) as collections:
            await collections.create("sales", SALES)
            await collections.insert("sales", batch(("x", 1), ("y", 2)))
        async with run, served_over_http(run, "127.0.0.1:0", NO_TRUST, {"kept": kept}) as address:
            found.append(address)
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), name="served")
    thread.start()
    assert ready.wait(60)
    yield found[0]
    loop.call_soon_threadsafe(over.set)
    thread.join(60)
    loop.close()


# Without the end of it all, what others would wait for, and what takes long.
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/start"),
        ("POST", "/scale"),
        ("GET", "/query"),
        ("POST", "/query"),
        ("GET", "/stats"),
        ("GET", "/metrics"),
        ("GET", "/metadata"),
        ("GET", "/offsets/{step}"),
        ("POST", "/input_endpoint/{name}"),
        ("GET", "/input_endpoint/{name}"),
        ("POST", "/start_input_endpoint/{name}"),
        ("GET", "/output_endpoint/{name}"),
        ("GET", "/openapi.json"),
        ("GET", "/collections"),
        ("POST", "/collections"),
        ("GET", "/collections/{name}"),
        ("GET", "/collections/{name}/rows"),
        ("POST", "/collections/{name}/rows"),
        ("GET", "/collections/{name}/sequence"),
        ("POST", "/collections/{name}/renditions"),
        ("DELETE", "/collections/{name}/renditions/{rendition}"),
        ("POST", "/collections/{name}/handover"),
        ("GET", "/collections/{name}/holds"),
        ("POST", "/collections/{name}/holds"),
        ("DELETE", "/collections/{name}/holds/{hold}"),
        ("DELETE", "/collections/{name}"),
    ],
)
def test_every_answer_is_as_described(url: str, method: str, path: str) -> None:
    """FT-API-1 to FT-API-9: statuses, types and shapes, of errors too; nothing makes the service fail."""

    def change(case: schemathesis.Case, is_known: bool) -> None:
        if is_known and path.startswith("/collections/"):
            case.path_parameters["name"] = "sales"
        if path == "/scale" and str((case.query or {}).get("members", "")).isdecimal():
            case.query["members"] = 2  # what it has: others take seconds, and so many processes
        if str((case.query or {}).get("follow", "")).lower() == "true":
            case.query["until_step"] = 0  # what is followed does not end
            case.query["from"] = case.query["as_of"] = 1  # which is refused
        if len(str((case.query or {}).get("as_of", ""))) > len("1700000000000"):
            case.query["as_of"] = 1  # what is to come is waited for

    answers_as_described(url, method, path, change)


def test_the_description_has_all_there_is(url: str) -> None:
    """Every endpoint of the document: what each does is tested where its row is named."""
    paths = httpx.get(f"{url}/openapi.json", trust_env=False).json()["paths"]
    assert paths.keys() == {
        "/start",
        "/pause",
        "/shutdown",
        "/checkpoint",
        "/scale",
        "/query",
        "/stats",
        "/metrics",
        "/metadata",
        "/heap_profile",
        "/dump_profile",
        "/offsets/{step}",
        "/input_endpoint/{name}",
        "/pause_input_endpoint/{name}",
        "/start_input_endpoint/{name}",
        "/output_endpoint/{name}",
        "/openapi.json",
        "/collections",
        "/collections/{name}",
        "/collections/{name}/rows",
        "/collections/{name}/sequence",
        "/collections/{name}/renditions",
        "/collections/{name}/renditions/{rendition}",
        "/collections/{name}/handover",
        "/collections/{name}/holds",
        "/collections/{name}/holds/{hold}",
    }
