"""Services and who calls them: what is misused, what is refused for good, and processes that are killed."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import netchannel
from netchannel import (
    Caller,
    CallFailed,
    CallTimedOut,
    ChannelClosed,
    ChannelInUse,
    HandshakeError,
    MessageTooLarge,
    NetChannelError,
    ReceiverServer,
    Timing,
    Tls,
)
from netchannel.wire.messages import CALL_LIMIT
from tests.support.consumer import TIMING
from tests.support.ports import free_addresses
from tests.support.waiting import until_async

ROOT = Path(__file__).resolve().parents[2]
LONG_S = 60.0


async def never(body: bytes) -> bytes:
    await asyncio.Event().wait()
    return body


# -- misuse


async def test_what_cannot_be_called_is_named_at_once(receiver: ReceiverServer) -> None:
    receiver.register_service("s", bytes.upper)
    caller = Caller(receiver.address)
    with pytest.raises(NetChannelError, match="not entered: use 'async with'"):
        await caller.call("s", b"", deadline_s=1)
    async with caller:
        for arguments, deadline_s, kind, message in (
            (("s", "text"), 1.0, TypeError, "body is 'text': expected bytes"),
            (("s", bytearray(1)), 1.0, TypeError, "expected bytes"),
            (("", b""), 1.0, ValueError, "the channel id '' of 0 characters"),
            (("s", b""), 0.0, ValueError, "deadline_s is 0.0: expected seconds, more than 0"),
            (("s", b""), float("inf"), ValueError, "deadline_s is inf"),
            (
                ("s", bytes(CALL_LIMIT + 1)),
                1.0,
                MessageTooLarge,
                f"{receiver.address} has {CALL_LIMIT + 1} bytes: the limit is {CALL_LIMIT}",
            ),
        ):
            with pytest.raises(kind, match=re.escape(message)):
                await caller.call(*arguments, deadline_s=deadline_s)  # type: ignore[arg-type]  # on purpose
        assert await caller.call("s", b"x", deadline_s=LONG_S) == b"X"
    with pytest.raises(ChannelClosed, match="was closed by this side"):
        await caller.call("s", b"", deadline_s=1)
    for address, kind in (("nowhere", ValueError), (None, TypeError)):
        with pytest.raises(kind):
            await Caller(address).__aenter__()  # type: ignore[arg-type]  # on purpose


async def test_what_cannot_be_registered_is_named_at_once(receiver: ReceiverServer) -> None:
    service = receiver.register_service("s", bytes.upper)
    with pytest.raises(ChannelInUse, match="service 's' is already registered in this process"):
        receiver.register_service("s", bytes.upper)
    with pytest.raises(TypeError, match="answer is 3: expected a function"):
        receiver.register_service("t", 3)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ValueError, match="the channel id '' of 0 characters"):
        receiver.register_service("", bytes.upper)
    await service.close()
    await service.close()
    async with receiver.register_service("s", bytes.upper) as again:
        receiver.register_channel("s")  # ids of channels are others
        assert (again.id, again.error) == ("s", None)


# -- what goes wrong


async def test_what_a_service_gives_in_place_of_bytes_is_told(
    receiver: ReceiverServer, caplog: pytest.LogCaptureFixture
) -> None:
    """To the caller each time, with both numbers where it is too large; in the log once."""

    async def late(body: bytes) -> Any:
        return {"no": "bytes"}

    receiver.register_service("late", late)
    receiver.register_service("at once", lambda body: "text")  # type: ignore[arg-type,return-value]  # on purpose
    receiver.register_service("large", lambda body: bytes(CALL_LIMIT + 1))
    async with Caller(receiver.address) as caller:
        for name, said in (
            ("late", "the answer is a dict: expected bytes"),
            ("at once", "the answer is a str"),
        ):
            for _ in range(3):
                with pytest.raises(CallFailed, match=said):
                    await caller.call(name, b"", deadline_s=LONG_S)
        with pytest.raises(MessageTooLarge, match=f"has {CALL_LIMIT + 1} bytes: the limit is {CALL_LIMIT}"):
            await caller.call("large", b"", deadline_s=LONG_S)
    warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert [message.partition(" failed")[0] for message in warned] == ["service late", "service at once"]


async def test_a_caller_that_is_closed_tells_those_who_wait(receiver: ReceiverServer) -> None:
    receiver.register_service("s", never)
    async with Caller(receiver.address) as caller:
        calling = asyncio.create_task(caller.call("s", b"", deadline_s=LONG_S))
        await asyncio.sleep(0.05)
        await caller.close()
        with pytest.raises(ChannelClosed, match="was closed by this side"):
            await calling


async def test_a_service_whose_work_does_not_end_is_closed_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And its callers are told."""
    let_go = asyncio.Event()
    begun = asyncio.Event()

    async def stubborn(body: bytes) -> bytes:
        begun.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return body

    async with ReceiverServer(timing=Timing(leave_s=0.1)) as receiver, Caller(receiver.address) as caller:
        service = receiver.register_service("s", stubborn)
        calling = asyncio.create_task(caller.call("s", b"", deadline_s=LONG_S))
        await begun.wait()
        await service.close()
        with pytest.raises(CallFailed, match="was closed before it had answered"):
            await calling
        assert "service s: 1 answers have not ended" in caplog.text
        let_go.set()


async def test_secrets_that_differ_are_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async with ReceiverServer(secret="right") as receiver, asyncio.timeout(LONG_S):
        receiver.register_service("s", bytes.upper)
        for secret, said in (("wrong", "different secret"), (None, "requires a secret")):
            async with Caller(receiver.address, secret=secret) as caller:
                for _ in range(2):
                    with pytest.raises(HandshakeError, match=said):
                        await caller.call("s", b"x", deadline_s=10 * LONG_S)
        async with Caller(receiver.address, secret="right") as caller:
            assert await caller.call("s", b"x", deadline_s=LONG_S) == b"X"


async def test_calls_go_over_tls(tls: Tls) -> None:
    """And who has none is told so at once."""
    async with ReceiverServer(tls=tls) as receiver, asyncio.timeout(LONG_S):
        receiver.register_service("s", bytes.upper)
        async with Caller(receiver.address, tls=tls) as caller:
            assert await caller.call("s", b"x" * 1_000_000, deadline_s=LONG_S) == b"X" * 1_000_000
        async with Caller(receiver.address) as caller:
            with pytest.raises(HandshakeError):
                await caller.call("s", b"x", deadline_s=10 * LONG_S)


# -- processes


class Answering:
    """A process that was started."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = b""
        self.address = ""

    def read(self) -> None:
        """Wait until it listens."""
        assert self._process.stdout is not None
        pid, self.address = self._process.stdout.readline().split()
        self.pid = pid.encode()

    def kill(self) -> None:
        """kill -9."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Processes:
    def __init__(self, node: str) -> None:
        self._node = node
        self._running = ExitStack()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    async def start(self, listen: str, role: str, *services: str) -> Answering:
        command = [
            sys.executable,
            "-W",
            "error",
            "-m",
            "tests.support.answering",
            listen,
            role,
            self._node,
            *services,
        ]
        started = Answering(self._popen(command))
        self._running.callback(started.kill)
        await asyncio.to_thread(started.read)
        return started

    def _popen(self, command: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8", cwd=ROOT)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(f"unix:{tmp_path}/node.sock") as running:
        yield running


class Load:
    """Calls without a pause, each of which must be answered with its own body."""

    def __init__(self, caller: Caller, *services: str) -> None:
        self._caller = caller
        self._services = services
        self._over = False
        self.answered = 0
        self.by: dict[bytes, int] = {}

    async def _go_on(self, service: str, number: int) -> None:
        count = 0
        while not self._over:
            body = b"%d/%d" % (number, count)
            by, back = (await self._caller.call(service, body, deadline_s=LONG_S)).split()
            assert back == body
            self.by[by] = self.by.get(by, 0) + 1
            self.answered += 1
            count += 1

    async def run(self, story: Any) -> None:
        async with asyncio.timeout(LONG_S), asyncio.TaskGroup() as group:
            for service in self._services:
                for number in range(20):
                    group.create_task(self._go_on(service, number))
            await story
            self._over = True

    async def reached(self, more: int, by: Answering) -> None:
        """Wait until one process has answered so many."""

        async def holds() -> bool:
            return self.by.get(by.pid, 0) >= more

        await until_async(holds, f"{more} answers")


@pytest.mark.processes
async def test_a_server_is_killed_and_started_again_under_calls(processes: Processes) -> None:
    """Each call is answered, with its own answer, by whichever is there."""
    address = free_addresses(1)[0]
    server = await processes.start(address, "alone", "s")
    async with Caller(address, timing=TIMING) as caller:
        load = Load(caller, "s")

        async def story() -> None:
            running = server
            for _ in range(3):
                await load.reached(100, by=running)
                running.kill()
                await asyncio.sleep(0.2)
                running = await processes.start(address, "alone", "s")
            await load.reached(100, by=running)

        await load.run(story())
        assert len(load.by) == 4


@pytest.mark.processes
async def test_services_of_several_processes_are_called_at_one_address(processes: Processes) -> None:
    """A member is killed and comes back at another port, then the front; calls go on."""
    address = free_addresses(1)[0]
    front = await processes.start(address, "members", "a")
    member = await processes.start("127.0.0.1:0", "node", "b")
    other = await processes.start("127.0.0.1:0", "node", "c")
    async with Caller(address, timing=TIMING) as caller:
        load = Load(caller, "a", "b", "c")

        async def story() -> None:
            for each in (front, member, other):
                await load.reached(50, by=each)
            member.kill()
            again = await processes.start("127.0.0.1:0", "node", "b")
            await load.reached(50, by=again)
            front.kill()
            before = load.by[again.pid]
            await load.reached(before + 50, by=again)
            new_front = await processes.start(address, "members", "a")
            await load.reached(50, by=new_front)

        await load.run(story())
        assert len(load.by) == 5


@pytest.mark.processes
async def test_a_process_that_hangs_is_found_dead(processes: Processes) -> None:
    """Its calls end at their deadline, and later ones find who is there then."""
    server = await processes.start("127.0.0.1:0", "alone", "s")
    async with Caller(server.address, timing=TIMING) as caller:
        await caller.call("s", b"x", deadline_s=LONG_S)
        os.kill(int(server.pid), signal.SIGSTOP)
        with pytest.raises(CallTimedOut) as failure:
            await caller.call("s", b"x", deadline_s=0.3)
        assert failure.value.state == "unanswered"
        with pytest.raises(CallTimedOut):
            await caller.call("s", b"x", deadline_s=4)
        os.kill(int(server.pid), signal.SIGCONT)
        assert await caller.call("s", b"x", deadline_s=LONG_S) == server.pid + b" x"


BLOCKING = """
import asyncio, json, os, threading, netchannel, netchannel.aio
receiver = netchannel.receiver_server()
service = receiver.register_service("s", bytes.upper)
said = []
with netchannel.caller(receiver.address) as caller, netchannel.caller(receiver.address) as other:
    said += [caller.call("s", b"x", deadline_s=60).decode(), other.address == receiver.address]
    other.close()
    threads = [threading.Thread(target=lambda: said.append(caller.call("s", b"y", deadline_s=60).decode()))
               for _ in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    service.close()
    try:
        caller.call("s", b"x", deadline_s=0.2)
    except netchannel.CallTimedOut as error:
        said.append(error.state)

async def main():
    async with netchannel.aio.receiver_server().register_service("t", bytes.lower):
        async with netchannel.aio.caller(receiver.address) as caller:
            return (await caller.call("t", b"X", deadline_s=60)).decode()

said.append(asyncio.run(main()))
open_still = netchannel.caller(receiver.address)
receiver.register_service("u", bytes.upper)
print(json.dumps(said))
"""


@pytest.mark.processes
def test_blocking_objects_call_and_answer_with_the_same_names() -> None:
    """And so do coroutines of other loops; what is not closed is left when the interpreter exits."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCKING],
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=60,
        cwd=ROOT,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == ["X", True, "Y", "Y", "Y", "unregistered", "x"]


def test_the_errors_of_calls_can_be_sent_to_other_processes() -> None:
    """As pickle has them: the sentence, and what tells one from another."""
    timed_out = pickle.loads(pickle.dumps(netchannel.CallTimedOut("too late", "unregistered")))
    failed = pickle.loads(pickle.dumps(netchannel.CallFailed("it failed: KeyError: 3", "KeyError: 3")))
    assert (str(timed_out), timed_out.state) == ("too late", "unregistered")
    assert (str(failed), failed.said) == ("it failed: KeyError: 3", "KeyError: 3")
