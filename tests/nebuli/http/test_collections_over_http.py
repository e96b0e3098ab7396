"""Collections over HTTP, served by processes of their own, which are killed."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from nebuli import Collections
from tests.support.commands import Command, nebuli
from tests.support.ports import free_addresses
from tests.support.waiting import until_async

pytestmark = pytest.mark.processes

SALES = {
    "name": "sales",
    "schema": [{"name": "shop", "type": "string"}, {"name": "amount", "type": "int64"}],
}
ROWS = "/collections/sales/rows"
LINES = {"content-type": "application/x-ndjson"}
ARROW = "application/vnd.apache.arrow.stream"


class Service:
    """``nebuli collection serve``, killed and started again at the same address."""

    def __init__(self, folder: Path, *options: str | Path) -> None:
        self.store = folder / "kept"
        (self.address,) = free_addresses(1)
        self.url = f"http://{self.address}"
        self._folder = folder
        self._options = options
        self.start()

    def start(self) -> None:
        self.command = Command(
            *("collection", "serve", "--http", self.address, "--store", self.store, *self._options),
            directory=self._folder,
        )
        self.command.wait_until_said(f"serving at {self.url}")

    def end(self, number: signal.Signals) -> int:
        self.command.process.send_signal(number)
        return self.command.end().exit_code

    def kill_and_start(self) -> None:
        self.end(signal.SIGKILL)
        self.start()

    def client(self, **headers: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=60, trust_env=False, headers=headers)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    found = Service(tmp_path)
    yield found
    assert found.end(signal.SIGTERM) == 143


def lines(*rows: tuple[str, int] | tuple[str, int, int]) -> str:
    """Rows as JSON lines, perhaps with a weight."""
    return "".join(
        json.dumps(dict(zip(("shop", "amount", "_weight"), row, strict=False))) + "\n" for row in rows
    )


async def insert(client: httpx.AsyncClient, *rows: Any, **params: Any) -> dict[str, Any]:
    answer = await client.post(ROWS, params=params, content=lines(*rows), headers=LINES)
    assert answer.status_code == 200, answer.text
    said: dict[str, Any] = answer.json()
    assert said["durable"] is True
    return said


def added_up(parts: list[dict[str, Any]]) -> Counter[tuple[str, int]]:
    """The rows that lines add up to."""
    found: Counter[tuple[str, int]] = Counter()
    for part in parts:
        for row in part["rows"]:
            found[row["shop"], row["amount"]] += row["_weight"]
    return Counter({row: weight for row, weight in found.items() if weight})


async def read(client: httpx.AsyncClient, **params: Any) -> list[dict[str, Any]]:
    answer = await client.get(ROWS, params=params)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


@asynccontextmanager
async def following(client: httpx.AsyncClient, **params: Any) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """The lines of a collection that is followed."""
    async with (
        asyncio.timeout(60),
        client.stream("GET", ROWS, params={"follow": "true", **params}) as stream,
    ):
        assert stream.status_code == 200
        yield (json.loads(line) async for line in stream.aiter_lines())


async def holds(client: httpx.AsyncClient) -> set[str]:
    found = (await client.get("/collections/sales/holds")).json()["holds"]
    return {each["name"] for each in found}


async def test_what_was_answered_is_there_whatever_is_killed(service: Service) -> None:
    """ST-CTL-1, ST-CTL-2, ST-CTL-3, ST-CTL-4: kill -9 behind each answer, and its effect is there.

    Rows that are sent again with their number are there once.
    """
    async with service.client() as client:
        made = await client.post("/collections", json=SALES)
        assert (made.status_code, made.json()) == (201, {"name": "sales", "durable": True})
        service.kill_and_start()
        assert (await client.get("/collections/sales")).json()["schema"] == SALES["schema"]

        first = await insert(client, ("Aachen", 1), ("Bonn", 2), producer="till", sequence=0)
        service.kill_and_start()
        assert await insert(client, ("Aachen", 1), ("Bonn", 2), producer="till", sequence=0) == first
        assert (await client.get("/collections/sales/sequence", params={"producer": "till"})).json() == {
            "sequence": 1
        }
        (contents,) = await read(client, as_of=first["time"])
        assert added_up([contents]) == {("Aachen", 1): 1, ("Bonn", 2): 1}
        assert contents["time"] == first["time"]

        held = await client.post("/collections/sales/holds", params={"hold": "mine", "at": first["time"]})
        assert held.status_code == 201
        service.kill_and_start()
        assert await holds(client) == {"history", "mine"}
        assert (await client.delete("/collections/sales/holds/mine")).status_code == 200
        service.kill_and_start()
        assert await holds(client) == {"history"}

        renditions = "/collections/sales/renditions"
        for name in ("r2", "r3"):
            assert (await client.post(renditions, params={"rendition": name})).status_code == 201
        service.kill_and_start()
        assert (await client.delete(f"{renditions}/r3")).status_code == 200
        handed = (await client.post("/collections/sales/handover", params={"rendition": "r2"})).json()
        service.kill_and_start()
        shown = (await client.get("/collections/sales")).json()
        assert shown["active"] == "r2"
        assert {each["name"]: each["begin"] for each in shown["renditions"]} == {
            "r1": 0,
            "r2": handed["time"],
        }

        assert (await client.delete("/collections/sales")).json() == {"name": "sales", "durable": True}
        service.kill_and_start()
        assert (await client.get("/collections")).json() == {
            "stores": [str(service.store)],
            "collections": [],
        }


async def test_who_follows_has_the_rows_and_each_change_once(service: Service) -> None:
    """ST-CL-1, ST-CTL-2: by the collection's name alone, also where it becomes another rendition, and its end."""
    async with service.client() as client, Collections(service.store) as collections:
        await client.post("/collections", json=SALES)
        await insert(client, ("Aachen", 1))
        async with following(client) as parts:
            seen = [await anext(parts)]
            assert added_up(seen) == {("Aachen", 1): 1}
            for _ in range(2):  # once more with its number
                at = (await insert(client, ("Bonn", 2, 2), producer="till", sequence=7))["time"]
            while seen[-1]["time"] < at:
                seen.append(await anext(parts))
            assert added_up(seen) == {("Aachen", 1): 1, ("Bonn", 2): 2}
            await client.post("/collections/sales/renditions", params={"rendition": "r2"})
            other = pa.record_batch({"shop": ["Bonn", "Cologne"], "amount": [2, 3]})
            await collections.write("sales", [(0, other)], 0, 1, rendition="r2")
            handed = (await client.post("/collections/sales/handover", params={"rendition": "r2"})).json()
            while seen[-1]["time"] < handed["time"]:
                seen.append(await anext(parts))
            assert added_up(seen[-1:]) == {("Aachen", 1): -1, ("Bonn", 2): -1, ("Cologne", 3): 1}
            times = [each["time"] for each in seen]
            assert times == sorted(set(times))
            await client.delete("/collections/sales")
            assert [each async for each in parts if "error" in each] == [
                {
                    "error": "collection_dropped",
                    "what": "collection sales was dropped with its rows while in use here: stop using "
                    "it, or create a collection of this name again",
                    "do": "stop using it, or create a collection of this name again",
                }
            ]


async def test_whoever_has_left_holds_nothing(service: Service) -> None:
    """ST-CTL-3: its hold is listed as long as it is connected, and no longer."""
    async with service.client() as client:
        await client.post("/collections", json=SALES)
        async with following(client) as parts:
            await anext(parts)
            (reader,) = await holds(client) - {"history"}
            assert reader.startswith("reader-")

        async def are_gone() -> bool:
            return await holds(client) == {"history"}

        await until_async(are_gone, "the hold is let go", 20)  # and not only when its lease is over


async def test_it_is_read_in_the_forms_of_outputs(service: Service) -> None:
    """ST-CL-1: at a time, between times, as events that go on behind the last one, and as Arrow streams."""
    async with service.client() as client:
        await client.post("/collections", json=SALES)
        many = [("Aachen", amount) for amount in range(20_000)]
        first = (await insert(client, *many))["time"]
        second = (await insert(client, ("Bonn", 1), ("Aachen", 0, -1)))["time"]

        at_first = await read(client, as_of=first)
        assert [each.get("more", False) for each in at_first] == [True, True, False]
        assert {each["time"] for each in at_first} == {first}
        assert added_up(at_first) == Counter(many)
        assert added_up(await read(client)) == Counter(many[1:]) + Counter({("Bonn", 1): 1})
        assert await read(client, **{"from": second, "as_of": second}) == [
            {
                "time": second,
                "rows": [
                    {"shop": "Bonn", "amount": 1, "_weight": 1},
                    {"shop": "Aachen", "amount": 0, "_weight": -1},
                ],
            }
        ]
        assert await read(client, **{"from": second + 1, "as_of": second}) == []

        found = await client.get(ROWS, params={"from": 1, "as_of": second}, headers={"accept": ARROW})
        table = pa.ipc.open_stream(found.content).read_all()
        assert table.schema.names == ["shop", "amount", "_weight", "_time"]
        assert Counter(table["_time"].to_pylist()) == {first: 20_000, second: 2}
        sent = pa.BufferOutputStream()
        with pa.ipc.new_stream(sent, pa.schema([("shop", pa.string()), ("amount", pa.int64())])) as writer:
            writer.write_batch(pa.record_batch({"shop": ["Bonn"], "amount": [5]}))
        answer = await client.post(ROWS, content=bytes(sent.getvalue()), headers={"content-type": ARROW})
        assert answer.json()["rows"] == 1
        third = answer.json()["time"]

        browser = {"accept": "text/event-stream", "last-event-id": str(second)}
        async with (
            asyncio.timeout(60),
            client.stream("GET", ROWS, params={"follow": "true"}, headers=browser) as stream,
        ):
            events = stream.aiter_lines()
            while (line := await anext(events)) != f"id: {third}":
                assert "Bonn" not in line
            assert await anext(events) == "event: time"
            assert json.loads((await anext(events)).removeprefix("data: ")) == {
                "time": third,
                "rows": [{"shop": "Bonn", "amount": 5, "_weight": 1}],
            }


Ask = Callable[[httpx.AsyncClient], Any]
REFUSED: dict[str, tuple[Ask, int, str, str]] = {
    "no such collection": (
        lambda client: client.get("/collections/returns/rows"),
        *(
            404,
            "unknown_collection",
            "unknown collection returns: expected one of sales, short, or create it first",
        ),
    ),
    "one of that name": (
        lambda client: client.post("/collections", json=SALES),
        *(409, "collection_exists", "collection sales exists already"),
    ),
    "a wrong type": (
        lambda client: client.post(
            "/collections", json={"name": "x", "schema": [{"name": "a", "type": "money"}]}
        ),
        *(400, "wrong_body", "schema.0.type: Input should be 'bool'"),
    ),
    "a wrong name": (
        lambda client: client.post("/collections", json={**SALES, "name": "a b"}),
        *(400, "collection_misused", "'a b' cannot be the name of a collection"),
    ),
    "other rows": (
        lambda client: client.post(ROWS, content='{"shop": "Aachen", "price": 1}', headers=LINES),
        *(
            400,
            "wrong_rows",
            "expected a JSON object with the columns shop, amount in each line: JSON parse",
        ),
    ),
    "another type of rows": (
        lambda client: client.post(ROWS, content="shop,amount", headers={"content-type": "text/csv"}),
        *(415, "wrong_content_type", "the rows have the type text/csv"),
    ),
    "a producer without a number": (
        lambda client: client.post(ROWS, params={"producer": "p"}, content=lines(("a", 1)), headers=LINES),
        *(400, "wrong_parameter", "the parameter sequence: it is missing"),
    ),
    "an earlier number": (
        lambda client: client.post(
            ROWS, params={"producer": "till", "sequence": 3}, content=lines(("a", 1)), headers=LINES
        ),
        *(409, "sequence_passed", "producer till sent its number 3, but its next is 5"),
    ),
    "a time that is forgotten": (
        lambda client: client.get("/collections/short/rows", params={"as_of": 1, "follow": "true"}),
        *(410, "too_late", "collection short cannot be read at"),
    ),
    "two beginnings": (
        lambda client: client.get(ROWS, params={"as_of": 1, "from": 1, "follow": "true"}),
        *(
            400,
            "wrong_parameter",
            "the parameter from: with follow, give only one of as_of and from",
        ),
    ),
    "no such rendition": (
        lambda client: client.post("/collections/sales/handover", params={"rendition": "r9"}),
        *(404, "unknown_rendition", "collection sales has no rendition r9: it has r1"),
    ),
    "the one that it is": (
        lambda client: client.delete("/collections/sales/renditions/r1"),
        *(
            409,
            "rendition_refused",
            "collection sales is read from rendition r1: hand over to another rendition first",
        ),
    ),
    "its own hold": (
        lambda client: client.delete("/collections/sales/holds/history"),
        *(400, "collection_misused", "the hold history belongs to the collection"),
    ),
    "another store": (
        lambda client: client.get("/collections/sales", params={"store": "elsewhere"}),
        *(404, "unknown_store", "no store 'elsewhere' is served here"),
    ),
    "another method": (
        lambda client: client.put("/collections/sales"),
        *(405, "wrong_method", "PUT /collections/sales"),
    ),
    "a page of another site": (
        lambda client: client.delete("/collections/sales", headers={"origin": "http://evil.example"}),
        *(403, "other_origin", "a page of http://evil.example sent the request"),
    ),
    "another host": (
        lambda client: client.delete("/collections/sales", headers={"host": "evil.example"}),
        *(421, "wrong_host", "the request is for the host 'evil.example'"),
    ),
}


async def test_each_error_has_its_status_and_its_sentence(service: Service) -> None:
    """One object with what, where and what to do; and nothing has happened."""
    async with service.client() as client, Collections(service.store) as collections:
        await client.post("/collections", json=SALES)
        await insert(client, ("Aachen", 1), producer="till", sequence=4)
        await client.post("/collections", json={**SALES, "name": "short", "keep": 0})
        for _ in range(2):
            batch = pa.record_batch({"shop": ["Aachen"], "amount": [1]})
            forgotten = await collections.insert("short", batch)
        await collections.keep_house(["short"])
        for case, (ask, status, error, what) in REFUSED.items():
            answer = await ask(client)
            assert (answer.status_code, answer.json()["error"]) == (status, error), (case, answer.text)
            assert what in answer.json()["what"], (case, answer.text)
            assert answer.json().keys() >= {"error", "what", "where", "do"}
        late = (await client.get("/collections/short/rows", params={"as_of": 1})).json()
        assert late["bound"] == forgotten
        assert added_up(await read(client)) == {("Aachen", 1): 1}


async def test_the_secret_of_a_topology_is_asked_for(tmp_path: Path) -> None:
    """And other machines are let in with certificates or a secret only."""
    topology = tmp_path / "topology.yaml"
    topology.write_text(
        "secret: {file: secret}\nlogical: []\nnodes: [{address: '127.0.0.1:27999'}]\n", "utf-8"
    )
    (tmp_path / "secret").write_text("open sesame\n", "utf-8")
    (tmp_path / "secret").chmod(0o600)
    service = Service(tmp_path, "--topology", topology)
    async with service.client() as client:
        answer = await client.get("/collections")
        assert (answer.status_code, answer.json()["error"]) == (401, "secret_needed")
    async with service.client(authorization="Bearer open sesame") as client:
        assert (await client.get("/collections")).status_code == 200
    assert service.end(signal.SIGTERM) == 143
    open_ = nebuli(
        *("collection", "serve", "--http", "0.0.0.0:0", "--store", tmp_path / "kept"), directory=tmp_path
    )
    assert open_.exit_code == 2
    assert "--http 0.0.0.0:0 can be reached from other machines" in open_.error


TOPOLOGY = """
logical:
  - {name: sales, schema: [{name: shop, type: string}, {name: amount, type: int64}]}
nodes:
  - address: 127.0.0.1:27998
    sinks: [{name: sales, type: Collection, store: kept, collection: sales}]
"""
QUERY = """
{"operators": [
  {"id": "till", "type": "source", "logical": "sales"},
  {"id": "sales", "type": "sink", "input": "till", "sink": "sales"}
]}
"""


async def test_a_circuit_serves_the_stores_that_its_topology_names(tmp_path: Path) -> None:
    """ST-CL-1, ST-CTL-1: beside its own endpoints, also described: what it writes is read, others are inserted into."""
    (tmp_path / "topology.yaml").write_text(TOPOLOGY, "utf-8")
    (tmp_path / "query.json").write_text(QUERY, "utf-8")
    (address,) = free_addresses(1)
    command = Command(
        *("run", tmp_path / "topology.yaml", tmp_path / "query.json", "--stepped"),
        *("--state", tmp_path / "state", "--http", address),
        directory=tmp_path,
    )
    command.wait_until_said("serving at")
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=60, trust_env=False) as client:
        paths = (await client.get("/openapi.json")).json()["paths"].keys()
        assert paths >= {"/query", "/collections/{name}/rows"}
        pushed = await client.post(
            "/input_endpoint/till",
            params={"producer": "p", "sequence": 0},
            content=lines(("Aachen", 1)),
            headers=LINES,
        )
        assert pushed.status_code == 200, pushed.text

        async def is_there() -> bool:
            answer = await client.get("/collections/sales/rows")
            return answer.status_code == 200 and '"Aachen"' in answer.text

        await until_async(is_there, "the circuit has written")
        (written,) = await read(client, store="kept")
        assert added_up([written]) == {("Aachen", 1): 1}
        refused = await client.post(ROWS, content=lines(("Bonn", 2)), headers=LINES)
        assert (refused.status_code, refused.json()["error"]) == (400, "collection_misused")
        await client.post("/collections", json={**SALES, "name": "returns"})
        inserted = await client.post("/collections/returns/rows", content=lines(("Bonn", 2)), headers=LINES)
        assert inserted.json()["time"] > written["time"]
        listed = (await client.get("/collections")).json()
        assert [(each["store"], each["name"]) for each in listed["collections"]] == [
            ("kept", "returns"),
            ("kept", "sales"),
        ]
        async with following(client) as parts:
            await anext(parts)
            assert (await client.post("/shutdown")).status_code == 202
            *_, last = [each async for each in parts]
        assert last["error"] == "ended"
    assert command.end().exit_code == 0
