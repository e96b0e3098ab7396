"""What servers and channels tell of themselves: statistics, metrics, log lines."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import subprocess
import sys
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

import netchannel
from netchannel import BufferPolicy, NetChannelError, ReceiverServer, SenderServer, Timing
from netchannel.core.control_connection import RoundTrip
from netchannel.core.link import Core, Link
from netchannel.core.states import SenderState
from netchannel.prometheus import ChannelCollector
from netchannel.transports.lag import Lag
from netchannel.wire.messages import TEXT_LIMIT
from tests.support.forged import forged, proof
from tests.support.waiting import wait_for
from tests.support.world import World

QUICK = Timing(heartbeat_s=0.05)


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until ``condition()`` holds."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - of what has no event to wait for
            await asyncio.sleep(0.005)


def samples(*servers: Any) -> dict[tuple[str, ...], float]:
    """What a scrape gives: values by name and label values, in the order of their labels' names."""
    registry = CollectorRegistry(auto_describe=True)
    registry.register(ChannelCollector(*servers))
    return by_labels(generate_latest(registry).decode())


def by_labels(text: str) -> dict[tuple[str, ...], float]:
    found = [
        ((each.name, *(value for _, value in sorted(each.labels.items()))), each.value)
        for family in parse(text)
        for each in family.samples
    ]
    assert len(dict(found)) == len(found)  # Prometheus takes nothing that is there twice
    return dict(found)


# -- statistics


async def test_servers_know_their_channels_and_peers(receiver: ReceiverServer, sender: SenderServer) -> None:
    """CH-OBS-1: what both servers say agrees with the traffic, and with each other."""
    inbox = receiver.register_channel("c", codec="bytes", ack="explicit")
    outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
    for _ in range(20):
        await outbox.send(bytes(100), b"note")
    await eventually(lambda: outbox.statistics().received == 20)
    assert sender.statistics().channels == {("c", receiver.address): outbox.statistics()}
    assert receiver.statistics().channels == {"c": inbox.statistics()}
    assert sender.statistics().channels["c", receiver.address].bytes == 20 * 104
    for server in (sender, receiver):
        (peer,) = server.statistics().peers
        assert (peer.state, peer.channels) == ("up", 1)
        assert server.statistics().connections == 2
    (to,), (come_from,) = sender.statistics().peers, receiver.statistics().peers
    assert (to.address, to.name.split()[0]) == (receiver.address, "receiver")
    assert come_from.name.split()[0] == "sender"
    # What was written on one side was read on the other, or will be.
    await eventually(lambda: sender.statistics().bytes_sent == receiver.statistics().bytes_received)
    await eventually(lambda: receiver.statistics().bytes_sent == sender.statistics().bytes_received)
    assert 20 * 104 < sender.statistics().bytes_sent < 20 * 104 + 2000
    await outbox.close(grace=0)
    assert sender.statistics().channels == {}
    await inbox.close()
    assert receiver.statistics().channels == {}


async def test_since_and_at_are_on_one_clock(receiver: ReceiverServer, sender: SenderServer) -> None:
    """CH-OBS-1: since when a state lasts."""
    before = time.monotonic()
    receiver.register_channel("c", codec="bytes")
    outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
    await outbox.attached()
    statistics = sender.statistics()
    assert before <= statistics.channels["c", receiver.address].since <= statistics.at <= time.monotonic()
    await outbox.close()


async def test_a_peer_that_is_not_there_is_waited_for(sender: SenderServer, free_address: str) -> None:
    """CH-OBS-1: a peer is known by its address before it is reached."""
    outbox = sender.register_channel("c", to=free_address, codec="bytes")
    await eventually(lambda: sender.statistics().peers[0].state == "waiting")
    (peer,) = sender.statistics().peers
    assert (peer.address, peer.name, peer.channels) == (free_address, "", 1)
    assert (peer.round_trip_s, peer.round_trip_min_s, peer.round_trip_smoothed_s, peer.heard_s) == (None,) * 4
    await outbox.close(grace=0)


async def test_heartbeats_are_timed(address: str) -> None:
    """CH-OBS-1: the round trip is above 0, on both sides, also where the loop's clock counts milliseconds."""
    async with ReceiverServer(address, timing=QUICK) as receiver, SenderServer(timing=QUICK) as sender:
        receiver.register_channel("c", codec="bytes")
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
        await outbox.attached()
        servers = (sender, receiver)
        await eventually(lambda: all(server.statistics().peers[0].round_trip_s for server in servers))
        for server in servers:
            (peer,) = server.statistics().peers
            assert peer.round_trip_s is not None
            assert peer.round_trip_min_s is not None
            assert peer.round_trip_smoothed_s is not None
            assert 0 < peer.round_trip_min_s <= peer.round_trip_s
            assert peer.round_trip_min_s <= peer.round_trip_smoothed_s
            assert peer.heard_s is not None
            assert peer.heard_s >= 0
        await outbox.close()


def test_round_trips_are_smoothed_as_tcp_does() -> None:
    """RFC 6298: an eighth of what is new."""
    round_trip = RoundTrip()
    for seconds in (0.8, 1.6, 0.1):
        round_trip.note(seconds)
    assert (round_trip.last_s, round_trip.smallest_s) == (0.1, 0.1)
    assert round_trip.smoothed_s == pytest.approx(0.9 + (0.1 - 0.9) / 8)


def test_a_round_trip_is_as_long_as_the_way() -> None:
    """CH-OBS-1: both sides measure, in a world where it is known."""
    world = World()
    sender, receiver = world.sender(), world.receiver()
    consumer, producer = world.inbox(receiver), world.open(sender)
    world.run(lambda: producer.channel.state is SenderState.ATTACHED)
    assert consumer.channel.session is not None
    control = sender.peers["r:1", "r:1"].control
    assert control is not None
    # The next ping goes out, and its answer waits for a quarter of a second.
    world.pass_time(world.timing.heartbeat_s - 0.001)
    world.stalled.add(receiver)
    world.pass_time(0.251)
    world.stalled.clear()
    world.settle()
    assert control.round_trip.last_s == pytest.approx(0.25, abs=1e-3)
    assert control.round_trip.smallest_s == 0.0


async def test_reconnects_are_counted(chaos: Any) -> None:
    """CH-OBS-1: after cuts by a proxy both sides have counted reconnects, and every message once."""
    timing = Timing(backoff_limit_s=0.05)
    async with (
        ReceiverServer() as receiver,
        chaos(receiver.address) as proxy,
        SenderServer(timing=timing) as sender,
    ):
        inbox = receiver.register_channel("c", codec="bytes")
        outbox = sender.register_channel(
            "c", to=proxy.address, codec="bytes", buffer=BufferPolicy(max_messages=50)
        )

        async def consume() -> None:
            async for _ in inbox:
                pass

        consuming = asyncio.create_task(consume())
        async with asyncio.timeout(60):
            while proxy.resets < 5 or not outbox.statistics().reconnects:
                await outbox.send(bytes(500))
            await outbox.flush()
        sent, got = outbox.statistics(), inbox.statistics()
        assert 0 < sent.reconnects <= proxy.resets
        assert 0 < got.reconnects <= proxy.resets
        assert sent.sent == sent.acknowledged == got.received == outbox.position
        assert sent.bytes == got.bytes == 500 * outbox.position
        scraped = samples(sender, receiver)
        assert scraped["netchannel_sender_reconnects_total", "c", proxy.address] == sent.reconnects
        assert scraped["netchannel_receiver_messages_total", "c"] == outbox.position
        await outbox.close()
        await consuming


async def test_servers_that_do_not_run_have_no_statistics() -> None:
    """Before and after their context."""
    for server in (SenderServer(), ReceiverServer()):
        with pytest.raises(NetChannelError, match="not running"):
            server.statistics()
        async with server:
            assert server.statistics().channels == {}
        with pytest.raises(NetChannelError, match="not running"):
            server.statistics()
        assert not any(name.startswith("netchannel") for name, *_ in samples(server))


async def test_channels_that_are_over_are_forgotten(receiver: ReceiverServer, sender: SenderServer) -> None:
    """A server that lives on holds no more than it uses, on either side."""
    open_ = sender.register_channel("open", to=receiver.address, codec="bytes")
    receiver.register_channel("open", codec="bytes")
    for number in range(100):
        receiver.register_channel(f"c{number}", codec="bytes")
        outbox = sender.register_channel(f"c{number}", to=receiver.address, codec="bytes")
        await outbox.close()
    assert len(sender._channels) < 20
    assert list(sender.statistics().channels) == [("open", receiver.address)]
    assert list(receiver.statistics().channels) == ["open"]
    await open_.close()


# -- lag of the event loop


async def test_a_loop_that_is_held_up_is_noticed_by_its_deadlines(address: str) -> None:
    """CH-OBS-1: a connection without traffic has heartbeats, which come late."""
    async with ReceiverServer(address, timing=QUICK) as receiver, SenderServer(timing=QUICK) as sender:
        receiver.register_channel("c", codec="bytes")
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
        await outbox.attached()
        with ThreadPoolExecutor(1) as threads:
            # The loop stands until another thread has seen that it does, and then some more.
            threads.submit(
                wait_for, lambda: sender.statistics().loop_lag_s >= 0.05, "the lag is seen"
            ).result()
        time.sleep(0.3)  # noqa: ASYNC251 - what it is about
        servers = (sender, receiver)
        await eventually(lambda: all(server.statistics().loop_lag_max_s >= 0.2 for server in servers))
        assert samples(sender)["netchannel_sender_event_loop_lag_max_seconds",] >= 0.2
        await outbox.close()


async def test_a_consumer_that_blocks_the_loop_is_noticed_at_once(
    receiver: ReceiverServer, sender: SenderServer
) -> None:
    """CH-OBS-1: with traffic, the acknowledgement of what is worked on waits; no heartbeat is needed to see it."""
    inbox = receiver.register_channel("c", codec="bytes")
    outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
    await outbox.attached()
    receiving = asyncio.create_task(_receive_and_block(inbox))
    await outbox.send(b"x")
    await receiving
    await eventually(lambda: receiver.statistics().loop_lag_max_s >= 0.25)
    await outbox.close()


async def _receive_and_block(inbox: netchannel.ReceiverChannel) -> None:
    await inbox.recv()
    time.sleep(0.3)  # noqa: ASYNC251 - what it is about


def test_the_greatest_lag_is_kept_for_a_minute_or_two() -> None:
    """However often it is read, and whether anything was late meanwhile or not."""
    lag = Lag()
    lag.note(0.01, 1000.0)
    lag.note(0.5, 1001.0)
    lag.note(0.02, 1002.0)
    assert lag.last_s == 0.02
    assert [lag.greatest_s(now) for now in (1002.0, 1059.0, 1061.0, 1119.0, 1121.0)] == [
        0.5,
        0.5,
        0.5,
        0.5,
        0,
    ]
    lag.note(0.1, 1070.0)
    assert [lag.greatest_s(now) for now in (1070.0, 1129.0, 1131.0, 1189.0, 1191.0)] == [
        0.5,
        0.5,
        0.1,
        0.1,
        0,
    ]
    lag.note(0.2, 1300.0)
    assert lag.greatest_s(1300.0) == 0.2


# -- Prometheus


async def test_metrics_agree_with_the_traffic(receiver: ReceiverServer, sender: SenderServer) -> None:
    """CH-OBS-1: scraped over HTTP, by a thread of its own, in the text format."""
    inbox = receiver.register_channel("flights", codec="bytes", ack="explicit")
    outbox = sender.register_channel("flights", to=receiver.address, codec="bytes")
    registry = CollectorRegistry(auto_describe=True)
    registry.register(ChannelCollector(receiver, sender))
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        for _ in range(10):
            await outbox.send(bytes(100))
        await eventually(lambda: outbox.statistics().received == 10)
        for _ in range(4):
            await inbox.recv()
        await inbox.ack(3)
        await eventually(lambda: outbox.statistics().acknowledged == 3)
        for _ in range(1027):
            inbox.upquery(b"k=1")
            await asyncio.sleep(0)
        await eventually(lambda: outbox.statistics().upqueries == 1027)
        await eventually(lambda: sender.statistics().peers[0].round_trip_s is not None)
        text = await asyncio.to_thread(_get, f"http://127.0.0.1:{server.server_port}/metrics")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    scraped = by_labels(text)
    to = ("flights", receiver.address)
    assert {name: value for (name, *labels), value in scraped.items() if tuple(labels) == to} == {
        "netchannel_sender_messages_total": 10,
        "netchannel_sender_received_total": 10,
        "netchannel_sender_acknowledged_total": 3,
        "netchannel_sender_bytes_total": 1000,
        "netchannel_sender_buffered_messages": 7,
        "netchannel_sender_buffered_bytes": scraped["netchannel_sender_buffered_bytes", *to],
        "netchannel_sender_disk_bytes": 0,
        "netchannel_sender_in_flight_messages": 7,
        "netchannel_sender_reconnects_total": 0,
        "netchannel_sender_dropped_total": 0,
        "netchannel_sender_shared_bytes_total": 0,
        "netchannel_sender_upqueries_total": 1027,
        "netchannel_sender_upqueries_dropped_total": 3,
        "netchannel_sender_starved": 0,
        "netchannel_sender_state_timestamp_seconds": pytest.approx(time.time(), abs=300),
    }
    # Kept in records of messages that were sent together: at least what is not acknowledged.
    assert 700 <= scraped["netchannel_sender_buffered_bytes", *to] <= 1000
    assert {name: value for (name, *labels), value in scraped.items() if labels == ["flights"]} == {
        "netchannel_receiver_messages_total": 10,
        "netchannel_receiver_acknowledged_total": 3,
        "netchannel_receiver_bytes_total": 1000,
        "netchannel_receiver_buffered_messages": 6,
        "netchannel_receiver_buffered_bytes": 600,
        "netchannel_receiver_reconnects_total": 0,
        "netchannel_receiver_dropped_total": 0,
        "netchannel_receiver_shared_bytes_total": 0,
        "netchannel_receiver_upqueries_total": 1027,
        "netchannel_receiver_starved": 0,
        "netchannel_receiver_state_timestamp_seconds": pytest.approx(time.time(), abs=300),
    }
    states = {
        labels[1]: value for (name, *labels), value in scraped.items() if name == "netchannel_sender_state"
    }
    assert states == {"registered": 0, "requested": 0, "denied": 0, "granted": 0, "attached": 1}
    assert scraped["netchannel_sender_control_up", receiver.address] == 1
    assert scraped["netchannel_sender_control_round_trip_seconds", receiver.address] > 0
    assert scraped["netchannel_sender_connections",] == scraped["netchannel_receiver_connections",] == 2
    assert scraped["netchannel_sender_network_sent_bytes_total",] > 1000
    await outbox.close(grace=0)


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


async def test_a_denied_channel_is_visible(receiver: ReceiverServer, sender: SenderServer) -> None:
    """CH-REG-4: nobody has registered it there."""
    outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
    await eventually(lambda: outbox.statistics().state == "denied")
    assert samples(sender)["netchannel_sender_state", "c", "denied", receiver.address] == 1
    await outbox.close(grace=0)


async def test_channels_that_are_over_have_no_series(receiver: ReceiverServer, sender: SenderServer) -> None:
    """The number of series is bounded by the number of open channels."""
    for number in range(5):
        inbox = receiver.register_channel(f"c{number}", codec="bytes")
        outbox = sender.register_channel(f"c{number}", to=receiver.address, codec="bytes")
        await outbox.attached()
        names = [name for name, *_ in samples(sender, receiver)]
        assert names.count("netchannel_sender_messages_total") == 1
        assert names.count("netchannel_receiver_messages_total") == 1
        await outbox.close()
        assert [part async for part in inbox] == []
        assert not any(f"c{number}" in key for key in samples(sender, receiver))


async def test_channels_come_and_go_while_they_are_scraped(
    receiver: ReceiverServer, sender: SenderServer, eager_threads: None
) -> None:
    """A scrape comes from a thread of its own, at any moment, and does not wait for the event loop."""
    collector = ChannelCollector(sender, receiver)

    def scrape() -> None:
        for _ in range(300):
            list(collector.collect())

    scraping = asyncio.create_task(asyncio.to_thread(scrape))
    open_: deque[netchannel.SenderChannel] = deque()
    for number in itertools.count():
        receiver.register_channel(f"c{number}", codec="bytes")
        open_.append(sender.register_channel(f"c{number}", to=receiver.address, codec="bytes"))
        if scraping.done():
            break
        if len(open_) > 20:
            await open_.popleft().close()
    await scraping
    await asyncio.gather(*(outbox.close() for outbox in open_))


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


async def test_two_senders_of_one_process_are_one_peer_in_metrics(receiver: ReceiverServer) -> None:
    """They call themselves the same: one series, of the one that was heard of last."""
    async with SenderServer() as first, SenderServer() as second:
        outboxes = []
        for number, sender in enumerate((first, second)):
            receiver.register_channel(f"c{number}", codec="bytes")
            outboxes.append(sender.register_channel(f"c{number}", to=receiver.address, codec="bytes"))
            await outboxes[-1].attached()
        assert len(receiver.statistics().peers) == 2
        scraped = samples(receiver)
        assert sum(name == "netchannel_receiver_control_up" for name, *_ in scraped) == 1
        for outbox in outboxes:
            await outbox.close()


async def test_openmetrics_takes_the_names_too(receiver: ReceiverServer, sender: SenderServer) -> None:
    """The stricter format, which Prometheus asks for first."""
    receiver.register_channel("c", codec="bytes")
    outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
    await outbox.attached()
    registry = CollectorRegistry(auto_describe=True)
    registry.register(ChannelCollector(sender, receiver))
    families = list(parse_openmetrics(openmetrics.generate_latest(registry).decode()))
    assert all(family.name.startswith("netchannel_") and family.documentation for family in families)
    assert {family.type for family in families} == {"counter", "gauge"}
    await outbox.close()


def test_what_can_be_collected() -> None:
    """One sender, one receiver: two of a kind would have the same names."""
    with pytest.raises(TypeError, match="two of the same kind"):
        ChannelCollector(SenderServer(), SenderServer())
    with pytest.raises(TypeError, match="neither a SenderServer nor"):
        ChannelCollector("127.0.0.1:9001")  # type: ignore[arg-type]


WITHOUT = """
import sys
sys.modules["prometheus_client"] = None
import netchannel, netchannel.aio
try:
    import netchannel.prometheus
except ImportError as error:
    print(error)
"""


@pytest.mark.processes
def test_prometheus_client_is_optional() -> None:
    """`import netchannel` does without it; `netchannel.prometheus` says what to install."""
    assert "pip install 'netchannel[metrics]'" in _printed(WITHOUT)
    assert _printed("import sys, netchannel; print('prometheus_client' in sys.modules)") == "False\n"


PROCESS_WIDE = """
import asyncio, netchannel, netchannel.aio
from prometheus_client import CollectorRegistry, generate_latest
from netchannel.prometheus import ChannelCollector
receiver, sender = netchannel.receiver_server(), netchannel.sender_server()
inbox = receiver.register_channel("c", codec="bytes")
outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
outbox.send(b"x")
outbox.flush()
assert receiver.statistics().channels["c"].received == 1
assert sender.statistics().channels["c", receiver.address].acknowledged == 1
asynchronous = netchannel.aio.receiver_server(), netchannel.aio.sender_server()
assert [len(server.statistics().channels) for server in asynchronous] == [1, 1]
for servers in ((receiver, sender), asynchronous):
    registry = CollectorRegistry()
    registry.register(ChannelCollector(*servers))
    assert registry.get_sample_value("netchannel_receiver_messages_total", {"channel": "c"}) == 1
outbox.close()
print("done")
"""


@pytest.mark.processes
def test_the_process_wide_servers_have_them_too() -> None:
    """SP-API-1: under the same name, for threads and for other loops."""
    assert _printed(PROCESS_WIDE) == "done\n"


def _printed(script: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        encoding="utf-8",
        timeout=30,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


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
            "registered -> attached (attach; next 0, acknowledged 0)",
            f"attached -> registered (lost: {data} failed: reset by peer; next 1, acknowledged 1)",
            "registered -> attached (attach; next 1, acknowledged 1)",
            f"attached -> registered (lost: {control} failed: host unreachable; next 2, acknowledged 2)",
            "registered -> attached (attach; next 2, acknowledged 2)",
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
    assert warnings[0] == "S: control connection with receiver r:1 at r:1 is down: no sign of life for 5.0 s"
    assert len(warnings) == 2
    assert "channel c to r:1 has not been attached for" in warnings[1]
    dead = "control lost: the control connection to r:1 failed: no sign of life for 5.0 s"
    assert any(f"attached -> registered ({dead}; next 0" in record.getMessage() for record in caplog.records)


class WebServer(Core):
    """It is not a network channel's node, and says so in its own way."""

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
    ((_, level, reason),) = lines(caplog, "channel c to r:1 has not been attached for . s: (.*)")
    assert level == "WARNING"
    assert "the server there is not a netchannel server (check the port)" in reason
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
    assert consumer.channel.received + consumer.channel.dropped == consumer.channel.expected


def test_a_strangers_name_stays_on_its_line(caplog: pytest.LogCaptureFixture) -> None:
    """What a peer calls itself cannot look like another line of the log, nor fill it."""
    caplog.set_level(logging.DEBUG, "netchannel")
    world = World()
    receiver = world.receiver()
    for name in ("a\nnetchannel: all is well", "n" * TEXT_LIMIT):
        control = receiver.connections.take_on(receiver.accept("evil:1"), 0)
        control.connected(world.now)
        nonce = world.random.randbytes(16)
        hello = {"version": 1, "node": name, "dead_after_ms": 5000, "nonce": nonce, "secret": False}
        for data in (forged({"t": "hello", **hello}), proof(nonce, b"".join(control.output()))):
            control.get_buffer(len(data))[: len(data)] = data
            control.received(len(data), world.now)
        control.lost("gone", world.now)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4
    assert all("\n" not in line and len(line) < 500 for line in said)
