"""Views over HTTP, as ``nebuli run --http`` serves them: rows come from one node, and are read at another."""

from __future__ import annotations

import asyncio
import json
import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psutil
import pyarrow as pa
import pytest
import schemathesis
import yaml
from prometheus_client.parser import text_string_to_metric_families
from starlette.routing import Route

from nebuli.blocking import Views
from nebuli.http.http_routes import app_of_views
from nebuli.http.views.view_places import ViewPlaces
from nebuli.store.collections.collections import Collections
from tests.support.commands import Command, arguments_of
from tests.support.described_calls import answers_as_described
from tests.support.ports import free_addresses
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

SCHEMA = pa.schema(
    [
        ("word", pa.string()),
        ("big", pa.int64()),
        ("share", pa.float64()),
        ("on", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("data", pa.binary()),
    ]
)
TYPES = ("string", "int64", "float64", "bool", "date", "timestamp", "binary")
AT = datetime(2013, 1, 31, 18, 30, 0, 500_000, UTC)
ROWS = [
    ("beyond", (1 << 53) + 1, 0.1, True, date(2013, 1, 31), AT, b"\x00\xff"),
    ("beneath", 1 << 53, -0.5, False, date(1969, 12, 31), datetime(1970, 1, 1, tzinfo=UTC), b""),
    ("odd", -1, math.nan, None, None, None, None),
]
AS_JSON = [
    '["beyond",9007199254740993,0.1,true,"2013-01-31","2013-01-31T18:30:00.500000+00:00","AP8="]',
    '["beneath",9007199254740992,-0.5,false,"1969-12-31","1970-01-01T00:00:00+00:00",""]',
    '["odd",-1,"NaN",null,null,null,null]',
]
"""The same by hand: numbers with all of their digits, texts for what JSON does not have."""


@dataclass
class Served:
    """A run whose rows come from one node, and two views of them that are read at the other."""

    command: Command
    source: str
    reader: str
    at: str
    url: str
    store: Path

    def insert(self, *rows: tuple[Any, ...]) -> None:
        columns = [
            pa.array(each, field.type) for each, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)
        ]

        async def insert() -> None:
            async with Collections(self.store) as collections:
                await collections.insert("things", pa.record_batch(columns, schema=SCHEMA))

        asyncio.run(insert())

    def process(self, node: str) -> psutil.Process:
        """That of the fragment at a node: the last that its worker has begun."""
        (worker,) = [each for each in self.command.workers() if node in arguments_of(each)]
        return max(worker.children(), key=psutil.Process.create_time)

    @contextmanager
    def stopped(self, node: str) -> Iterator[None]:
        """The fragment at a node does nothing meanwhile; its worker goes on."""
        process = self.process(node)
        process.suspend()
        try:
            yield
        finally:
            process.resume()


@contextmanager
def serving(folder: Path) -> Iterator[Served]:
    """A run until it is interrupted; nobody listens there then."""
    first, second, at, http = free_addresses(4)
    physical = {"logical": "things", "type": "Collection", "store": "kept", "collection": "things"}
    schema = [{"name": name, "type": type_} for name, type_ in zip(SCHEMA.names, TYPES, strict=True)]
    topology = {
        "logical": [{"name": "things", "schema": schema}],
        "nodes": [
            {"address": first, "links": {"downstream": [second]}, "physical": [physical]},
            {"address": second},
        ],
    }
    operators = [
        {"id": "in", "type": "source", "logical": "things"},
        {"id": "things", "type": "view", "input": "in", "key": SCHEMA.names},
        {"id": "words", "type": "view", "input": "things", "key": ["word"], "node": second},
    ]
    (folder / "topology.yaml").write_text(yaml.safe_dump(topology), "utf-8")
    (folder / "query.json").write_text(json.dumps({"operators": operators}), "utf-8")

    async def create() -> None:
        async with Collections(folder / "kept") as collections:
            await collections.create("things", SCHEMA)

    asyncio.run(create())
    files = folder / "topology.yaml", folder / "query.json"
    command = Command("run", *files, "--serve", at, "--http", http, directory=folder)
    try:
        served = Served(command, first, second, at, f"http://{http}", folder / "kept")
        served.insert(*ROWS)
        command.wait_until_said(f"view words at {served.url}/views/words?key=WORD")
        yield served
    finally:
        if not command.has_been_ended:
            command.process.send_signal(signal.SIGINT)
            ended = command.end()
            assert ended.exit_code == 130, ended.stderr


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One run for all that change nothing of it."""
    with serving(tmp_path_factory.mktemp("served")) as found:
        yield found


@pytest.fixture
def client(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=60, trust_env=False) as found:
        yield found


def told(answer: httpx.Response) -> tuple[int, str, str]:
    return answer.status_code, answer.json()["error"], answer.json()["what"]


@pytest.mark.parametrize(("row", "said"), [*zip(ROWS, AS_JSON, strict=True)], ids=[row[0] for row in ROWS])
def test_a_key_is_read_as_it_is_written_in_all_types(
    client: httpx.Client, row: tuple[Any, ...], said: str
) -> None:
    """Nothing is rounded, and what an answer says can be asked for again: as JSON and, but for null, as words."""
    answer = client.post("/views/things/get", content=f'{{"keys": [{said}]}}')
    assert answer.status_code == 200, answer.text
    assert f'"key":{said}' in answer.text
    (result,) = answer.json()["results"]
    assert result["rows"] == [dict(zip(SCHEMA.names, json.loads(said), strict=True))]
    if None not in row:
        words = [each if isinstance(each, str) else json.dumps(each) for each in json.loads(said)]
        found = client.get("/views/things", params={"key": words}).json()
        assert (found["key"], found["rows"], found["hit"]) == (result["key"], result["rows"], True)


def test_many_keys_are_one_lookup_in_their_order(client: httpx.Client) -> None:
    """PS-UQ-3, from outside: all that are missing are one upquery. A key may be a value, or a list of one."""
    before = by_name(client)["words"]
    unknown = [f"word-{number}" for number in range(100)]
    answer = client.post("/views/words/get", json={"keys": ["odd", *unknown, ["beyond"], "odd"]}).json()
    assert [each["key"] for each in answer["results"]] == [
        ["odd"],
        *([each] for each in unknown),
        ["beyond"],
        ["odd"],
    ]
    assert [each["rows"][0]["big"] for each in answer["results"] if each["rows"]] == [-1, (1 << 53) + 1, -1]
    assert client.post("/views/words/get", json={"keys": []}).json()["results"] == []

    def counted() -> bool:
        after = by_name(client)["words"]
        assert (
            after["upqueries"] < before["upqueries"] + 10
        )  # where it is slow, all of them are asked for again
        return bool(after["lookups"] == before["lookups"] + 102 and after["upqueries"] > before["upqueries"])

    wait_for(counted, "102 keys in one upquery")


def test_views_are_listed_and_counted(client: httpx.Client) -> None:
    client.get("/views/words", params={"key": "odd"})
    client.get("/views/words", params={"key": "odd"})
    wait_for(lambda: by_name(client)["words"]["hits"], "the hit is counted")
    found = by_name(client)
    assert found.keys() == {"things", "words"}
    assert (found["words"]["key"], found["words"]["state"], found["words"]["away"]) == (
        ["word"],
        "partial",
        False,
    )
    assert found["things"]["columns"][1] == {"name": "big", "type": "int64"}
    text = client.get("/metrics")
    assert text.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = {
        each.name: each.value
        for family in text_string_to_metric_families(text.text)
        for each in family.samples
        if each.labels == {"view": "words"}
    }
    assert (values["nebuli_view_up"], values["nebuli_view_hits_total"]) == (1, found["words"]["hits"])
    assert 0 < values["nebuli_view_hits_total"] <= values["nebuli_view_lookups_total"]


def by_name(client: httpx.Client) -> dict[str, Any]:
    """All views, once they answer: on a busy machine one may take longer than the list waits, and has no counts."""

    def found() -> dict[str, Any] | None:
        listed = client.get("/views").json()["views"]
        return None if any(each["away"] for each in listed) else {each["name"]: each for each in listed}

    return wait_for(found, "all views answer")


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (["odd", "x", 0, True, None, None, None], "'x' is not a valid big (int64)"),
        (["odd", 1.5, 0, True, None, None, None], "1.5 is not a whole number"),
        (["odd", 1 << 63, 0, True, None, None, None], "is not a valid big"),
        (["odd", True, 0, True, None, None, None], "true (true or false) is not a valid big (int64)"),
        (["odd", 1, 0, 1, None, None, None], "1 (a number) is not a valid on (bool)"),
        (["odd", 1, 0, True, 17, None, None], "17 (a number) is not a valid day (date32[day])"),
        ([5, 1, 0, True, None, None, None], "5 (a number) is not a valid word (string)"),
        (
            [["odd"], 1, 0, True, None, None, None],
            '["odd"] (a list or an object) is not a valid word (string)',
        ),
        (["odd", 1, 0, True, None, "noon", None], "'noon' is not a valid at (timestamp[us, tz=UTC])"),
        (["odd", 1, 0, True, None, None, "%"], "'%' is not a valid data (binary)"),
        (
            ["odd", 1, "1e400", True, None, None, None],
            "'1e400' is not a valid share (double): it is out of range",
        ),
        (["odd", 1], 'expected a list of 7 values, got ["odd", 1]'),
        ("odd", 'expected a list of 7 values, got "odd"'),
    ],
)
def test_what_is_no_key_is_told_with_the_column_its_type_and_what_came(
    client: httpx.Client, key: Any, why: str
) -> None:
    status, error, what = told(client.post("/views/things/get", json={"keys": [key]}))
    assert (status, error) == (400, "wrong_key")
    assert why in what


def test_other_requests_that_cannot_be_answered_say_why(client: httpx.Client) -> None:
    unknown = told(client.get("/views/others", params={"key": "odd"}))
    assert unknown == (404, "unknown_view", "unknown view 'others': expected one of things, words")
    assert told(client.get("/views/words"))[:2] == (400, "wrong_key")
    assert told(client.get("/views/words?key=odd&deadline=soon"))[:2] == (400, "wrong_parameter")
    assert told(client.post("/views/words/get", content="[" * 100_000))[:2] == (400, "wrong_body")
    many = told(client.post("/views/words/get", json={"keys": ["odd"] * 65_537}))
    assert many == (413, "too_large", "these are 65537 keys, but at most 65536 are accepted at once")
    assert told(client.get("/views/words/watch?key=1&key=2"))[:2] == (400, "wrong_key")
    by_column = told(client.get("/views/words?word=odd"))
    assert by_column[:2] == (400, "wrong_parameter")
    assert by_column[2] == "unknown parameter 'word': GET /views/words takes key, deadline"
    assert told(client.get("/views?all=true"))[2] == "unknown parameter 'all': GET /views takes no parameters"
    assert told(client.get("/views/words/?key=odd"))[:2] == (404, "unknown_path")
    assert told(client.get("/views/words/get?key=odd")) == (
        405,
        "wrong_method",
        "GET /views/words/get: expected POST",
    )
    beyond = '{"keys": [["odd", 1, 1e400, true, null, null, null]]}'
    assert told(client.post("/views/things/get", content=beyond))[:2] == (400, "wrong_key")
    other = client.get("/views/words", params={"key": "odd"}, headers={"origin": "https://elsewhere.example"})
    assert told(other)[:2] == (403, "other_origin")


def test_keys_that_do_not_come_in_time_are_named_and_the_others_are_there(
    served: Served, client: httpx.Client
) -> None:
    """The rows' own node does nothing, so what is missing is waited for; what is there is read all the same."""
    assert client.get("/views/words", params={"key": "odd"}).status_code == 200
    with served.stopped(served.source):
        answer = client.post("/views/words/get", params={"deadline": 0.2}, json={"keys": ["late", "odd"]})
        assert told(answer)[:2] == (504, "lookup_timed_out")
        assert "1 of 2 keys of view 'words' were missing" in answer.json()["what"]
        assert "were missing, such as ('late',), and did not arrive within 0.2 s" in answer.json()["what"]
        assert answer.json()["missing"] == [["late"]]
        (there,) = answer.json()["results"]
        assert (there["key"], there["hit"], len(there["rows"])) == (["odd"], True, 1)
        assert client.get("/views/words", params={"key": "odd"}).status_code == 200
    late = client.get("/views/words", params={"key": "late", "deadline": 60})
    assert (late.status_code, late.json()["rows"]) == (200, [])


def test_a_view_that_is_away_is_told_and_read_again_when_it_is_back(
    served: Served, client: httpx.Client
) -> None:
    with served.stopped(served.reader):
        answer = client.get("/views/words", params={"key": "odd", "deadline": 0.1})
        assert told(answer)[:2] == (503, "view_away")
        assert "view 'words' at" in answer.json()["what"]
    back = client.get("/views/words", params={"key": "odd", "deadline": 60})
    assert (back.status_code, len(back.json()["rows"])) == (200, 1)
    served.process(served.reader).kill()
    back = wait_for(
        lambda: (found := client.get("/views/words?key=odd&deadline=1")).status_code == 200 and found,
        "the view is there again",
    )
    assert len(back.json()["rows"]) == 1


@pytest.mark.parametrize("kind", ["application/x-ndjson", "text/event-stream"])
def test_a_key_is_watched_until_the_run_ends_which_is_said(tmp_path: Path, kind: str) -> None:
    """From its rows now to each that follow; a process of the view that is killed meanwhile changes nothing."""
    with (
        serving(tmp_path) as served,
        httpx.Client(base_url=served.url, timeout=60, trust_env=False) as client,
        client.stream("GET", "/views/words/watch?key=new", headers={"accept": kind}) as answer,
    ):
        assert answer.headers["content-type"].startswith(kind)
        lines = (line for line in answer.iter_lines() if line and not line.startswith(":"))

        def given() -> tuple[str, Any]:
            name = "rows" if kind.endswith("ndjson") else next(lines).removeprefix("event: ")
            return name, json.loads(next(lines).removeprefix("data: "))

        assert given() == ("rows", {"rows": []})
        served.insert(("new", 1, 0.5, None, None, None, None))
        name, first = given()
        assert (name, [each["big"] for each in first["rows"]]) == ("rows", [1])
        served.process(served.reader).kill()
        served.insert(("new", 0, 0.5, None, None, None, None), ("old", 3, 0.5, None, None, None, None))
        name, second = given()
        assert (name, [each["big"] for each in second["rows"]]) == ("rows", [0, 1])
        served.command.process.send_signal(signal.SIGINT)
        name, end = given()
        assert (name, end["error"]) == ("rows" if kind.endswith("ndjson") else "failed", "ended")
        assert end["do"] == "ask again when the query runs again"
        assert next(lines, None) is None
    with pytest.raises(httpx.ConnectError):
        httpx.get(served.url, trust_env=False)


def test_a_view_that_is_added_is_served_too(tmp_path: Path) -> None:
    operators = [
        {"id": "positive", "type": "filter", "input": "in", "predicate": "big > 0"},
        {"id": "bigs", "type": "view", "input": "positive", "key": ["big"]},
    ]
    with (
        serving(tmp_path) as served,
        httpx.Client(base_url=served.url, timeout=60, trust_env=False) as client,
    ):
        assert told(client.get("/views/bigs?key=1"))[:2] == (404, "unknown_view")
        with Views(served.at) as views:
            assert views.add(json.dumps({"operators": operators})) == ["bigs"]
        words = [
            client.get("/views/bigs", params={"key": key}).json()["rows"]
            for key in ("9007199254740993", "-1")
        ]
        assert [[row["word"] for row in rows] for rows in words] == [["beyond"], []]
        assert by_name(client).keys() == {"bigs", "things", "words"}
        assert "bigs" in client.get("/openapi.json").text


def test_a_view_whose_name_means_something_in_an_address_is_read_where_the_run_says(tmp_path: Path) -> None:
    names = ["words/get", "words/watch", "a/b", "50%", "%2F", "who?", "#1", "a;b&c"]
    operators = [{"id": name, "type": "view", "input": "in", "key": ["word"]} for name in names]
    with serving(tmp_path) as run, httpx.Client(base_url=run.url, timeout=60, trust_env=False) as client:
        with Views(run.at) as views:
            assert views.add(json.dumps({"operators": operators})) == names
        for name in names:
            path = f"/views/{quote(name, safe='')}"
            found = client.get(path, params={"key": "odd"}).json()
            assert (found["view"], found["rows"][0]["big"]) == (name, -1)
            many = client.post(f"{path}/get", json={"keys": ["odd"]}).json()
            assert (many["view"], many["results"][0]["key"]) == (name, ["odd"])
            with client.stream("GET", f"{path}/watch", params={"key": "odd"}) as watched:
                assert json.loads(next(watched.iter_lines()))["rows"][0]["big"] == -1


def test_the_description_has_all_routes(client: httpx.Client) -> None:
    described = client.get("/openapi.json").json()["paths"]
    routes = app_of_views(ViewPlaces()).routes
    assert described.keys() == {each.path for each in routes if isinstance(each, Route)}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/views"),
        ("GET", "/views/{name}"),
        ("POST", "/views/{name}/get"),
        ("GET", "/views/{name}/watch"),
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
    ],
)
def test_every_answer_of_views_is_as_described(served: Served, method: str, path: str) -> None:
    """Statuses, types and shapes, of errors too; nothing makes the service fail."""

    def change(case: schemathesis.Case, is_known: bool) -> None:
        query = case.query or {}
        if is_known and "{name}" in path:
            case.path_parameters["name"] = "words"
        if isinstance(query.get("deadline"), int | float) and query["deadline"] > 0:
            query["deadline"] = 60  # within less some keys do not come, which is a 504
        if path.endswith("watch"):
            query["key"] = ["one", "two"]  # what is watched does not end

    answers_as_described(served.url, method, path, change)
