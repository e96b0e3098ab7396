"""A started query that is watched: what is done when a worker is lost."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from nebuli.rpc import worker_pb2 as wire
from nebuli.rpc.worker_pb2_grpc import WorkerStub
from tests.nebuli.cli.commands.test_queries import Site, until_told
from tests.support.commands import Command
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    site = Site(tmp_path)
    yield site
    for worker in site.workers:
        if worker.process.poll() is None:
            worker.process.kill()
            worker.end()


def kill(site: Site, number: int) -> None:
    site.workers[number].process.kill()
    site.workers[number].end()


def begin(site: Site, number: int) -> None:
    addresses = ("--data", site.nodes[number], "--grpc", site.grpc[number])
    site.workers[number] = Command("worker", *addresses, directory=site.directory / f"worker{number}")
    site.workers[number].wait_until_said("worker ready")


def started(site: Site, *options: str) -> str:
    """With a sink that takes nothing."""
    site.hold_the_sink()
    id_ = site.run("start", site.topology, site.query, *options).stdout.strip()
    site.wait_for_state(id_, "running")
    return id_


def watcher(site: Site, id_: str, *options: str) -> Command:
    folder = site.directory / "watch"
    folder.mkdir()
    return Command("watch", id_, *options, directory=folder)


def test_a_query_that_lost_its_sink_begins_again_under_its_id(site: Site) -> None:
    """DP-7: by the policy to wait; the id stays, and the deployment is another one."""
    id_ = started(site)
    watching = watcher(site, id_)
    kill(site, 1)
    watching.wait_until_said(f"worker {site.nodes[1]} does not answer")
    site.out.unlink()  # what holds the sink; its successor writes a file
    begin(site, 1)
    ended = watching.end()
    assert ended.exit_code == 0, ended.stderr
    assert "lost the state of sink out: the query starts over, as deployment " in ended.stderr
    assert site.out.read_text("utf-8").count("\n") == 1001
    assert site.status(id_)["state"] == "finished"


def test_what_was_registered_is_what_begins_again(site: Site) -> None:
    """Though its files say by now that there are other rows, and another place for them."""
    id_ = started(site)
    for path, old, new in (
        (site.query, '"input": "in"', '"input": "few"'),
        (site.query, "[", '[{"id": "few", "type": "filter", "input": "in", "predicate": "n < 10"},'),
        (site.topology, "out.csv", "elsewhere.csv"),
    ):
        path.write_text(path.read_text("utf-8").replace(old, new, 1), "utf-8")
    kill(site, 1)
    begin(site, 1)
    site.wait_for_state(id_, "failed")
    site.out.unlink()
    ended = watcher(site, id_).end()
    assert ended.exit_code == 0, ended.stderr
    (changed,) = [
        line
        for line in ended.stderr.splitlines()
        if line.startswith(f"{site.topology} and {site.query} have changed since query {id_} was registered")
    ]
    assert f"'nebuli register {site.topology} {site.query}'" in changed
    assert site.out.read_text("utf-8").count("\n") == 1001
    assert not (site.directory / "elsewhere.csv").exists()
    assert site.status(id_)["state"] == "finished"


def test_who_follows_a_query_hears_what_it_does_when_it_begins_again(site: Site) -> None:
    """DP-8: `nebuli logs --follow ID`; its fragments are others then."""
    id_ = started(site)
    (site.directory / "follow").mkdir()
    following = Command("logs", id_, "--follow", directory=site.directory / "follow")
    until_told(following, "runs")
    watching = watcher(site, id_)
    kill(site, 1)
    watching.wait_until_said(f"worker {site.nodes[1]} does not answer")
    site.out.unlink()
    begin(site, 1)
    until_told(following, "copy/out at " + site.nodes[1] + " finished")
    assert watching.end().exit_code == 0
    following.process.send_signal(signal.SIGINT)
    assert "Traceback" not in following.end().stderr


def test_as_json_each_event_is_a_line(site: Site) -> None:
    id_ = started(site, "--on-loss", "fail")
    watching = watcher(site, id_, "--json")
    kill(site, 1)
    ended = watching.end()
    assert ended.exit_code == 3
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [each["event"] for each in events] == ["said", "failed"]
    assert all(f"worker {site.nodes[1]} does not answer" in each["text"] for each in events)


def test_without_a_watcher_what_was_lost_is_said_and_a_later_one_acts(site: Site) -> None:
    """DP-7: `nebuli status` says what is lost."""
    id_ = started(site)
    kill(site, 1)
    begin(site, 1)
    site.wait_for_state(id_, "failed")
    errors = [each["error"] for each in site.status(id_)["fragments"]]
    assert errors[1] == "its worker was restarted, which lost the state of sink out"
    site.out.unlink()
    ended = watcher(site, id_).end()
    assert ended.exit_code == 0, ended.stderr
    assert site.out.read_text("utf-8").count("\n") == 1001


def fragments_at(site: Site, number: int) -> list[str]:
    with grpc.insecure_channel(site.grpc[number]) as channel:
        statuses = WorkerStub(channel).Status(wire.StatusRequest(), timeout=60)
    return [each.id for each in statuses.fragments]


def test_a_query_that_cannot_be_kept_does_not_begin_again_before_it_can(site: Site) -> None:
    """What workers are given is written down first: else nobody could stop it, and another would begin beside it."""
    id_ = started(site)
    kill(site, 1)
    begin(site, 1)
    site.wait_for_state(id_, "failed")
    in_the_way = site.directory / "state" / "nebuli" / "queries" / f".{id_}.new"
    in_the_way.mkdir()
    ended = site.run("watch", id_)
    assert ended.exit_code == 2
    assert ended.error.startswith(f"cannot save query {id_} in {in_the_way.parent}: Is a directory")
    assert fragments_at(site, 0) == fragments_at(site, 1) == []
    in_the_way.rmdir()
    site.out.unlink()
    assert site.run("watch", id_).exit_code == 0
    assert site.out.read_text("utf-8").count("\n") == 1001


def test_a_deployment_that_was_ended_in_the_middle_is_done_again(site: Site) -> None:
    """A watcher was killed after workers had been given a new one, and before it was started."""
    queries = site.directory / "state" / "nebuli" / "queries"
    first = site.run("register", site.topology, site.query).stdout.strip()
    query = json.loads((queries / f"{first}.json").read_text("utf-8"))
    query["id"] = "b" * 12  # so that this deployment is not its first
    (queries / f"{query['id']}.json").write_text(json.dumps(query), "utf-8")
    ended = site.run("watch", query["id"])
    assert ended.exit_code == 0, ended.stderr
    assert "it was not started" in ended.stderr
    assert site.out.read_text("utf-8").count("\n") == 1001
    assert not any(id_.startswith(f"{first}/") for number in (0, 1) for id_ in fragments_at(site, number))


def test_what_somebody_has_stopped_stays_stopped(site: Site) -> None:
    """Though another worker was away then, and what it had is lost."""
    (site.directory / "numbers.csv").write_text(
        "n\n" + "1\n" * 9_000_000, "utf-8"
    )  # more than a held sink takes
    id_ = started(site)
    kill(site, 1)
    assert site.run("stop", id_).exit_code == 3
    wait_for(lambda: site.status(id_)["fragments"][0]["state"] == "stopped", "stopped")
    before = fragments_at(site, 0)
    for _ in range(2):
        ended = site.run("watch", id_)
        assert ended.exit_code == 1
        assert ended.error == f"fragment copy/in at {site.nodes[0]} stopped: stopped"
        if site.workers[1].process.poll() is not None:
            begin(site, 1)
            site.wait_for_state(id_, "failed")
    assert fragments_at(site, 0) == before


def test_a_query_has_one_watcher(site: Site) -> None:
    """Two would make two deployments, of which each writes the result."""
    id_ = started(site)
    watching = watcher(site, id_)
    kill(site, 1)
    watching.wait_until_said("does not answer")
    ended = site.run("watch", id_)
    assert ended.exit_code == 2
    assert f"query {id_}" in ended.error
    watching.process.kill()
    watching.end()
    begin(site, 1)
    site.out.unlink()
    assert site.run("watch", id_).exit_code == 0


def test_with_the_policy_to_fail_the_query_ends(site: Site) -> None:
    """DP-6: the worker is named."""
    id_ = started(site, "--on-loss", "fail")
    watching = watcher(site, id_)
    kill(site, 1)
    ended = watching.end()
    assert ended.exit_code == 3
    assert ended.error == f"worker {site.nodes[1]} does not answer (the policy is to fail)"


def test_what_cannot_be_replaced_is_named_after_a_while(site: Site) -> None:
    """DP-6: the only source is at the node that is lost."""
    id_ = started(site)
    watching = watcher(site, id_, "--on-loss", "replace", "--patience", "0.5")
    kill(site, 0)
    ended = watching.end()
    assert ended.exit_code == 1
    assert ended.error == (
        f"worker {site.nodes[0]} does not answer; the query cannot be placed on the other nodes: "
        f"only node {site.nodes[0]} has source in"
    )
