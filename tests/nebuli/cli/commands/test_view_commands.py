"""``nebuli view`` and ``nebuli run`` with a view, as people type them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
import yaml

from nebuli.cli import saved_queries
from nebuli.cli.commands.groups import view_commands
from nebuli.control import view_addition
from nebuli.control.view_addition import add_views
from nebuli.rpc.trust import Trust
from nebuli.rpc.worker_client import WorkerClient, WorkerRefused
from placement.partial.view_additions import addition_of
from placement.plan import Addition, Fragment
from tests.support.commands import Command, nebuli
from tests.support.fleet import MakeFleet, kept_secret
from tests.support.ports import free_addresses
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


def test_a_query_on_workers_is_read_where_its_view_is_and_shown_with_it(
    make_fleet: MakeFleet, tmp_path: Path
) -> None:
    """PS-GOAL-1: of a thousand keys those that were read are kept. Who has no secret is refused."""
    fleet = make_fleet(secret=kept_secret(tmp_path))
    fleet.data["nodes"][0]["physical"][0]["base"] = True
    fleet.topology = fleet.written()
    operators = [
        {"id": "in", "type": "source", "logical": "numbers"},
        {"id": "tens", "type": "project", "input": "in", "columns": {"n": "n", "ten": "n * 10"}},
        {"id": "rows", "type": "view", "input": "tens", "key": ["n"], "node": fleet.nodes[1]},
    ]
    fleet.query.write_text(json.dumps({"operators": operators}), "utf-8")
    fleet.start()
    id_ = fleet.run("start", fleet.topology, fleet.query).stdout.strip()
    at = ("--at", fleet.nodes[1], "--topology", fleet.topology)

    def get(*arguments: str) -> tuple[str, str]:
        ended = fleet.run("view", "get", *arguments, *at)
        assert ended.exit_code == 0, ended.stderr
        return ended.stdout, ended.stderr

    assert get("rows", "7", "--format", "csv") == ("n,ten\n7,70\n", "1 row, a miss\n")
    assert get("rows", "7", "--json") == (
        json.dumps([{"n": 7, "ten": 70}], indent=2) + "\n",
        "1 row, a hit\n",
    )
    assert get("rows", "5000") == ("no rows\n", "0 rows, a miss\n")
    expected = {"view": "rows", "key": ["n"], "state": "partial", "keys": 2, "lookups": 3, "hits": 1}

    def shown() -> bool:
        (listed,) = fleet.json("view", "list", *at)
        ((topped,),) = [
            each["views"] for each in fleet.json("top", id_, "--once", "--interval", "0.1")["queries"]
        ]
        return listed == topped and expected.items() <= listed.items()

    wait_for(shown, "the view is shown with what was read")
    assert "rows  n    partial  2" in fleet.run("top", id_, "--once", "--interval", "0.1").stdout
    more = tmp_path / "more.json"
    tens = {"id": "by_ten", "type": "view", "input": "tens", "key": ["ten"]}
    more.write_text(json.dumps({"operators": [tens]}), "utf-8")
    for _ in range(2):
        added = fleet.run("view", "add", more, "--query", id_)
        assert added.exit_code == 0, added.stderr
        assert f"view by_ten was added: read it at {fleet.nodes[0]}" in added.stderr
    of_base = ("--at", fleet.nodes[0], "--topology", fleet.topology, "--json")
    assert fleet.run("view", "get", "by_ten", "70", *of_base).stdout == get("rows", "7", "--json")[0]
    more.write_text(json.dumps({"operators": [tens | {"id": "other", "input": "ten"}]}), "utf-8")
    refused = fleet.run("view", "add", more, "--query", id_)
    assert (refused.exit_code, "unknown input 'ten'" in refused.stderr) == (2, True)
    denied = fleet.run("view", "get", "rows", "7", "--at", fleet.nodes[1])
    assert (denied.exit_code, "secret" in denied.error, "with --topology" in denied.error) == (3, True, True)
    wrong = fleet.run("view", "get", "rows", "seven", *at)
    assert (wrong.exit_code, wrong.error.partition(":")[0]) == (2, "'seven' is not a valid n (int64)")
    unknown = fleet.run("view", "get", "others", "7", *at, "--deadline", "0.2")
    assert unknown.exit_code == 2
    assert f"no view 'others' at {fleet.nodes[1]}" in unknown.error
    second = fleet.run("start", fleet.topology, fleet.query)
    assert (
        second.exit_code,
        f"a view 'rows' already exists at this node, in fragment copy/rows (query {id_})" in second.stderr,
    ) == (1, True)
    at_worker = fleet.run("view", "add", more, *at)
    assert (
        at_worker.exit_code,
        "'nebuli view add --query ID' adds views to a query on workers" in at_worker.stderr,
    ) == (2, True)
    for odd in (("get", "rows", "7", "--at", "here"), ("get", "rows", "7", "--deadline", "0")):
        refused = fleet.run("view", *odd)
        assert (refused.exit_code, "Invalid value for" in refused.stderr) == (2, True)
    assert fleet.run("stop", id_).exit_code == 0
    gone = fleet.run("view", "get", "rows", "7", *at, "--deadline", "0.2")
    assert (gone.exit_code, "no view 'rows'" in gone.error) == (2, True)


def test_a_query_that_has_begun_again_and_a_part_that_cannot_take_a_view_are_left_as_they_were(
    make_fleet: MakeFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watcher has deployed the query anew meanwhile: the old fragments are not saved over the new ones."""
    fleet = make_fleet()
    fleet.data["nodes"][0]["physical"][0]["base"] = True
    fleet.topology = fleet.written()
    operators = [
        {"id": "in", "type": "source", "logical": "numbers"},
        {"id": "rows", "type": "view", "input": "in", "key": ["n"]},
    ]
    fleet.query.write_text(json.dumps({"operators": operators}), "utf-8")
    fleet.start()
    query = saved_queries.load(fleet.run("start", fleet.topology, fleet.query).stdout.strip())
    of_evens = [
        {"id": "evens", "type": "filter", "input": "in", "predicate": "n % 2 = 0"},
        {"id": "by_even", "type": "view", "input": "evens", "key": ["n"]},
    ]
    text = json.dumps({"operators": of_evens})

    async def behind_a_watcher(*arguments: Any) -> Addition:
        saved_queries.save(query.model_copy(update={"deployment": "another"}))
        return await add_views(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(view_addition, "add_views", behind_a_watcher)
        with pytest.raises(click.ClickException, match=f"query {query.id} was deployed again meanwhile"):
            asyncio.run(view_commands._add_to(query.id, text, "more.json"))
    now = saved_queries.load(query.id)
    assert (now.deployment, now.plan) == ("another", query.plan)
    saved_queries.save(query)

    async def refused() -> str:
        (fragment,) = query.plan
        assert isinstance(fragment, Fragment)
        addition = addition_of(text, [fragment], "more.json")
        twice = addition.model_copy(update={"operators": (*addition.operators, addition.operators[0])})
        (place,) = query.fragments
        async with WorkerClient(place.node, place.grpc) as worker:
            with pytest.raises(WorkerRefused) as error:
                await worker.add(place.id, 0, twice)
        return str(error.value)

    assert "two nodes have this id" in asyncio.run(refused())
    more = tmp_path / "more.json"
    more.write_text(text, "utf-8")
    assert fleet.run("view", "add", more, "--query", query.id).exit_code == 0
    at = ("--at", fleet.nodes[0], "--format", "csv")
    assert fleet.run("view", "get", "by_even", "4", *at).stdout == "n\n4\n"
    assert fleet.run("view", "get", "rows", "5", *at).stdout == "n\n5\n"
    assert fleet.run("stop", query.id).exit_code == 0


def test_a_run_serves_its_views_until_it_is_interrupted(tmp_path: Path) -> None:
    address, grpc, at = free_addresses(3)
    (tmp_path / "numbers.csv").write_text("n,word\n1,one\n2,two\n2,zwei\n", "utf-8")
    schema = [{"name": "n", "type": "int64"}, {"name": "word", "type": "string"}]
    source = {"logical": "numbers", "type": "CSV", "path": "numbers.csv", "base": True}
    topology = {
        "logical": [{"name": "numbers", "schema": schema}],
        "nodes": [{"address": address, "grpc": grpc, "physical": [source]}],
    }
    operators = [
        {"id": "in", "type": "source", "logical": "numbers"},
        {"id": "words", "type": "view", "input": "in", "key": ["n"], "name": "by_number"},
    ]
    (tmp_path / "topology.yaml").write_text(yaml.safe_dump(topology), "utf-8")
    (tmp_path / "query.json").write_text(json.dumps({"operators": operators}), "utf-8")
    files = tmp_path / "topology.yaml", tmp_path / "query.json"
    run = Command("run", *files, "--serve", at, directory=tmp_path)
    run.wait_until_said(f"view by_number at {at} ", f"nebuli view get by_number N --at {at}")
    found = nebuli("view", "get", "by_number", "2", "--format", "csv", "--at", at, directory=tmp_path)
    assert sorted(found.stdout.splitlines()) == ["2,two", "2,zwei", "n,word"]
    run.process.send_signal(signal.SIGINT)
    assert run.end().exit_code == 130
    for odd, why in (("here", "expected host:port"), ("0.0.0.0:7", "can be reached from other machines")):
        refused = nebuli("run", *files, "--serve", odd, directory=tmp_path)
        assert (refused.exit_code, why in refused.stderr) == (2, True), refused.stderr
    host, _, port = at.partition(":")
    with socket.socket() as probe:
        assert probe.connect_ex((host, int(port))) != 0
    with socket.create_server((host, int(port))):
        for option, why in (("--serve", "cannot serve views at"), ("--http", "--http")):
            taken = nebuli("run", *files, option, at, directory=tmp_path)
            assert taken.exit_code == 3
            assert f"{why} {at}" in taken.stderr


def test_a_run_serves_its_views_over_http_to_whoever_has_the_secret(tmp_path: Path) -> None:
    address, at, http = free_addresses(3)
    source = {"logical": "numbers", "type": "Generator", "count": 9, "base": True}
    topology = {
        "secret": kept_secret(tmp_path, "sesame"),
        "logical": [{"name": "numbers", "schema": [{"name": "n", "type": "int64"}]}],
        "nodes": [{"address": address, "physical": [source]}],
    }
    operators = [
        {"id": "in", "type": "source", "logical": "numbers"},
        {"id": "all", "type": "view", "input": "in", "key": ["n"]},
    ]
    (tmp_path / "query.json").write_text(json.dumps({"operators": operators}), "utf-8")
    (tmp_path / "topology.yaml").write_text(yaml.safe_dump(topology), "utf-8")
    (tmp_path / "open.yaml").write_text(yaml.safe_dump({**topology, "secret": None}), "utf-8")
    query = tmp_path / "query.json"
    exposed = nebuli("run", tmp_path / "open.yaml", query, "--http", "0.0.0.0:7", directory=tmp_path)
    assert (exposed.exit_code, "--http 0.0.0.0:7 " in exposed.stderr) == (2, True)
    assert "can read its views" in exposed.stderr
    run = Command("run", tmp_path / "topology.yaml", query, "--serve", at, "--http", http, directory=tmp_path)
    try:
        run.wait_until_said(f"view all at http://{http}/views/all?key=N")
        url = f"http://{http}/views/all?key=7"
        assert httpx.get(url, trust_env=False).json()["error"] == "secret_needed"
        for secret, status in (("sesame", 200), ("basil", 401)):
            headers = {"authorization": f"Bearer {secret}"}
            assert httpx.get(url, headers=headers, trust_env=False).status_code == status
    finally:
        run.process.send_signal(signal.SIGINT)
    assert run.end().exit_code == 130


@pytest.mark.parametrize("option", ["--serve", "--http"])
def test_an_address_for_views_of_a_query_without_any_is_refused(make_fleet: MakeFleet, option: str) -> None:
    fleet = make_fleet()
    ended = fleet.run("run", fleet.topology, fleet.query, option, "127.0.0.1:0")
    assert ended.exit_code == 2
    assert f"{option} applies to queries in steps and queries with views only" in ended.stderr


def test_a_run_in_steps_serves_its_views_and_goes_on_with_them(tmp_path: Path) -> None:
    """PS-UQ-6: full in steps, with the step in each answer; and in the state that a further run goes on with."""
    (tmp_path / "numbers.csv").write_text("n,word\n1,one\n2,two\n2,zwei\n", "utf-8")
    schema = [{"name": "n", "type": "int64"}, {"name": "word", "type": "string"}]
    source = {"logical": "numbers", "type": "CSV", "path": "numbers.csv"}
    sinks = [{"name": "out", "type": "Null"}]
    topology = {
        "logical": [{"name": "numbers", "schema": schema}],
        "nodes": [{"address": "127.0.0.1:27571", "physical": [source], "sinks": sinks}],
    }
    operators = [
        {"id": "in", "type": "source", "logical": "numbers"},
        {"id": "words", "type": "view", "input": "in", "key": ["n"], "name": "by_number"},
        {"id": "out", "type": "sink", "input": "words", "sink": "out"},
    ]
    (tmp_path / "topology.yaml").write_text(yaml.safe_dump(topology), "utf-8")
    (tmp_path / "query.json").write_text(json.dumps({"operators": operators}), "utf-8")
    files = tmp_path / "topology.yaml", tmp_path / "query.json"
    (tmp_path / "run").mkdir()
    (tmp_path / "watch").mkdir()
    (grpc,) = free_addresses(1)
    for served in (("--serve", grpc), ()):
        run = Command(
            *("run", *files, "--stepped", "--members", "2", "--state", tmp_path / "state", *served),
            directory=tmp_path / "run",
        )
        run.wait_until_said("nebuli view get by_number N", "all inputs have ended")
        said = (tmp_path / "run" / "stderr.txt").read_text("utf-8")
        at = said.partition("view by_number at ")[2].partition(" ")[0]
        found = nebuli("view", "get", "by_number", "2", "--format", "csv", "--at", at, directory=tmp_path)
        assert sorted(found.stdout.splitlines()) == ["2,two", "2,zwei", "n,word"], found.stderr
        step = int(found.stderr.removeprefix("2 rows, a hit, at step "))
        watch = Command("view", "watch", "by_number", "1", "--at", at, directory=tmp_path / "watch")
        line = json.loads(watch.process.stdout.readline())
        assert (line["step"] >= step, line["rows"]) == (True, [{"n": 1, "word": "one"}])
        watch.process.send_signal(signal.SIGINT)
        assert watch.end().exit_code == 130
        (listed,) = json.loads(nebuli("view", "list", "--json", "--at", at, directory=tmp_path).stdout)
        assert (listed["view"], listed["state"], listed["lookups"], listed["hits"]) == (
            "by_number",
            "full",
            2,  # one of them was watched
            2,
        )
        run.process.send_signal(signal.SIGINT)
        assert run.end().exit_code == 130


def test_views_in_steps_on_workers_are_read_at_the_coordinators_node_also_over_kills(
    make_fleet: MakeFleet, tmp_path: Path
) -> None:
    """A member's process is killed, and the coordinator's: reads wait for them. A name is at a node once."""
    fleet = make_fleet(secret=kept_secret(tmp_path))
    operators = [
        {"id": "in", "type": "source", "logical": "numbers"},
        {"id": "tens", "type": "project", "input": "in", "columns": {"n": "n", "ten": "n * 10"}},
        {"id": "rows", "type": "view", "input": "tens", "key": ["n"], "node": fleet.nodes[1]},
    ]
    fleet.query.write_text(json.dumps({"operators": operators}), "utf-8")
    fleet.start()
    started = fleet.run("start", "--stepped", fleet.topology, fleet.query)
    assert started.exit_code == 0, started.stderr
    id_ = started.stdout.strip()
    at = ("--at", fleet.nodes[1], "--topology", fleet.topology)

    def get(key: str) -> str:
        ended = fleet.run("view", "get", "rows", key, *at, "--deadline", "60", "--format", "csv")
        assert ended.exit_code == 0, ended.stderr
        return ended.stdout

    wait_for(lambda: get("7") == "n,ten\n7,70\n", "the row is there")
    fleet.trust = Trust(secret="correct horse")
    for fragment in ("member-1", "coordinator"):
        os.kill(fleet.pid_of(id_, fragment), signal.SIGKILL)
        assert get("9") == "n,ten\n9,90\n", fragment

    def shown() -> bool:
        (listed,) = fleet.json("view", "list", *at)
        return listed["state"] == "full" and listed["lookups"] >= 1 and listed["bytes"] > 0

    wait_for(shown, "the view is shown with what was read, and what it holds")
    second = fleet.run("watch", fleet.run("start", "--stepped", fleet.topology, fleet.query).stdout.strip())
    assert (second.exit_code, "this node already has a view 'rows'" in second.stderr) == (1, True), (
        second.stderr
    )
    assert fleet.run("stop", id_).exit_code == 0
    gone = fleet.run("view", "get", "rows", "7", *at, "--deadline", "0.2")
    assert (gone.exit_code, "no view 'rows'" in gone.error) == (2, True)
