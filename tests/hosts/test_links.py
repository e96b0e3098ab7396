"""Channels between hosts whose links are cut and slow, and whose addresses go and come back."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.hosts.actors import Actor, Producer, read_by
from tests.hosts.producer import BUFFER_BYTES
from tests.support.hosts import Host
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes

SIZE = 1000
RATE = 500
"""Messages in a second, where the link is to be cut in mid-stream."""


@pytest.fixture
def stack(hosts: list[Host]) -> Iterator[ExitStack]:
    """Is left before the hosts are removed."""
    with ExitStack() as stack:
        yield stack


def consumer(
    host: Host, address: str, folder: Path, *channels: str, size: int = SIZE, name: str = "consumer"
) -> Actor:
    return Actor(host, "consumer", str(folder), address, str(size), *channels, files=folder / name)


def wait_until_lost(actor: Actor, times: int) -> None:
    """Until it has found out so often: it heard nothing, or what it sent (heartbeats) was not acknowledged by TCP."""
    lost = re.compile(r"control connection with .* is down: (no sign of life for 1.0 s|messages sent)")
    wait_for(lambda: len(lost.findall(actor.logged)) >= times, f"loss {times}: {actor.logged}")


def wait_for_more(file: Path, more: int = 200) -> None:
    """Until that many messages have come that had not before."""
    before = len(read_by(file))
    wait_for(lambda: len(read_by(file)) >= before + more, f"{more} messages behind {before} in {file}")


def assert_exact(file: Path, count: int) -> None:
    assert count > 0
    assert read_by(file) == list(range(count))


def test_a_link_that_is_cut_in_mid_stream_and_comes_back(
    hosts: list[Host], stack: ExitStack, tmp_path: Path
) -> None:
    """CH-CTL-3, CH-SEQ-2: nobody is told of the cut but by the heartbeat, both sides; it goes on exactly."""
    address = f"{hosts[1].address}:9000"
    reading = stack.enter_context(consumer(hosts[1], address, tmp_path, "c"))
    sending = stack.enter_context(
        Producer(hosts[0], f"0,{SIZE},{RATE},c,{address}", files=tmp_path / "producer")
    )
    wait_for_more(tmp_path / "c")
    for times in (1, 2):
        hosts[1].cut()
        wait_until_lost(sending, times)
        wait_until_lost(reading, times)
        assert sending.number("c", "acknowledged") < sending.number("c", "sent")
        hosts[1].mend()
        wait_for_more(tmp_path / "c")
    sending.stop()
    reading.end()
    assert sending.number("c", "reconnects") >= 2
    assert_exact(tmp_path / "c", sending.number("c", "sent"))


def test_a_slow_link_holds_its_producer_in_bounded_memory_and_nobody_else(
    slow_hosts: list[Host], stack: ExitStack, tmp_path: Path
) -> None:
    """CH-BP-1, CH-DATA-1: from one process to two hosts, one of them behind a link of 1 MB/s."""
    size, count, rate = 60_000, 2_000, 1 << 20
    sender, slow, fast = slow_hosts
    to_slow, to_fast = f"{slow.address}:9000", f"{fast.address}:9000"

    slow.slow_down(f"{rate * 8}bit")
    began = time.monotonic()
    reading = stack.enter_context(consumer(slow, to_slow, tmp_path, "slow", size=size))
    reading_fast = stack.enter_context(consumer(fast, to_fast, tmp_path, "fast", size=size, name="fast read"))
    settings = [f"{count},{size},0,fast,{to_fast}", f"0,{size},0,slow,{to_slow}"]
    sending = stack.enter_context(Producer(sender, *settings, files=tmp_path / "sent"))
    reading_fast.end()
    assert 2 * sending.number("slow", "sent") < count, "who is not slow has all, long before the slow one"
    assert_exact(tmp_path / "fast", count)
    wait_for_more(tmp_path / "slow", 20)
    wait_for(lambda: sending.number("slow", "sent") * size > BUFFER_BYTES, "a buffer that was filled")
    numbers = sending.numbers()["slow"]
    assert numbers["acknowledged"] * size < rate * (time.monotonic() - began)
    assert (numbers["sent"] - numbers["acknowledged"]) * size <= BUFFER_BYTES
    assert sending.peak_bytes() < 150 << 20
    slow.speed_up()
    sending.stop()
    reading.end()
    assert_exact(tmp_path / "slow", sending.number("slow", "sent"))


def test_an_address_that_goes_and_comes_back(hosts: list[Host], stack: ExitStack, tmp_path: Path) -> None:
    """CH-CTL-3, CH-SEQ-2: the same processes go on, although one had no address for a while."""
    address = f"{hosts[1].address}:9000"
    reading = stack.enter_context(consumer(hosts[1], address, tmp_path, "c"))
    sending = stack.enter_context(
        Producer(hosts[0], f"0,{SIZE},{RATE},c,{address}", files=tmp_path / "producer")
    )
    wait_for_more(tmp_path / "c")
    hosts[1].give_up(hosts[1].address)
    wait_until_lost(sending, 1)
    hosts[1].take(hosts[1].address)
    wait_for_more(tmp_path / "c")
    sending.stop()
    reading.end()
    assert sending.number("c", "reconnects") >= 1
    assert_exact(tmp_path / "c", sending.number("c", "sent"))


def test_an_address_that_comes_back_on_another_host(
    hosts: list[Host], stack: ExitStack, tmp_path: Path
) -> None:
    """CH-ACK-1: a consumer whose host is lost is started on another one, at its address, and goes on exactly."""
    moving = hosts[1].address
    address = f"{moving}:9000"
    lost = stack.enter_context(consumer(hosts[1], address, tmp_path, "c"))
    sending = stack.enter_context(
        Producer(hosts[0], f"0,{SIZE},{RATE},c,{address}", files=tmp_path / "producer")
    )
    wait_for_more(tmp_path / "c")
    hosts[1].give_up(moving)  # first, so that no word of the kill leaves the host
    lost.kill()
    before = len(read_by(tmp_path / "c"))
    hosts[2].take(moving)
    successor = stack.enter_context(consumer(hosts[2], address, tmp_path, "c", name="successor"))
    wait_for_more(tmp_path / "c")
    sending.stop()
    successor.end()
    assert sending.number("c", "sent") > before
    assert_exact(tmp_path / "c", sending.number("c", "sent"))
