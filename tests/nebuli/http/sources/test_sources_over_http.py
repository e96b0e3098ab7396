"""Sources over HTTP, as ``nebuli collection serve`` has them; every answer is as it is described."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import schemathesis
from prometheus_client.parser import text_string_to_metric_families
from starlette.routing import Route

from nebuli.http.collections.served_stores import ServedStores
from nebuli.http.http_routes import app_of_stores
from nebuli.http.http_server import collections_over_http
from nebuli.ingestion.definition import parse_definition
from nebuli.ingestion.source_client import Sources
from tests.support.described_calls import answers_as_described
from tests.support.waiting import until_async

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Two stores on a loop of their own; a file with 21 bytes is ingested into one of them, and 9 more come."""
    folder = tmp_path_factory.mktemp("served")
    found: list[str] = []
    ready, over = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(_serve(folder, found, ready, over)))
    thread.start()
    assert ready.wait(60)
    yield found[0]
    loop.call_soon_threadsafe(over.set)
    thread.join(60)
    loop.close()


async def _serve(folder: Path, found: list[str], ready: threading.Event, over: asyncio.Event) -> None:
    file = folder / "sales.csv"
    file.write_text("shop,amount\nAachen,1\n", "utf-8")
    definition = parse_definition(
        """
        name: sales
        from: {type: File, path: sales.csv}
        format: CSV
        schema: [{name: shop, type: string}, {name: amount, type: int64}]
        """
    )
    async with Sources(folder / "kept") as sources:
        await sources.create(definition.below(folder))
        ingesting = asyncio.create_task(sources.ingest("sales"))

        async def is_ingested() -> bool:
            return (await sources.describe("sales")).raw_sources["data"].lag == 0

        await until_async(is_ingested, "the file is ingested")
        ingesting.cancel()
        await asyncio.gather(ingesting, return_exceptions=True)
    file.write_text("shop,amount\nAachen,1\nCelle,23\n", "utf-8")
    stores = {"kept": folder / "kept", "other": folder / "other"}
    async with collections_over_http(stores, "127.0.0.1:0") as address:
        found.append(address)
        ready.set()
        await over.wait()


def test_sources_are_listed_and_shown_with_their_lag(url: str) -> None:
    """ST-AUX-1: what the source has, what is recorded of it, and what lies between."""
    with httpx.Client(base_url=url, trust_env=False) as client:
        listed = client.get("/sources").json()
        assert listed["stores"] == ["kept", "other"]
        assert [(each["store"], each["name"]) for each in listed["sources"]] == [("kept", "sales")]
        assert client.get("/sources", params={"store": "other"}).json()["sources"] == []
        shown = client.get("/sources/sales", params={"store": "kept"}).json()
        raw = shown["raw_sources"]["data"]
        assert (*raw["addresses"].values(), *raw["ends"].values(), raw["lag"]) == (21, 30, 9)
        assert [each["health"] for each in shown["instances"]] == ["ended"]
        text = client.get("/metrics")
        assert text.headers["content-type"].startswith("text/plain; version=0.0.4")
        values = {
            each.name: each.value
            for found in text_string_to_metric_families(text.text)
            for each in found.samples
            if each.labels["store"] == "kept"
        }
        assert (values["nebuli_source_lag"], values["nebuli_source_answers"]) == (9, 1)
        assert values["nebuli_source_upper_seconds"] == shown["upper"] / 1000


def test_a_source_that_is_not_there_is_a_problem(url: str) -> None:
    with httpx.Client(base_url=url, trust_env=False) as client:
        answers = [
            client.get("/sources/sale", params={"store": "kept"}),
            client.get("/sources/sales", params={"store": "lost"}),
            client.get("/sources/sales"),
        ]
    assert [(each.status_code, each.json()["error"]) for each in answers] == [
        (404, "unknown_source"),
        (404, "unknown_store"),
        (400, "wrong_parameter"),
    ]


def test_the_description_has_all_routes(tmp_path: Path, url: str) -> None:
    described = httpx.get(f"{url}/openapi.json", trust_env=False).json()["paths"]
    routes = app_of_stores(ServedStores({"kept": tmp_path})).routes
    assert described.keys() == {each.path for each in routes if isinstance(each, Route)}


@pytest.mark.parametrize("path", ["/sources", "/sources/{name}", "/metrics", "/openapi.json"])
def test_every_answer_of_sources_is_as_described(url: str, path: str) -> None:
    """Statuses, types and shapes, of errors too; nothing makes the service fail."""

    def change(case: schemathesis.Case, is_known: bool) -> None:
        if is_known and path == "/sources/{name}":
            case.path_parameters["name"] = "sales"

    answers_as_described(url, "GET", path, change)
