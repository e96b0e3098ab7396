"""A circuit over HTTP, with its members in processes of their own."""

from __future__ import annotations

import asyncio
import io
import json
import pstats
import re
import signal
import socket
from pathlib import Path

import httpx
import psutil
import pyarrow as pa
import pytest

from nebuli.http import http_server, request_guard
from nebuli.rpc.trust import Trust
from tests.nebuli.http.conftest import Serve, Served

pytestmark = pytest.mark.processes
ARROW = {"accept": "application/vnd.apache.arrow.stream"}


def line(shop: str, amount: int, **more: int) -> str:
    return json.dumps({"shop": shop, "amount": amount, **more})


async def pushed(served: Served) -> None:
    """Twelve rows in at least six steps, of producers whose rows are at different members."""
    for producer in range(6):
        answer = await served.push("a", f"p{producer}", 0, line("x", producer), line("y", 10 * producer))
        assert answer.status_code == 200, answer.text
        await served.until("SELECT count(*) FROM rows", [[2 * (producer + 1)]])


@pytest.mark.story
async def test_a_query_scans_all_members_at_one_step(serve: Serve) -> None:
    """FT-API-3: count(*) is the sum over members, each of which has some of the rows."""
    async with serve() as served:
        await pushed(served)
        answer = (await served.client.post("/query", json={"sql": "SELECT count(*) AS n FROM a"})).json()
        assert answer["rows"] == [[12]]
        assert answer["columns"] == [{"name": "n", "type": "int64"}]
        stats = (await served.client.get("/stats")).json()
        of_members = [each["operators"]["a"]["rows_in"] for each in stats["members"]]
        assert sum(of_members) == 12
        assert len([count for count in of_members if count]) > 1
        assert answer["step"] == stats["next_step"]
        found = await served.client.get(
            "/query", params={"sql": "SELECT * FROM totals ORDER BY shop"}, headers=ARROW
        )
        assert pa.ipc.open_stream(found.content).read_all().to_pylist() == [
            {"shop": "x", "sales": 6, "amount": 15},
            {"shop": "y", "sales": 6, "amount": 150},
        ]
        assert int(found.headers["nebuli-step"]) == answer["step"]


async def test_stats_and_metrics_are_those_of_all_members(serve: Serve) -> None:
    """FT-API-4: counters are sums that never go down, gauges are labelled by member and host."""
    async with serve() as served:
        await pushed(served)
        assert (await served.client.post("/checkpoint")).json()["step"] > 0
        await served.push("a", "p6", 0, line("z", 6))  # in a step that is repeated from the checkpoint
        await served.until("SELECT count(*) FROM rows", [[13]])
        before = (await served.client.get("/stats")).json()
        assert before["operators"]["a"]["rows_in"] == 13
        assert before["operators"]["totals"]["rows_out"] >= 2
        process = psutil.Process(before["members"][1]["pid"])
        process.send_signal(signal.SIGKILL)
        async with asyncio.timeout(60):
            while True:
                after = (await served.client.get("/stats")).json()
                text = (await served.client.get("/metrics")).text
                assert counter(text, "steps_total", 'circuit="totals"') >= before["complete"]
                new = after["members"][1]
                if not new["away"] and new["pid"] != process.pid and after["phase"] == "running":
                    break
        assert after["operators"]["a"]["rows_in"] >= 13, (
            "what the process that is gone had counted still counts"
        )
        text = (await served.client.get("/metrics")).text
        assert counter(text, "rows_in_total", 'circuit="totals",operator="a"') >= 13
        assert 'nebuli_circuit_member_waiting_rows{circuit="totals",member="2",host="127.0.0.1"} 0' in text
        assert 'nebuli_circuit_member_up{circuit="totals",member="1"} 1' in text
        timings = before["timings"]
        assert timings["steps"] >= 6
        assert 0 < timings["step_seconds"] < 60
        assert (timings["checkpoints"], timings["failed_checkpoints"]) == (1, 0)
        assert 'nebuli_circuit_checkpoint_duration_seconds_count{circuit="totals"} 1' in text


def counter(metrics: str, name: str, labels: str) -> int:
    (value,) = re.findall(rf"^nebuli_circuit_{name}{{{labels}}} (\d+)$", metrics, re.MULTILINE)
    return int(value)


async def test_metadata_has_the_plan_and_the_schemas(serve: Serve) -> None:
    """FT-API-5: which is our choice of what it is for."""
    async with serve() as served:
        found = (await served.client.get("/metadata")).json()
        assert found["members"] == 3
        assert found["inputs"][0] == {
            "name": "a",
            "logical": "sales",
            "external": True,
            "materialized": True,
            "columns": [{"name": "shop", "type": "string"}, {"name": "amount", "type": "int64"}],
        }
        assert found["tables"] == ["a", "b", "c", "rows", "totals"]
        assert {each["id"] for each in found["plan"]["operators"]} >= {"a", "all", "by-shop", "rows"}


async def test_profiles_are_those_of_the_member_that_is_named(serve: Serve, tmp_path: Path) -> None:
    """FT-API-6: `?member=2` profiles 2, without it it is 0."""
    async with serve() as served:
        await pushed(served)
        heap = await served.client.get("/heap_profile", params={"member": 2, "seconds": 0.05})
        assert "resident memory: " in heap.text
        assert "pyarrow" in heap.text or "objects that Python's collector knows" in heap.text
        for query, member in (({"member": "2", "seconds": "0.2"}, 2), ({"seconds": "0.2"}, 0)):
            dump = await served.client.get("/dump_profile", params=query)
            assert f"member-{member}.pstats" in dump.headers["content-disposition"]
            file = tmp_path / "dump.pstats"
            file.write_bytes(dump.content)
            found = io.StringIO()
            pstats.Stats(str(file), stream=found).print_stats()
            assert "function calls" in found.getvalue()
        missing = await served.client.get("/heap_profile", params={"member": 3})
        assert missing.status_code == 404
        assert missing.json()["what"] == "unknown member 3: expected 0 to 2"


async def test_rows_come_in_once(serve: Serve) -> None:
    """FT-API-7, DBSP-REQ-8: pushed at the coordinator they land at a member, and again they have no effect."""
    async with serve() as served:
        first = await served.push("a", "p", 0, line("x", 1), line("x", 1, _weight=2))
        assert first.status_code == 200
        again = await served.push("a", "p", 0, line("x", 1), line("x", 1, _weight=2))
        assert again.status_code == 200
        batch = pa.record_batch({"shop": ["z"], "amount": pa.array([7], pa.int64())})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
            writer.write_batch(batch)
        arrow = await served.client.post(
            "/input_endpoint/a",
            params={"producer": "p", "sequence": 1},
            content=bytes(sink.getvalue()),
            headers={"content-type": ARROW["accept"]},
        )
        assert arrow.status_code == 200, arrow.text
        await served.until("SELECT shop, count(*) FROM rows GROUP BY shop ORDER BY 1", [["x", 3], ["z", 2]])
        gap = await served.push("a", "p", 7, line("x", 1))
        assert (gap.status_code, gap.json()["error"], gap.json()["expected"]) == (409, "sequence_gap", 2)
        reused = await served.push("a", "p", 1, line("x", 5))
        assert (reused.status_code, reused.json()["error"], reused.json()["expected"]) == (
            409,
            "sequence_reused",
            2,
        )
        found = await served.client.get("/input_endpoint/a", params={"producer": "p"})
        assert found.json() == {"sequence": 2}


async def test_a_push_that_was_not_answered_is_sent_again_after_a_crash(serve: Serve) -> None:
    """DBSP-REQ-8: a member is killed while it is pushed into; the same numbers again leave no row twice."""
    async with serve(members=2) as served:
        for sequence in range(6):
            pushing = asyncio.create_task(served.push("a", "p", sequence, line("x", sequence)))
            if sequence == 2:
                for member in range(2):
                    psutil.Process(served.run.members.process(member)).kill()
            assert (await pushing).status_code == 200
            assert (await served.push("a", "p", sequence, line("x", sequence))).status_code == 200
        await served.until("SELECT count(*), sum(amount)::BIGINT FROM rows", [[6, 15]])


async def test_an_output_has_the_rows_of_all_members_in_order(serve: Serve) -> None:
    """FT-API-8, DBSP-REQ-10: steps come once and in order, and from any step on, as lines, events and Arrow."""
    async with serve() as served:
        await pushed(served)
        lines = (await served.client.get("/output_endpoint/rows")).text.splitlines()
        steps = [json.loads(each) for each in lines]
        assert [each["step"] for each in steps] == list(range(len(steps)))
        assert sum(len(each["rows"]) for each in steps) == 12
        assert steps[0]["rows"][0].keys() == {"shop", "amount", "_weight"}
        later = (
            await served.client.get("/output_endpoint/rows", params={"from_step": 2, "until_step": 4})
        ).text
        assert later.splitlines() == lines[2:4]
        arrow = await served.client.get("/output_endpoint/rows", headers=ARROW)
        table = pa.ipc.open_stream(arrow.content).read_all()
        assert table["_step"].to_pylist() == [each["step"] for each in steps for _ in each["rows"]]
        events = []
        headers = {"accept": "text/event-stream", "last-event-id": "1"}
        url = "/output_endpoint/rows"
        async with served.client.stream("GET", url, params={"follow": "true"}, headers=headers) as answer:
            async for each in answer.aiter_lines():
                if each.startswith("data: "):
                    events.append(json.loads(each[6:]))
                if len(events) == len(steps) - 2:
                    break
        assert events == steps[2:], "behind the one that was seen last"


async def test_the_end_of_the_circuit_ends_its_streams(serve: Serve) -> None:
    """FT-API-1: shutdown; who follows an output has all of it, and then its end."""
    async with serve() as served:
        following = asyncio.create_task(
            served.client.get("/output_endpoint/totals", params={"follow": "true"})
        )
        await pushed(served)
        assert (await served.client.post("/shutdown")).status_code == 202
        steps = [json.loads(each) for each in (await following).text.splitlines()]
        last = {(row["shop"], row["sales"]): row["_weight"] for each in steps for row in each["rows"]}
        assert last["x", 6] == last["y", 6] == 1


async def test_pause_and_start(serve: Serve) -> None:
    """FT-API-1: paused, rows are taken and no step is made; to do it again changes nothing."""
    async with serve() as served:
        for _ in range(2):
            assert (await served.client.post("/pause")).json() == {"paused": True, "next_step": 0}
        assert (await served.push("a", "p", 0, line("x", 1))).status_code == 200
        assert await served.query("SELECT count(*) FROM rows") == [[0]]
        for _ in range(2):
            assert not (await served.client.post("/start")).json()["paused"]
        await served.until("SELECT count(*) FROM rows", [[1]])


async def test_offsets_say_which_rows_came_in_a_step(serve: Serve) -> None:
    """DBSP-REQ-11: the ranges of all steps together are all pushes, each once."""
    async with serve() as served:
        await pushed(served)
        steps = (await served.client.get("/stats")).json()["next_step"]
        found: dict[int, list[tuple[int, int]]] = {}
        for step in range(steps):
            for each in (await served.client.get(f"/offsets/{step}")).json()["ranges"]:
                if each["input"] == "a" and each["first"] < each["until"]:
                    found.setdefault(each["member"], []).append((each["first"], each["until"]))
        assert sum(until - first for ranges in found.values() for first, until in ranges) == 6
        for ranges in found.values():
            assert [first for first, _ in ranges] == [0, *(until for _, until in ranges[:-1])]
        ahead = await served.client.get("/offsets/1000")
        assert (ahead.status_code, ahead.json()["error"]) == (409, "step_not_there")


async def test_one_input_is_paused_at_all_members(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """FT-API-9: others go on; a member that cannot be told is named, and told when it is there again."""
    from nebuli.http import http_routes, request_parts

    monkeypatch.setattr(request_parts, "PUSH_S", 0.3)
    monkeypatch.setattr(http_routes, "_FORWARD_S", 60.0)  # members may be long in beginning
    async with serve() as served:
        done = (await served.client.post("/pause_input_endpoint/a")).json()
        assert done == {"input": "a", "members": [{"member": each, "done": True} for each in range(3)]}
        full = await served.push("a", "p", 0, line("x", 1))
        assert (full.status_code, full.json()["error"]) == (429, "input_full")
        assert (await served.push("b", "p", 0, line("x", 1))).status_code == 200
        assert (await served.client.post("/start_input_endpoint/a")).status_code == 200
        assert (await served.push("a", "p", 0, line("x", 1))).status_code == 200

        monkeypatch.setattr(http_routes, "_FORWARD_S", 0.3)
        process = psutil.Process(served.run.members.process(1))
        process.suspend()
        partly = await served.client.post("/pause_input_endpoint/a")
        process.resume()
        assert partly.status_code == 503
        assert [each["done"] for each in partly.json()["members"]] == [True, False, True]
        assert partly.json()["what"] == "1 of 3 members have not executed the request: 1"
        assert "did not answer" in partly.json()["members"][1]["why"]
        unknown = await served.client.post("/pause_input_endpoint/nothing")
        assert (unknown.status_code, unknown.json()["error"]) == (404, "unknown_input")


async def test_it_is_scaled_and_an_input_that_is_paused_stays_so(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FT-API-9: also with other members. Nothing that was pushed is lost, or there twice."""
    from nebuli.http import request_parts

    monkeypatch.setattr(request_parts, "PUSH_S", 0.3)
    async with serve(members=2) as served:
        assert (await served.push("b", "p", 0, line("x", 1))).status_code == 200
        assert (await served.client.post("/pause_input_endpoint/a")).status_code == 200
        scaled = await served.client.post("/scale", params={"members": 3})
        assert scaled.status_code == 200, scaled.text
        assert scaled.json().keys() == {"members", "step"}
        assert (await served.client.get("/metadata")).json()["members"] == 3
        for producer in "pqrstu":  # whichever member has its rows
            full = await served.push("a", producer, 0, line("x", 1))
            assert (full.status_code, full.json()["error"]) == (429, "input_full")
        assert (await served.client.post("/start_input_endpoint/a")).status_code == 200
        assert (await served.push("a", "p", 0, line("x", 2))).status_code == 200
        await served.until("SELECT sales, amount FROM totals", [[2, 3]])
        wrong = await served.client.post("/scale", params={"members": 65})
        assert (wrong.status_code, wrong.json()["error"]) == (409, "not_scaled")


@pytest.mark.parametrize(
    ("method", "path", "more", "status", "error"),
    [
        ("GET", "/nothing", {}, 404, "unknown_path"),
        ("GET", "/start", {}, 405, "wrong_method"),
        ("POST", "/query", {"json": {"sql": "SELECT nope FROM rows"}}, 400, "wrong_query"),
        ("POST", "/query", {"json": {"sql": "DROP TABLE rows"}}, 400, "wrong_query"),
        ("POST", "/query", {"content": b"SELECT 1"}, 400, "wrong_body"),
        ("GET", "/query", {}, 400, "wrong_parameter"),
        ("GET", "/output_endpoint/nothing", {}, 404, "unknown_output"),
        ("GET", "/output_endpoint/rows?from_step=-1", {}, 400, "wrong_parameter"),
        ("GET", "/heap_profile?seconds=inf", {}, 400, "wrong_parameter"),
        ("POST", "/input_endpoint/a?producer=p&sequence=0", {"content": b"{}"}, 415, "wrong_content_type"),
        (
            "POST",
            "/input_endpoint/a?producer=p&sequence=0",
            {"content": b'{"other": 1}', "headers": {"content-type": "application/x-ndjson"}},
            400,
            "wrong_rows",
        ),
        (
            "POST",
            "/input_endpoint/a?producer=p&sequence=0",
            {"content": b"no arrow", "headers": {"content-type": ARROW["accept"]}},
            400,
            "wrong_rows",
        ),
    ],
)
async def test_errors_say_what_where_and_what_to_do(
    serve: Serve, method: str, path: str, more: dict[str, object], status: int, error: str
) -> None:
    """All in one shape."""
    async with serve(members=1) as served:
        answer = await served.client.request(method, path, **more)  # type: ignore[arg-type]
        found = answer.json()
        assert (answer.status_code, found["error"]) == (status, error)
        assert found["where"] == f"{method} {path.partition('?')[0]}"
        assert found["what"]
        assert found["do"]
        if "nope" in str(more):
            assert "LINE 1: SELECT nope FROM rows" in found["what"]


async def test_pages_of_others_cannot_ask(serve: Serve) -> None:
    """Neither under a name that they have given this address, nor with a form that they send here."""
    async with serve(members=1) as served:
        port = served.url.rpartition(":")[2]
        rebound = await served.client.post("/shutdown", headers={"host": f"evil.example:{port}"})
        assert (rebound.status_code, rebound.json()["error"]) == (421, "wrong_host")
        for headers in (
            {"origin": "http://evil.example"},
            {"origin": "null"},
            {"sec-fetch-site": "cross-site"},
        ):
            answer = await served.client.post("/shutdown", headers=headers)
            assert (answer.status_code, answer.json()["error"]) == (403, "other_origin")
        for headers in ({"host": f"localhost:{port}"}, {"origin": served.url}):
            assert (await served.client.get("/stats", headers=headers)).status_code == 200


async def test_a_secret_is_asked_for(serve: Serve) -> None:
    """As a bearer token; also for the description."""
    async with serve(members=1, trust=Trust(None, "open sesame")) as served:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic open sesame"}):
            answer = await served.client.get("/openapi.json", headers=headers)
            assert (answer.status_code, answer.json()["error"]) == (401, "secret_needed")
            assert answer.headers["www-authenticate"] == "Bearer"
        told = {"authorization": "Bearer open sesame", "host": "any.example"}
        assert (await served.client.get("/stats", headers=told)).status_code == 200


async def test_bodies_heads_and_connections_are_bounded(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sends too much, or nothing, is told so, or left; others are answered."""
    monkeypatch.setattr(request_guard, "MAX_BYTES", 1000)
    monkeypatch.setattr(request_guard, "BODY_S", 0.3)
    monkeypatch.setattr(http_server, "_HEAD_S", 0.3)
    async with serve(members=1) as served:
        large = await served.push("a", "p", 0, *[line("x", 1)] * 100)
        assert (large.status_code, large.json()["error"]) == (413, "too_large")
        host, _, port = served.url.removeprefix("http://").rpartition(":")
        for sent in (b"", b"GET /sta", b"GET /stats HTTP/1.1\r\nHost: "):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            async with asyncio.timeout(20):
                assert await reader.read() == b""
            writer.close()
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /query HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 90\r\n\r\n{{"
        writer.write(head.encode())
        async with asyncio.timeout(20):
            answer = await reader.readuntil(b"}")
        assert b"408" in answer.splitlines()[0]
        assert b'"too_slow"' in answer
        writer.close()
        assert (await served.client.get("/stats")).status_code == 200


async def test_it_ends_with_its_owner(serve: Serve) -> None:
    """Nobody listens there any more, also if somebody is connected and reads nothing."""
    async with serve(members=1) as served:
        host, _, port = served.url.removeprefix("http://").rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"GET /output_endpoint/rows?follow=true HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
        )
        await writer.drain()
    async with httpx.AsyncClient(base_url=served.url, trust_env=False) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("/stats")
    writer.close()


async def test_whoever_reads_nothing_of_an_output_costs_nothing_and_is_given_up(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are not made into bytes that nobody takes; what was written ends with a line that says why."""
    monkeypatch.setattr(request_guard, "SEND_S", 0.5)
    given_up, break_off = asyncio.Event(), http_server._Impatient._break_off

    def noted(self: http_server._Impatient, last_word: bytes) -> None:
        break_off(self, last_word)
        given_up.set()

    monkeypatch.setattr(http_server._Impatient, "_break_off", noted)
    async with serve(members=1) as served:
        rows, pushes = [line("x" * 200, each) for each in range(2000)], 40  # more than sockets have room for
        host, _, port = served.url.removeprefix("http://").rpartition(":")
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        reader.connect((host, int(port)))
        reader.setblocking(False)
        loop = asyncio.get_running_loop()
        head = f"GET /output_endpoint/rows?follow=true HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n"
        await loop.sock_sendall(reader, head.encode())
        for number in range(pushes):
            assert (await served.push("a", "p", number, *rows)).status_code == 200
        await served.until("SELECT sales FROM totals", [[pushes * len(rows)]])
        await given_up.wait()
        said = b""
        while piece := await loop.sock_recv(reader, 1 << 16):
            said += piece
        reader.close()
        assert said.endswith(b"\r\n0\r\n\r\n"), "it is whole"
        last = json.loads(said.removesuffix(b"\r\n0\r\n\r\n").rpartition(b"\r\n")[2])
        assert (last["error"], "read nothing of this answer for 0.5 s" in last["what"]) == ("too_slow", True)
        assert len(said) < pushes * len(rows) * 220 / 2, "most of it was never made"
        assert (await served.client.get("/stats")).status_code == 200
