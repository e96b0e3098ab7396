"""``nebuli top``: rates from two looks, computed by hand, and the channels of queries that run."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from typing import Any

import pytest

from nebuli.cli.rates import Row, rows
from nebuli.rpc import worker_pb2 as wire
from tests.support.commands import Command
from tests.support.fleet import Fleet, MakeFleet
from tests.support.waiting import wait_for

SENDER, RECEIVER = wire.Channel.SIDE_SENDER, wire.Channel.SIDE_RECEIVER


def look(at_s: float, *channels: wire.Channel) -> wire.ChannelsReply:
    return wire.ChannelsReply(at=int(at_s * 1e9), channels=channels)


def test_both_ends_of_a_channel_are_one_row() -> None:
    """Of 150 messages 140 have arrived, of which 25 are not read: 35 are still to be read."""
    before = {"a": look(10, wire.Channel(id="c", side=SENDER, state="attached", sent=50, bytes=1000))}
    now = {
        "a": look(
            12,
            wire.Channel(
                id="c",
                side=SENDER,
                state="attached",
                sent=150,
                received=140,
                acknowledged=120,
                bytes=7000,
                buffered_messages=30,
                buffered_bytes=600,
                in_flight=10,
                reconnects=2,
            ),
        ),
        "b": look(
            99, wire.Channel(id="c", side=RECEIVER, state="attached", received=140, buffered_messages=25)
        ),
    }
    assert rows(now, before) == [
        Row(
            channel="c",
            start="a",
            end="b",
            state="attached",
            messages_per_s=50.0,
            bytes_per_s=3000.0,
            buffered_messages=30,
            buffered_bytes=600,
            disk_bytes=0,
            in_flight=10,
            lag=35,
            reconnects=2,
            dropped=0,
            starved=False,
        )
    ]


def test_a_channel_whose_sender_is_unknown_is_its_receivers() -> None:
    before = {"b": look(0, wire.Channel(id="c", side=RECEIVER, received=10, bytes=100))}
    now = {"b": look(4, wire.Channel(id="c", side=RECEIVER, received=30, bytes=500, buffered_messages=3))}
    (row,) = rows(now, before)
    assert (row.start, row.end, row.lag) == (None, "b", 3)
    assert (row.messages_per_s, row.bytes_per_s) == (5.0, 100.0)


@pytest.mark.parametrize(
    "before",
    [
        {},
        {"a": look(0)},
        {"a": look(0, wire.Channel(id="c", side=SENDER, sent=99, bytes=9))},
        {"z": look(0, wire.Channel(id="c", side=SENDER, sent=1, bytes=1))},
    ],
)
def test_there_is_no_rate_where_there_is_nothing_to_compare_with(
    before: dict[str, wire.ChannelsReply],
) -> None:
    """Before the second look, and where the channel or its worker began anew in between."""
    (row,) = rows({"a": look(1, wire.Channel(id="c", side=SENDER, sent=5, bytes=5))}, before)
    assert (row.messages_per_s, row.bytes_per_s) == (None, None)


def running(fleet: Fleet, *, rows_per_s: float | None, sink: dict[str, Any]) -> str:
    """A query without an end, on a fleet; its id."""
    source = {"logical": "numbers", "type": "Generator"}
    fleet.data["nodes"][0]["physical"] = [
        source if rows_per_s is None else source | {"rows_per_s": rows_per_s}
    ]
    fleet.data["nodes"][1]["sinks"] = [{"name": "out", **sink}]
    fleet.topology = fleet.written()
    fleet.start()
    return fleet.run("start", fleet.topology, fleet.query).stdout.strip()


@pytest.mark.processes
def test_the_rates_of_a_query_that_runs_are_those_of_its_source(make_fleet: MakeFleet) -> None:
    """50 000 rows per second, each of two numbers of 8 bytes: 0.8 MB/s, of which nothing is left behind."""
    fleet = make_fleet()
    id_ = running(fleet, rows_per_s=50_000, sink={"type": "Null", "mode": "changes"})

    def steady() -> bool:
        (query,) = fleet.json("top", id_, "--once")["queries"]
        (channel,) = query["channels"]
        assert (channel["channel"], channel["from"], channel["to"]) == ("copy/in>out", *fleet.nodes)
        return channel["state"] == "attached" and 0.4e6 < (channel["bytes_per_s"] or 0) < 1.6e6

    wait_for(steady, "about 0.8 MB/s")
    text = fleet.run("top", "--once", "--interval", "0.5")
    assert text.exit_code == 0
    first, _, header, _, row = text.stdout.splitlines()
    assert first == f"query {id_} (copy) is running"
    assert header.split()[:4] == ["channel", "from", "to", "state"]
    assert row.split()[:4] == ["copy/in>out", *fleet.nodes, "attached"]


@pytest.mark.processes
def test_a_stalled_reader_is_seen_and_the_policy_of_the_query_bounds_what_waits(
    make_fleet: MakeFleet,
) -> None:
    """max_messages of the query, over that of its node: no more than 3 messages are kept, and the lag is theirs."""
    fleet = make_fleet(channels={"buffer": {"max_messages": 50}})
    policy = {"channels": {"of": {"in": {"buffer": {"max_messages": 3}}}}}
    fleet.query.write_text(json.dumps(policy | json.loads(fleet.query.read_text("utf-8"))), "utf-8")
    os.mkfifo(fleet.out)
    id_ = running(fleet, rows_per_s=None, sink={"type": "CSV", "path": str(fleet.out), "mode": "changes"})

    def is_full() -> bool:
        (query,) = fleet.json("top", id_, "--once", "--interval", "0.2")["queries"]
        (channel,) = query["channels"]
        assert channel["buffered_messages"] <= 3
        return channel["buffered_messages"] == 3 <= channel["lag"] and channel["messages_per_s"] == 0

    wait_for(is_full, "a channel that is full, and stands still")
    fleet.out.open("rb", buffering=0).close()
    fleet.run("stop", id_)


@pytest.mark.processes
def test_a_worker_that_is_gone_is_named_and_the_other_end_is_shown(make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    id_ = running(fleet, rows_per_s=1000, sink={"type": "Null"})
    fleet.workers[1].process.kill()
    fleet.workers[1].process.wait()
    ended = fleet.run("top", id_, "--once", "--interval", "0.1")
    assert ended.exit_code == 3
    assert f"worker {fleet.nodes[1]} does not answer" in ended.error
    assert ended.stdout.splitlines()[-1].split()[:3] == ["copy/in>out", fleet.nodes[0], "?"]
    (query,) = fleet.json("top", id_, "--once", "--interval", "0.1")["queries"]
    assert query["state"] == "unreachable"
    assert len(query["unreachable"]) == 1


@pytest.mark.processes
@pytest.mark.parametrize(
    ("columns", "hidden"),
    [(160, None), (60, b"no room for from, to, "), (25, b"no room for from, to, ")],
)
def test_the_live_view_is_drawn_again_and_again_until_it_is_interrupted(
    columns: int, hidden: bytes | None, make_fleet: MakeFleet
) -> None:
    """With a line for each channel, however narrow the terminal is."""
    fleet = make_fleet()
    id_ = running(fleet, rows_per_s=1000, sink={"type": "Null"})
    drawn = live_view(id_, columns, 3, TERM="xterm")
    assert f"query {id_} (copy)"[: columns - 1].encode() in drawn
    assert hidden is None or hidden in drawn
    assert (hidden is None) is (b"no room" not in drawn)
    assert b"\x1b[?1049h" in drawn  # the terminal's other screen
    screens = re.sub(rb"\x1b\[H", b"\n", drawn)
    lines = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", screens).decode(errors="replace").splitlines()
    assert max(map(len, lines)) <= columns
    assert sum("copy/in>out" in line for line in lines) >= 3


@pytest.mark.processes
def test_a_terminal_that_knows_lines_only_gets_one_look_after_the_other(make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    id_ = running(fleet, rows_per_s=1000, sink={"type": "Null"})
    assert b"\x1b" not in live_view(id_, 160, 3, TERM="dumb")


def live_view(id_: str, columns: int, looks: int, **environment: str) -> bytes:
    """What is written to a terminal of so many columns, until so many looks are there."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    command = [sys.executable, "-m", "nebuli", "top", id_, "--interval", "0.1"]
    known = {name: text for name, text in os.environ.items() if name not in ("COLUMNS", "LINES")}
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=known | environment
    ) as process:
        os.close(theirs)
        drawn = b""
        while drawn.count(b"copy/in>out") < looks:
            drawn += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert process.stderr.read().strip() == b"interrupted"
        assert process.wait(60) == 130
    os.close(ours)
    return drawn


@pytest.mark.processes
def test_without_a_terminal_it_says_what_to_give(make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    assert "no query is registered" in fleet.run("top", "--once").error
    fleet.start()
    fleet.run("register", fleet.topology, fleet.query)
    ended = fleet.run("top")
    assert ended.exit_code == 2
    assert "give --once or --json" in ended.error


@pytest.mark.processes
def test_json_is_a_line_per_look(make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    id_ = running(fleet, rows_per_s=1000, sink={"type": "Null"})
    command = [sys.executable, "-m", "nebuli", "top", id_, "--json", "--interval", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        looks = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert [look["queries"][0]["id"] for look in looks] == [id_] * 3


@pytest.mark.processes
def test_a_query_that_begins_again_is_looked_at_where_it_is_now(make_fleet: MakeFleet) -> None:
    """DP-6: the channels of its new deployment, without a new command."""
    fleet = make_fleet()
    id_ = running(fleet, rows_per_s=1000, sink={"type": "Null"})
    command = [sys.executable, "-m", "nebuli", "top", id_, "--json", "--interval", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["queries"][0]["id"] == id_
        fleet.workers[1].process.kill()
        fleet.workers[1].end()
        folder = fleet.directory / "worker1"
        fleet.workers[1] = Command(
            "worker", "--topology", fleet.topology, "--node", fleet.nodes[1], directory=folder
        )
        fleet.workers[1].wait_until_said("worker ready")
        folder = fleet.directory / "watch"
        folder.mkdir()
        watching = Command("watch", id_, directory=folder)
        try:
            watching.wait_until_said("the query starts over, as deployment ")

            def is_seen() -> bool:
                assert process.stdout is not None
                (query,) = json.loads(process.stdout.readline())["queries"]
                ends = [(each["channel"], each["to"], each["state"]) for each in query["channels"]]
                return query["state"] == "running" and ends == [("copy/in>out", fleet.nodes[1], "attached")]

            wait_for(is_seen, "the channel of the new deployment")
        finally:
            watching.process.send_signal(signal.SIGINT)
            watching.end()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
