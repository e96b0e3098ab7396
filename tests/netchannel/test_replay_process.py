"""Reading what other processes keep, from other processes: ranges at random, kills, forks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import netchannel
from netchannel import SenderServer, Timing
from netchannel.process import services
from tests.support import retainer
from tests.support.retainer import body
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes

COUNT = 600


@pytest.fixture(autouse=True)
def services_left(nothing_left_behind: None) -> Iterator[None]:
    """The process-wide services of the tests' own process end with each test."""
    yield
    services.services.leave()


@contextlib.contextmanager
def keeping(role: str, address: str = "127.0.0.1:0", directory: str = "-") -> Iterator[Any]:
    process = subprocess.Popen(
        [sys.executable, retainer.__file__, role, address, directory, str(COUNT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    try:
        assert process.stdout is not None
        process.address = process.stdout.readline().strip()  # type: ignore[attr-defined]
        yield process
    finally:
        process.kill()
        process.communicate()


READER = """
import hashlib, json, random, sys, netchannel
address, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
draw = random.Random(seed)
found = []
with netchannel.channel_reader(address, "c", codec="bytes") as reader:
    heads = reader.heads(beyond=count - 1, timeout=60)
    for _ in range(20):
        first = draw.randrange(count)
        until = draw.randrange(first, count + 1)
        digest = hashlib.blake2b()
        for number, message in enumerate(reader.read_messages(first, until), first):
            assert message.sequence == number
            digest.update(len(message.batch).to_bytes(8, "little") + message.batch)
        found.append((first, until, digest.hexdigest()))
print(json.dumps(found))
"""


def start(text: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", text, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")


def ended(process: subprocess.Popen[str]) -> Any:
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    return json.loads(out)


def digest_of(first: int, until: int) -> str:
    import hashlib

    digest = hashlib.blake2b()
    for number in range(first, until):
        digest.update(len(body(number)).to_bytes(8, "little") + body(number))
    return digest.hexdigest()


@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize("role", ["receiver", "sender"])
def test_three_processes_read_ranges_at_random(role: str, disk: bool, tmp_path: Path) -> None:
    """CH-REP-1: byte-equal, from a receiver and from a sender that listens."""
    with keeping(role, directory=str(tmp_path) if disk else "-") as process:
        if role == "receiver":
            outbox = netchannel.sender_server().register_channel("c", process.address, codec="bytes")
            for number in range(COUNT):
                outbox.send(body(number))
            outbox.flush()
        readers = [start(READER, process.address, seed, COUNT) for seed in range(3)]
        for reader in readers:
            ranges = ended(reader)
            assert len(ranges) == 20
            for first, until, digest in ranges:
                assert digest == digest_of(first, until)
        if role == "receiver":
            outbox.close()


@pytest.mark.story
def test_a_receiver_is_killed_and_goes_on_from_its_directory(tmp_path: Path, free_address: str) -> None:
    """CH-REP-1, CH-REP-4: its sender and who reads wait for it; every message once, in order."""

    async def produce() -> None:
        async with SenderServer(timing=Timing(backoff_limit_s=0.1)) as sender:
            outbox = sender.register_channel("c", free_address, codec="bytes")
            for number in range(COUNT):
                await outbox.send(body(number))
                if number % 20 == 0:
                    await outbox.flush()
            await outbox.close()

    producing = threading.Thread(target=asyncio.run, args=[produce()])
    producing.start()
    read = []
    consumed = threading.Event()
    allowed = 0

    def consume() -> None:
        with netchannel.channel_reader(free_address, "c", codec="bytes") as reader:
            position = reader.hold("me", holder="test")
            while position < (heads := reader.heads(beyond=position)).head:
                wait_for(lambda at=position: at < allowed, "more is allowed")
                until = min(heads.head, position + 25)
                for message in reader.read_messages(position, until):
                    assert message.sequence == len(read)
                    read.append(bytes(message.batch))
                position = until
                reader.ack("me", position)
        consumed.set()

    consuming = threading.Thread(target=consume)
    consuming.start()
    kills = 0
    while not consumed.is_set():
        with keeping("receiver", free_address, str(tmp_path)):
            goal = len(read) + 60
            allowed = goal + 40
            wait_for(lambda goal=goal: len(read) >= goal or consumed.is_set(), "the stream goes on")
            kills += not consumed.is_set()
    producing.join()
    consuming.join()
    assert kills >= 3
    assert read == [body(number) for number in range(COUNT)]


KILLED = """
import sys, netchannel
reader = netchannel.channel_reader(sys.argv[1], "c", codec="bytes")
position = reader.hold("me", holder="job")
print(position, flush=True)
for message in reader.read_messages(position, reader.heads().head):
    reader.ack("me", message.sequence + 1)
    print(message.sequence, flush=True)
"""


def test_readers_are_killed_and_their_successors_go_on(tmp_path: Path) -> None:
    """CH-REP-4: at what was acknowledged, at once, under the same holder's name."""
    with keeping("sender", directory=str(tmp_path)) as process:
        done = 0
        for _ in range(4):
            reader = start(KILLED, process.address)
            assert reader.stdout is not None
            first = int(reader.stdout.readline())
            assert first in (done, done + 1)
            for number in range(first, first + 10):
                assert int(reader.stdout.readline()) == number
            done = first + 10
            reader.kill()
            done += len(reader.stdout.read().split())  # communicate() leaves out lines that were read ahead
            reader.communicate()
        with netchannel.channel_reader(process.address, "c", codec="bytes") as left:
            heads = left.heads(beyond=COUNT - 1)
            assert heads.oldest in (done, done + 1)
            # The last acknowledgement of a killed reader may come now.
            got = [bytes(found) for found in left.read(done + 1, heads.head)]
            assert got == [body(number) for number in range(done + 1, COUNT)]


FORKED = """
import json, os, sys, netchannel
reader = netchannel.channel_reader(sys.argv[1], "c", codec="bytes")
before = [len(body) for body in reader.read(0, 20)]
into, out = os.pipe()
if not os.fork():
    try:
        reader.heads()
        error = ""
    except netchannel.NetChannelError as raised:
        error = str(raised)
    fresh = netchannel.channel_reader(sys.argv[1], "c", codec="bytes")
    os.write(out, json.dumps([error, [len(body) for body in fresh.read(0, 20)]]).encode())
    fresh.close()
    os._exit(0)
os.wait()
error, child = json.loads(os.read(into, 1 << 16))
after = [len(body) for body in reader.read(0, 20)]
reader.close()
print(json.dumps([error, before == child == after]))
"""


def test_a_forked_child_reads_anew() -> None:
    """CH-FORK-1: and the parent's reader is unharmed."""
    with keeping("sender") as process:
        error, equal = ended(start(FORKED, process.address))
        assert "fork" in error
        assert equal


OTHER_LOOP = """
import asyncio, json, sys, netchannel.aio
async def main():
    async with netchannel.aio.channel_reader(sys.argv[1], "c", codec="bytes") as reader:
        heads = await reader.heads(beyond=49)
        await reader.hold("me")
        found = await reader.locate(0, max_rows=50)
        sizes = [len(body) async for body in reader.read(0, found.until)]
        async for message in reader.read_messages(0, 50):
            break
        await reader.ack("me", 5)
        await reader.forget("me")
        assert await reader.schema() is None
        assert reader.latest.stream == heads.stream
        return sizes
print(json.dumps(asyncio.run(main())))
"""


def test_coroutines_of_another_loop_read() -> None:
    with keeping("sender") as process:
        assert ended(start(OTHER_LOOP, process.address)) == [len(body(number)) for number in range(50)]


BOTH = """
import json, pyarrow as pa, netchannel
receiver, sender = netchannel.receiver_server(), netchannel.sender_server()
kept = receiver.retain_channel("c", netchannel.RetainPolicy())
outbox = sender.register_channel("c", to=receiver.address)
batches = [pa.record_batch({"n": [number]}) for number in range(100)]
outbox.send_many(batches)
outbox.close()
assert kept.heads(beyond=100).ended and kept.latest.rows == 100 and kept.stream == outbox.stream
live = receiver.retain_channel("live", netchannel.RetainPolicy(lease_s=0.05), codec="bytes")
source = sender.register_channel("live", to=receiver.address, codec="bytes")
watchers = [netchannel.channel_reader(receiver.address, "live", codec="bytes") for _ in range(3)]
for number in range(5):
    source.send(b"x")
    assert [each.heads(beyond=number, timeout=60).head for each in watchers] == [number + 1] * 3
watchers[0].hold("me", holder="one")
watchers[0].close()
while True:
    try:
        watchers[1].hold("me", holder="two")
        break
    except netchannel.ChannelInUse as error:
        assert "for 0.0 s" in str(error), error
readers = [netchannel.channel_reader(receiver.address, "c") for _ in range(3)]
for reader in readers:
    assert list(reader.read(10, 20)) == batches[10:20]
    assert reader.schema() == batches[0].schema
try:
    readers[0].heads(beyond=1000, timeout=0.01)
except TimeoutError:
    pass
next(readers[0].read_messages(0, 100))
readers[0].close()
try:
    readers[0].heads()
    error = ""
except netchannel.ChannelClosed as raised:
    error = str(raised)
kept.detach()
print(json.dumps([kept.statistics().received, "closed by this side" in error]))
"""


def test_the_services_of_one_process_keep_and_read() -> None:
    assert ended(start(BOTH)) == [100, True]
