"""Channels between hosts whose packets get lost, late, out of order, or vanish in one direction."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.hosts.actors import Actor, Producer, read_by
from tests.support.hosts import Host, Link
from tests.support.relay import HEALTHY, Faults
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes

SIZE = 1000
ALL = Faults(loss=1.0)
"""Everything vanishes."""
PATIENT_S = 5.0
"""How long servers wait for a word by default."""
IMPATIENT_S = 1.0
SILENCE = r"no sign of life for \d\.0 s|messages sent to it are not acknowledged"
ENDED = "closed by this side|the other side hung up|reset by peer"


@pytest.fixture
def stack(link: Link) -> Iterator[ExitStack]:
    """Is left before the link is removed."""
    with ExitStack() as stack:
        yield stack


class Pair:
    """A producer on the first host, a consumer on the second, and their channels."""

    def __init__(self, hosts: list[Host], stack: ExitStack, folder: Path, dead_after_s: float) -> None:
        self.sender, self.receiver = hosts[:2]
        self.address = f"{self.receiver.address}:9000"
        self._stack, self._folder, self._dead_after_s = stack, folder, dead_after_s

    def consume(self, *channels: str, size: int = SIZE, name: str = "consumer") -> Actor:
        arguments = (str(self._folder), self.address, str(size), *channels)
        files = self._folder / name
        actor = Actor(self.receiver, "consumer", *arguments, files=files, dead_after_s=self._dead_after_s)
        return self._stack.enter_context(actor)

    def produce(self, *channels: str, count: int = 0, size: int = SIZE, rate: int = 0) -> Producer:
        settings = [f"{count},{size},{rate},{id_},{self.address}" for id_ in channels]
        files = self._folder / "producer"
        return self._stack.enter_context(
            Producer(self.sender, *settings, files=files, dead_after_s=self._dead_after_s)
        )

    def read(self, channel: str = "c") -> list[int]:
        return read_by(self._folder / channel)

    def wait_for_more(self, more: int = 50, channel: str = "c") -> None:
        before = len(self.read(channel))
        wait_for(
            lambda: len(self.read(channel)) >= before + more, f"{more} messages behind {before} of {channel}"
        )


def losses(actor: Actor) -> list[str]:
    """Why its control connections were lost, but for the end."""
    found = re.findall(r"control connection with .* is down: (.*)", actor.logged)
    return [why for why in found if not re.search(ENDED, why)]


def noticed(actor: Actor, times: int) -> None:
    """Wait until it has found so often that its peer is silent."""
    wait_for(lambda: len(losses(actor)) >= times, f"loss {times} in {actor.logged}")


def test_packets_that_get_lost_both_ways(
    hosts: list[Host], link: Link, stack: ExitStack, tmp_path: Path
) -> None:
    """CH-SEQ-2: exact and to the end at any loss; connections are given up for silence alone."""
    channels = ("a", "b", "c")
    pair = Pair(hosts, stack, tmp_path, PATIENT_S)
    reading = pair.consume(*channels)
    sending = pair.produce(*channels, rate=100)
    for loss in (0.01, 0.05, 0.2):
        link.spoil(Faults(loss))
        for channel in channels:
            pair.wait_for_more(60, channel)
    sending.stop()
    reading.end()
    for channel in channels:
        assert pair.read(channel) == list(range(sending.number(channel, "sent")))
        silences = [why for why in losses(sending) + losses(reading) if re.search(SILENCE, why)]
        assert sending.number(channel, "reconnects") <= len(silences)


def test_packets_that_are_late_and_out_of_order(
    hosts: list[Host], link: Link, stack: ExitStack, tmp_path: Path
) -> None:
    """CH-CTL-3, CH-SEQ-2: a slow connection is a healthy one, and statistics say how slow it is."""
    link.spoil(Faults(delay_s=(0.05, 0.07), doubled=0.01))
    pair = Pair(hosts, stack, tmp_path, IMPATIENT_S)
    reading = pair.consume("c")
    sending = pair.produce("c", rate=100)
    pair.wait_for_more(200)
    round_trip_s = sending.number("c", "round_trip_min_s")
    sending.stop()
    reading.end()
    assert pair.read() == list(range(sending.number("c", "sent")))
    assert 0.1 <= round_trip_s < 0.5
    assert sending.number("c", "reconnects") == 0
    assert losses(sending) == losses(reading) == []


SINK = """
import socket, sys
with socket.create_server((sys.argv[1], 9001)) as server:
    print("ready", flush=True)
    with server.accept()[0] as source:
        while source.recv(1 << 18):
            pass
        source.send(b"!")
"""
SOURCE = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 9001)) as sink:
    began = time.monotonic()
    sink.sendall(bytes(int(sys.argv[2])))
    sink.shutdown(socket.SHUT_WR)
    sink.recv(1)
    print(time.monotonic() - began)
"""


def plain_socket_s(sender: Host, receiver: Host, size: int) -> float:
    """How long a plain socket takes to bring so many bytes from one to the other, and to hear of it."""
    sink = receiver.start(sys.executable, "-c", SINK, receiver.address, stdout=subprocess.PIPE)
    with sink:
        assert sink.stdout is not None
        sink.stdout.readline()
        command = sender.command(sys.executable, "-c", SOURCE, receiver.address, str(size))
        said = subprocess.run(command, check=True, capture_output=True, encoding="utf-8", timeout=60).stdout
    return float(said)


@pytest.mark.timed
def test_a_long_path_is_filled(hosts: list[Host], link: Link, stack: ExitStack, tmp_path: Path) -> None:
    """What is under way is bounded by TCP and by the producer's buffer, and by no window of ours."""
    size, count = 60_000, 200
    link.spoil(Faults(delay_s=(0.05, 0.05)))
    plain_s = plain_socket_s(*hosts[:2], size * count)
    pair = Pair(hosts, stack, tmp_path, PATIENT_S)
    reading = pair.consume("c", size=size)
    sending = pair.produce("c", count=count, size=size)
    wait_for(pair.read, "the first message")
    began = time.monotonic()
    wait_for(lambda: len(pair.read()) == count, "the last message")
    took_s = time.monotonic() - began
    sending.end()
    reading.end()
    assert took_s < 2 * plain_s + 1


def test_one_direction_alone_is_lost(hosts: list[Host], link: Link, stack: ExitStack, tmp_path: Path) -> None:
    """CH-CTL-3, CH-SEQ-2: both sides notice, one hears nothing, the other's packets are not acknowledged."""
    pair = Pair(hosts, stack, tmp_path, IMPATIENT_S)
    reading = pair.consume("c")
    sending = pair.produce("c", rate=200)
    for times, lost in enumerate([(ALL, HEALTHY), (HEALTHY, ALL)], start=1):
        pair.wait_for_more()
        before = len(losses(sending)), len(losses(reading))
        link.spoil(*lost)
        for actor, already in zip((sending, reading), before, strict=True):
            noticed(actor, already + 1)
        time.sleep(2 * IMPATIENT_S)  # it goes on like that
        assert sending.number("c", "state") != "attached"
        link.heal()
        pair.wait_for_more()
        wait_for(lambda least=times: sending.number("c", "reconnects") >= least, f"reconnect {times}")
    sending.stop()
    reading.end()
    assert pair.read() == list(range(sending.number("c", "sent")))
    for actor in (sending, reading):
        assert any(re.search(SILENCE, why) for why in losses(actor)), actor.logged


def test_the_end_of_a_killed_receiver_is_not_heard(
    hosts: list[Host], link: Link, stack: ExitStack, tmp_path: Path
) -> None:
    """CH-ACK-1, CH-CTL-3: its silence tells of it, and its successor goes on exactly."""
    pair = Pair(hosts, stack, tmp_path, IMPATIENT_S)
    killed = pair.consume("c")
    sending = pair.produce("c", rate=200)
    pair.wait_for_more()
    link.spoil(HEALTHY, ALL)
    killed.kill()
    noticed(sending, 1)
    assert re.search(SILENCE, losses(sending)[0])
    successor = pair.consume("c", name="successor")
    link.heal()
    pair.wait_for_more()
    sending.stop()
    successor.end()
    assert pair.read() == list(range(sending.number("c", "sent")))


def test_large_packets_vanish(hosts: list[Host], link: Link, stack: ExitStack, tmp_path: Path) -> None:
    """Heartbeats pass and data does not: the channel stays attached, and goes on once TCP looks for smaller packets."""
    size = 20_000
    pair = Pair(hosts, stack, tmp_path, IMPATIENT_S)
    link.spoil(Faults(max_bytes=1200))
    reading = pair.consume("c", size=size)
    sending = pair.produce("c", size=size, rate=20)
    wait_for(lambda: sending.number("c", "sent") * IMPATIENT_S > 30, "what should have arrived")
    assert sending.number("c", "state") == "attached"
    assert sending.number("c", "received") == 0
    assert losses(sending) == losses(reading) == []
    probe = "echo 1 > /proc/sys/net/ipv4/tcp_mtu_probing"
    subprocess.run(hosts[0].command("sh", "-c", probe), check=True, timeout=20)
    pair.wait_for_more(10)
    sending.stop()
    reading.end()
    assert pair.read() == list(range(sending.number("c", "sent")))
