"""Processes that are out of file descriptors: nothing dies, nothing spins, and it goes on when there are some again."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from tempfile import TemporaryFile

import psutil
import pytest

from netchannel import ReceiverServer, SenderServer, Timing
from netchannel.core.control_connection import FOR_CONTROL, greeting

pytestmark = pytest.mark.processes

LIMIT = 256
TIMING = Timing(backoff_limit_s=0.2, handshake_s=1.0)

PRELUDE = """
import asyncio, os, resource, sys, threading, netchannel
if sys.argv[1] == "uvloop":
    from uvloop import run
else:
    from asyncio import run
hoard = []
def take_all():
    try:
        while True:
            hoard.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as error:
        print("taken:", error.strerror, flush=True)
def release():
    while hoard:
        os.close(hoard.pop())
    print("released", flush=True)
def obey(loop, commands):
    for line in sys.stdin:
        loop.call_soon_threadsafe(commands[line.strip()])
def start(**commands):
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, most))
    arguments = asyncio.get_running_loop(), {"take all": take_all, "release": release, **commands}
    threading.Thread(target=obey, args=arguments, daemon=True).start()
""".replace("OPEN_FILES", str(LIMIT))

LOOPS_OWN_SERVER = """
from netchannel.servers import receiver
from netchannel.transports import Listener
async def listen(address, make_protocol):
    server = await asyncio.get_running_loop().create_server(make_protocol, "127.0.0.1", 0, backlog=1024)
    return Listener(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", server.close)
receiver.listen = listen
"""

RECEIVER = """
async def consume(inbox):
    async for body in inbox:
        print(inbox.id, bytes(body).decode(), flush=True)
    print(inbox.id, "ended", flush=True)
async def main():
    start()
    async with netchannel.ReceiverServer(max_connections=int(sys.argv[2]) or None) as receiver:
        print(receiver.address, flush=True)
        await asyncio.gather(*[consume(receiver.register_channel(c, codec="bytes")) for c in ("old", "new")])
run(main())
"""

SENDER = """
async def main():
    stop = asyncio.Event()
    timing = netchannel.Timing(backoff_limit_s=0.2)
    async with netchannel.SenderServer(timing=timing) as sender:
        channels = {}
        def produce(name, to):
            async def work():
                if name not in channels:
                    channels[name] = sender.register_channel(name, to=to, codec="bytes")
                await channels[name].send(b"from " + name.encode())
                await channels[name].flush()
            tasks.append(asyncio.create_task(work()))
        tasks = []
        start(old=lambda: produce("old", sys.argv[2]), new=lambda: produce("new", sys.argv[3]), stop=stop.set)
        print("ready", flush=True)
        await stop.wait()
        await asyncio.gather(*tasks, *[channel.close() for channel in channels.values()])
run(main())
"""


class Script:
    """A process that is told by lines and answers by lines."""

    def __init__(self, process: Process) -> None:
        self.process = process

    async def says(self) -> str:
        """Its next line."""
        assert self.process.stdout is not None
        return (await self.process.stdout.readline()).decode().strip()

    def tell(self, command: str) -> None:
        """Give it a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n".encode())

    async def do(self, command: str, answer: str) -> None:
        """Give it a command, and wait for the answer."""
        self.tell(command)
        assert await self.says() == answer

    async def processor_share(self, window_s: float = 1.0) -> float:
        """How much of a processor it takes, measured for a while."""
        process = psutil.Process(self.process.pid)
        before = process.cpu_times()
        await asyncio.sleep(window_s)
        after = process.cpu_times()
        return (after.user + after.system - before.user - before.system) / window_s


@contextmanager
def silent_connections(address: str, count: int) -> Iterator[None]:
    """Connections that say nothing."""
    host, port = address.split(":")
    with ExitStack() as open_ones:
        for _ in range(count):
            open_ones.enter_context(socket.create_connection((host, int(port))))
        yield


@asynccontextmanager
async def running(text: str, *arguments: str, told: list[str]) -> AsyncIterator[Script]:
    """A process on the same kind of event loop as the test, which ends well; ``told`` gets its lines of errors."""
    loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
    with TemporaryFile() as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PRELUDE + text, loop, *arguments, stdin=PIPE, stdout=PIPE, stderr=errors
        )
        try:
            async with asyncio.timeout(40):
                yield Script(process)
                await process.communicate()
        except BaseException:
            process.kill()
            await process.communicate()
            raise
        errors.seek(0)
        told += errors.read().decode().splitlines()
    assert process.returncode == 0, told


@asynccontextmanager
async def script(text: str, *arguments: str) -> AsyncIterator[Script]:
    """The same, of a process that says at most what it should."""
    told: list[str] = []
    async with running(text, *arguments, told=told) as process:
        yield process
    expected = "cannot accept connections|connections are open"
    assert [line for line in told if not re.search(expected, line)] == []
    assert len(told) <= 2  # one warning per episode


OUT = "taken: Too many open files"


async def is_answered_later(receiver: Script, address: str) -> bool:
    """Whether a peer that dials a receiver without descriptors hears from it once there are some again."""
    host, port = address.split(":")
    await receiver.do("take all", OUT)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(greeting(FOR_CONTROL))
    assert await receiver.processor_share() < 0.5
    await receiver.do("release", "released")
    try:
        return bool(await reader.read(1))
    except ConnectionError:
        return False
    finally:
        writer.close()


async def test_who_comes_while_there_are_no_descriptors_waits_and_is_served() -> None:
    """CH-BAD-3: it is not hung up on, and need not come again."""
    async with script(RECEIVER, "0") as receiver, SenderServer(timing=TIMING) as sender:
        address = await receiver.says()
        assert await is_answered_later(receiver, address)
        for name in ("old", "new"):
            await sender.register_channel(name, to=address, codec="bytes").close()
            assert await receiver.says() == f"{name} ended"


async def test_the_event_loops_own_servers_would_not_do() -> None:
    """CH-BAD-3: uvloop's hangs up on who waits; asyncio's logs an error for every place of its backlog."""
    own, told = type(asyncio.get_running_loop()).__module__.partition(".")[0], []
    if own == "asyncio" and sys.version_info >= (3, 12):
        return  # what asyncio's does is known of Python 3.11, and no promise
    async with running(LOOPS_OWN_SERVER + RECEIVER, "0", told=told) as receiver:
        address = await receiver.says()
        assert await is_answered_later(receiver, address) is (own == "asyncio")
        async with SenderServer(timing=TIMING) as sender:
            for name in ("old", "new"):
                await sender.register_channel(name, to=address, codec="bytes").close()
                assert await receiver.says() == f"{name} ended"
    assert (len(told) > 1000) is (own == "asyncio")


@pytest.mark.timed
async def test_a_receiver_out_of_descriptors_goes_on_and_takes_new_channels_later() -> None:
    """CH-BAD-3: its own files have them all. New connections wait, the old channel does not, the loop is idle."""
    async with script(RECEIVER, "0") as receiver, SenderServer(timing=TIMING) as sender:
        address = await receiver.says()
        old = sender.register_channel("old", to=address, codec="bytes")
        await old.send(b"before")
        assert await receiver.says() == "old before"
        await receiver.do("take all", OUT)
        async with SenderServer(timing=TIMING) as another:
            new = another.register_channel("new", to=address, codec="bytes")
            await new.send(b"early")
            assert await receiver.processor_share() < 0.3
            for number in range(100):
                await old.send(b"%d" % number)
                assert await receiver.says() == f"old {number}"
            assert new.statistics().state == "registered"
            await receiver.do("release", "released")
            assert await receiver.says() == "new early"
            await new.close()
            assert await receiver.says() == "new ended"
        await old.close()
        assert await receiver.says() == "old ended"
        assert old.statistics().reconnects == 0


@pytest.mark.timed
async def test_idle_connections_that_take_all_descriptors() -> None:
    """CH-BAD-3: with a limit on connections above that of the process: they are dropped in time, and it heals."""
    async with script(RECEIVER, "1000") as receiver, SenderServer(timing=TIMING) as sender:
        address = await receiver.says()
        old = sender.register_channel("old", to=address, codec="bytes")
        await old.send(b"before")
        assert await receiver.says() == "old before"
        with silent_connections(address, 2 * LIMIT):
            assert await receiver.processor_share() < 0.3
            await old.send(b"meanwhile")
            assert await receiver.says() == "old meanwhile"
        new = sender.register_channel("new", to=address, codec="bytes")
        await new.send(b"later")
        assert await receiver.says() == "new later"
        await new.close()
        assert await receiver.says() == "new ended"
        await old.close()
        assert await receiver.says() == "old ended"
        assert old.statistics().reconnects == 0


async def test_idle_connections_cannot_take_all_descriptors() -> None:
    """CH-BAD-2, CH-BAD-3: by itself a receiver leaves a quarter of them to others, and a real peer gets through."""
    async with script(RECEIVER, "0") as receiver, SenderServer(timing=TIMING) as sender:
        address = await receiver.says()
        with silent_connections(address, 4 * LIMIT):
            for name in ("old", "new"):
                channel = sender.register_channel(name, to=address, codec="bytes")
                await channel.send(b"x")
                assert await receiver.says() == f"{name} x"
                await channel.close()
                assert await receiver.says() == f"{name} ended"
            assert psutil.Process(receiver.process.pid).num_fds() < LIMIT


@pytest.mark.timed
async def test_a_sender_out_of_descriptors_dials_again_when_there_are_some() -> None:
    """CH-BAD-3: its attempts fail at its own pace, what is connected goes on."""
    async with ReceiverServer() as one, ReceiverServer() as other:
        inboxes = {"old": one.register_channel("old", codec="bytes")}
        inboxes["new"] = other.register_channel("new", codec="bytes")
        async with script(SENDER, one.address, other.address) as sender:
            assert await sender.says() == "ready"
            sender.tell("old")
            assert await inboxes["old"].recv() == b"from old"
            await sender.do("take all", OUT)
            sender.tell("new")
            assert await sender.processor_share() < 0.3
            sender.tell("old")
            assert await inboxes["old"].recv() == b"from old"
            assert inboxes["new"].statistics().state == "registered"
            await sender.do("release", "released")
            assert await inboxes["new"].recv() == b"from new"
            sender.tell("stop")
            for inbox in inboxes.values():
                assert [body async for body in inbox] == []
