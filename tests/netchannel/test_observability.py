"""What servers and channels tell of themselves: statistics, metrics, log lines."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pytest

import netchannel
from netchannel import BufferPolicy
from netchannel.core.link import Core, Link
from netchannel.core.messages import encode
from netchannel.core.states import SenderState
from tests.support.world import World

# -- log lines


def lines(caplog: pytest.LogCaptureFixture, pattern: str) -> Iterator[tuple[str, str, str]]:
    """Logger, level and what ``pattern`` finds in the line."""
    for record in caplog.records:
        if found := re.fullmatch(pattern, record.getMessage()):
            yield record.name, record.levelname, found[1]


def test_the_life_of_a_channel_in_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    """CH-OBS-1: one line per change of state, on both sides: both states, why, and how far it has got."""
    caplog.set_level(logging.DEBUG, "netchannel")
    world = World()
    sender, receiver = world.sender("S"), world.receiver()
    consumer, producer = world.inbox(receiver), world.open(sender)
    producer.send(b"x")
    world.run(lambda: producer.channel.acknowledged == 1)
    world.cut(world.wires(control=False)[0], "reset by peer")
    producer.send(b"y")
    world.run(lambda: producer.channel.acknowledged == 2)
    world.cut(world.wires(control=True)[0], "host unreachable")
    producer.send(b"z")
    world.run(lambda: producer.channel.acknowledged == 3)
    producer.channel.finish()
    world.run(lambda: producer.channel.terminal and consumer.channel.terminal)
    world.pass_time(world.timing.idle_s + 1)

    reset = "the data connection to r:1 failed: reset by peer"
    away = "the control connection to r:1 failed: host unreachable"
    assert list(lines(caplog, "channel c to r:1: (.*)")) == [
        ("netchannel", level, change)
        for level, change in (
            ("INFO", "registered -> requested (open; next 1, acknowledged 0)"),
            ("INFO", "requested -> granted (ok; next 1, acknowledged 0)"),
            ("INFO", "granted -> attached (attached; next 1, acknowledged 0)"),
            ("INFO", f"attached -> registered (data lost: {reset}; next 1, acknowledged 1)"),
            ("DEBUG", "registered -> requested (open; next 1, acknowledged 1)"),
            ("INFO", "requested -> granted (ok; next 2, acknowledged 1)"),
            ("INFO", "granted -> attached (attached; next 2, acknowledged 1)"),
            ("INFO", f"attached -> registered (control lost: {away}; next 2, acknowledged 2)"),
            ("DEBUG", "registered -> requested (open; next 3, acknowledged 2)"),
            ("INFO", "requested -> granted (ok; next 3, acknowledged 2)"),
            ("INFO", "granted -> attached (attached; next 3, acknowledged 2)"),
            ("INFO", "attached -> ended (finished; next 3, acknowledged 3)"),
        )
    ]
    data, control = "the data connection from S:2", "the control connection from S at S:0"
    assert list(lines(caplog, "channel c from S at S:.: (.*)")) == [
        ("netchannel", "INFO", change)
        for change in (
            "registered -> granted (grant; next any, acknowledged 0)",
            "granted -> attached (attach; next 0, acknowledged 0)",
            f"attached -> registered (lost: {data} failed: reset by peer; next 1, acknowledged 1)",
            "registered -> granted (grant; next 1, acknowledged 1)",
            "granted -> attached (attach; next 1, acknowledged 1)",
            f"attached -> registered (lost: {control} failed: host unreachable; next 2, acknowledged 2)",
            "registered -> granted (grant; next 2, acknowledged 2)",
            "granted -> attached (attach; next 2, acknowledged 2)",
            "attached -> ended (finish; next 3, acknowledged 3)",
        )
    ]
    assert list(lines(caplog, "S: control connection with receiver r:1 at r:1 is (.*)")) == [
        ("netchannel", "INFO", change)
        for change in ("up", "down: host unreachable", "up", "down: closed by this side")
    ]
    assert list(lines(caplog, "receiver r:1: control connection with S at S:. is (.*)")) == [
        ("netchannel", "INFO", change)
        for change in ("up", "down: host unreachable", "up", "down: the other side hung up")
    ]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_channel_that_is_given_up_says_why(caplog: pytest.LogCaptureFixture) -> None:
    """CH-OBS-1: the line of the last state carries the error that the application gets."""
    caplog.set_level(logging.INFO, "netchannel")
    world = World()
    producer = world.open(world.sender(), fault=netchannel.FaultPolicy(retry=2))
    world.run(lambda: producer.channel.terminal)
    ((name, level, change),) = lines(caplog, "channel c to r:1: (.*)")
    assert (name, level) == ("netchannel", "INFO")
    assert change == f"registered -> broken (give up: {producer.channel.error}; next 0, acknowledged 0)"
    assert "connection refused" in change


def test_a_silent_peer_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """CH-CTL-3, CH-OBS-1: one warning when it dies and one per channel, however long it takes."""
    caplog.set_level(logging.INFO, "netchannel")
    world = World()
    sender, receiver = world.sender("S"), world.receiver()
    world.inbox(receiver)
    producer = world.open(sender)
    world.run(lambda: producer.channel.state is SenderState.ATTACHED)
    world.stalled.add(receiver)
    world.pass_time(120)
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warnings[0] == "S: control connection with receiver r:1 at r:1 is down: not heard of for 5.0 s"
    assert len(warnings) == 2
    assert "channel c to r:1 is not attached for" in warnings[1]
    dead = "control lost: the control connection to r:1 failed: not heard of for 5.0 s"
    assert any(f"attached -> registered ({dead}; next 0" in record.getMessage() for record in caplog.records)


class WebServer(Core):
    """It is no network channel's node, and says so in its own way."""

    def accept(self, remote: str) -> Link:
        return WebAnswer(self, remote)


class WebAnswer(Link):
    def connected(self, now: float) -> None:
        self.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    def get_buffer(self, hint: int) -> memoryview:
        return self.core.slab

    def _received(self, n: int, now: float) -> None:
        pass

    def _lost(self, reason: str, now: float) -> None:
        pass


def test_a_peer_of_another_kind_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """One warning for the channel, with what was wrong, and none for each time that it was dialed."""
    caplog.set_level(logging.INFO, "netchannel")
    world = World()
    web = WebServer("web", world.timing, world.wall, world.random.randbytes)
    world.cores.append(web)
    world.listening["r:1"] = web  # type: ignore[assignment]
    world.open(world.sender())
    world.pass_time(120)
    ((_, level, reason),) = lines(caplog, "channel c to r:1 is not attached for . s: (.*)")
    assert level == "WARNING"
    assert "length does not match its check" in reason
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == [caplog.records[-1]]


def test_drops_are_warned_of_once_on_both_sides(caplog: pytest.LogCaptureFixture) -> None:
    """CH-BUF-2: one warning per episode, however many gaps there are; the counters tell how many messages."""
    world = World()
    receiver = world.receiver()
    consumer = world.inbox(receiver, buffer=BufferPolicy(max_messages=1))
    producer = world.open(world.sender(), buffer=BufferPolicy(max_messages=4, when_full="drop_oldest"))
    world.run(lambda: producer.channel.state is SenderState.ATTACHED)
    for _ in range(10):
        for _ in range(10):
            assert producer.channel.make_room(1)
            producer.send(b"x")
        world.settle()
        consumer.read()
        world.settle()
    told = [record.getMessage() for record in caplog.records if "drop" in record.getMessage()]
    assert len(told) == 2
    assert "channel c to r:1 drops messages" in told[0]
    assert "channel c: its sender drops messages, first" in told[1]
    assert consumer.channel.dropped > 20


def test_a_strangers_name_stays_on_its_line(caplog: pytest.LogCaptureFixture) -> None:
    """What a peer calls itself cannot look like another line of the log, nor fill it."""
    caplog.set_level(logging.DEBUG, "netchannel")
    world = World()
    receiver = world.receiver()
    for name in ("a\nnetchannel: all is well", "n" * 60_000):
        control = receiver.accepted(receiver.accept("evil:1"), 0)
        control.connected(world.now)
        hello = {"version": 1, "node": name, "dead_after_ms": 5000, "nonce": bytes(16), "secret": False}
        data = encode({"t": "hello", **hello})
        control.get_buffer(len(data))[: len(data)] = data
        control.received(len(data), world.now)
        control.lost("gone", world.now)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4
    assert all("\n" not in line and len(line) < 500 for line in said)
