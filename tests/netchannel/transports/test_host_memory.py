"""Shared memory of processes of one host: what is handed over, what is refused, and what goes on without it."""

from __future__ import annotations

import array
import asyncio
import fcntl
import gc
import logging
import mmap
import os
import re
import signal
import socket
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from netchannel import BufferPolicy, ReceiverChannel, ReceiverServer, SenderChannel, SenderServer, Tls
from netchannel.core.receiving.borrower import Borrower
from netchannel.testing.deadlines import eventually
from netchannel.transports import host_memory
from netchannel.transports.host_memory import SHARED_MEMORY, HostMemory, make_shared_memory
from tests.support.waiting import until_async

LARGE = 1 << 20


def sharing() -> HostMemory:
    made = make_shared_memory(SHARED_MEMORY)
    assert made is not None
    return made


@asynccontextmanager
async def connected(
    *,
    address: str = "127.0.0.1:0",
    sender_memory: int = SHARED_MEMORY,
    receiver_memory: int = SHARED_MEMORY,
    **settings: Any,
) -> AsyncIterator[tuple[SenderChannel, ReceiverChannel, Callable[[], int]]]:
    """Both ends of a channel, and how many bytes have gone over sockets."""
    async with (
        ReceiverServer(address, shared_memory=receiver_memory) as receiver,
        SenderServer(shared_memory=sender_memory) as sender,
    ):
        inbox = receiver.register_channel("c", codec="bytes", **settings)
        outbox = sender.register_channel("c", receiver.address, codec="bytes")
        await outbox.attached()
        yield outbox, inbox, lambda: sender.statistics().bytes_sent


async def exchange(outbox: SenderChannel, inbox: ReceiverChannel, *bodies: bytes) -> list[Any]:
    received = []
    for body in bodies:
        await outbox.send(body)
        received.append(await inbox.recv())
    assert [bytes(each) for each in received] == list(bodies)
    return received


def made(outbox: SenderChannel, body: bytes) -> memoryview:
    """The body in memory that its channel gives."""
    memory = outbox.allocate(len(body))
    memory[:] = body
    return memory


async def once_shared(outbox: SenderChannel, inbox: ReceiverChannel, sent: Callable[[], int]) -> None:
    """Send until bodies go through memory."""

    async def shared() -> bool:
        before = sent()
        await exchange(outbox, inbox, bytes(LARGE))
        return sent() - before < LARGE

    await until_async(shared, "bodies go through memory")


@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_large_bodies_do_not_go_over_the_socket(kind: str, tmp_path: Path) -> None:
    """And arrive, in order with small ones, with their notes."""
    address = "127.0.0.1:0" if kind == "tcp" else f"unix:{tmp_path}/s"
    async with connected(address=address) as (outbox, inbox, sent):
        await once_shared(outbox, inbox, sent)
        before = sent()
        bodies = [os.urandom(size) for size in (1 << 16, 10, LARGE, 8 << 20, 0, LARGE + 7, 3)]
        for body in bodies:
            await outbox.send(body, note=b"of %d" % len(body))
        for body in bodies:
            message = await inbox.recv_message()
            assert (bytes(message.batch), message.note) == (body, b"of %d" % len(body))
        assert sent() - before < LARGE


async def test_both_ends_count_what_went_through_memory() -> None:
    async with connected() as (outbox, inbox, sent):
        await once_shared(outbox, inbox, sent)
        before = outbox.statistics().shared_bytes
        assert inbox.statistics().shared_bytes == before > 0
        await exchange(outbox, inbox, bytes(LARGE), bytes(10), bytes(1 << 16))
        for each in (outbox, inbox):
            assert each.statistics().shared_bytes == before + LARGE + (1 << 16)


@pytest.mark.parametrize(
    "settings",
    [{"sender_memory": 0}, {"receiver_memory": 0}, {"sender_memory": 1 << 16}, {"receiver_memory": 4095}],
    ids=str,
)
async def test_what_finds_no_room_goes_over_the_socket(settings: dict[str, int]) -> None:
    async with connected(**settings) as (outbox, inbox, sent):
        for _ in range(5):
            before = sent()
            await exchange(outbox, inbox, os.urandom(LARGE))
            assert sent() - before > LARGE


async def test_more_than_the_machine_has_leaves_the_socket() -> None:
    """No memory is reserved that the sender cannot map."""
    most = (1 << 63) - 1
    async with connected(sender_memory=most, receiver_memory=most) as (outbox, inbox, sent):
        for _ in range(5):
            before = sent()
            await exchange(outbox, inbox, os.urandom(LARGE))
            assert sent() - before > LARGE


def fails(*_: object) -> Any:
    raise OSError(24, "too many open files")


def to_nobody(address: bytes, token: bytes, descriptor: int) -> None:
    send(b"\0netchannel-nobody", token, descriptor)


def not_sealed(address: bytes, token: bytes, descriptor: int) -> None:
    other = os.memfd_create("t")
    os.ftruncate(other, os.fstat(descriptor).st_size)
    send(address, token, other)
    os.close(other)


send = host_memory._send


@pytest.mark.parametrize(
    ("where", "name", "instead"),
    [
        (HostMemory, "_listen", fails),
        (os, "memfd_create", fails),
        (host_memory, "_send", to_nobody),
        (host_memory, "_send", not_sealed),
    ],
    ids=["nowhere to meet", "no memory", "nobody is there", "not sealed"],
)
async def test_a_step_that_fails_leaves_the_socket(
    where: Any, name: str, instead: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, instead)
    async with connected() as (outbox, inbox, sent):
        for _ in range(4):
            before = sent()
            await exchange(outbox, inbox, os.urandom(LARGE))
            assert sent() - before > LARGE


async def test_processes_of_another_place_share_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And both say so, once."""
    caplog.set_level(logging.INFO, "netchannel")
    async with ReceiverServer() as receiver:
        monkeypatch.setattr(host_memory, "place", lambda: bytes(16))
        async with SenderServer() as sender:
            inbox = receiver.register_channel("c", codec="bytes")
            outbox = sender.register_channel("c", receiver.address, codec="bytes")
            await exchange(outbox, inbox, *[os.urandom(LARGE)] * 4)
            assert sender.statistics().bytes_sent > 4 * LARGE
    assert told(caplog) == ["sender sends no messages", "receiver takes no messages"]


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What is logged of shared memory: whom it is about, and what."""
    lines = [record.getMessage() for record in caplog.records]
    found = [
        re.match(r"(sender|receiver) .* at \S+ (\w+ (?:no )?messages) in shared memory: ", line)
        for line in lines
    ]
    return [" ".join(line.groups()) for line in found if line]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ["sender sends messages", "receiver takes messages"]),
        ({"sender_memory": 0}, ["receiver gets no messages"]),
        ({"receiver_memory": 0}, ["receiver takes no messages", "sender sends no messages"]),
        (
            {"sender_memory": 0, "receiver_memory": 0},
            ["receiver gets no messages", "sender sends no messages"],
        ),
        ({"address": "mem:here", "sender_memory": 0, "receiver_memory": 0}, []),
    ],
    ids=str,
)
async def test_whether_memory_is_shared_is_logged_once(
    settings: dict[str, Any], expected: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Also that it is not: for each control connection, whatever goes over it."""
    caplog.set_level(logging.INFO, "netchannel")
    async with connected(**settings) as (outbox, inbox, sent):
        if not settings:
            await once_shared(outbox, inbox, sent)
        await exchange(outbox, inbox, *[bytes(LARGE)] * 5)
        assert sorted(told(caplog)) == sorted(expected)
        assert (outbox.statistics().shared_bytes > 0) is (settings == {})


async def test_tls_is_not_said_to_be_a_setting_of_shared_memory(
    tls: Tls, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "netchannel")
    async with ReceiverServer(tls=tls) as receiver, SenderServer(tls=tls) as sender:
        inbox = receiver.register_channel("c", codec="bytes")
        outbox = sender.register_channel("c", receiver.address, codec="bytes")
        await exchange(outbox, inbox, *[bytes(LARGE)] * 4)
        assert outbox.statistics().shared_bytes == 0
    assert told(caplog) == []
    assert "is up" in caplog.text


def sealed(size: int = LARGE, seals: int = host_memory._SEALS) -> int:
    descriptor = os.memfd_create("t", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def plain(tmp_path: Path) -> int:
    (tmp_path / "f").write_bytes(bytes(LARGE))
    return os.open(tmp_path / "f", os.O_RDWR)


_ALL = ("F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_SEAL")


@pytest.mark.parametrize("missing", _ALL)
def test_a_file_that_could_change_its_size_is_not_mapped(missing: str) -> None:
    """A read of what was cut off would end the process."""
    seals = sum(getattr(fcntl, name) for name in _ALL if name != missing)
    descriptor = sealed(seals=seals)
    assert host_memory._mapped([descriptor], SHARED_MEMORY) is None
    os.close(descriptor)


def test_a_file_of_the_wrong_kind_is_not_mapped(tmp_path: Path) -> None:
    """An ordinary one, one that is too large or empty, a directory, none or two; a good one is, to be read only."""
    ends = os.pipe()
    files = [plain(tmp_path), os.open(tmp_path, os.O_RDONLY), *ends, sealed(SHARED_MEMORY + 4096), sealed(0)]
    for each in files:
        assert host_memory._mapped([each], SHARED_MEMORY) is None
    good = sealed()
    assert host_memory._mapped([good, good], SHARED_MEMORY) is None
    assert host_memory._mapped([], SHARED_MEMORY) is None
    mapped = host_memory._mapped([good], SHARED_MEMORY)
    assert mapped is not None
    assert mapped.readonly
    with pytest.raises(PermissionError):
        os.ftruncate(good, 0)
    for each in (*files, good):
        os.close(each)


def test_huge_pages_are_not_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is missing when it is read would end the process. Most machines have none: the kernel's word is made."""
    good = sealed(1 << 21)
    assert host_memory._mapped([good], SHARED_MEMORY) is not None
    told = os.fstatvfs(good)
    huge = os.statvfs_result((1 << 21, *told[1:]))
    monkeypatch.setattr(os, "fstatvfs", lambda descriptor: huge)
    assert host_memory._mapped([good], SHARED_MEMORY) is None
    os.close(good)


async def handed(
    here: HostMemory, token: bytes, say: Callable[[bytes, bytes], None]
) -> list[memoryview | None]:
    """What is taken of what ``say`` sends to the address where ``token`` is expected."""
    taken: list[memoryview | None] = []
    meeting = here.expect(token, taken.append)
    assert meeting is not None
    say(host_memory._address(meeting), token)
    await asyncio.sleep(0.05)
    return taken


def _send(address: bytes, said: bytes, *descriptors: int) -> None:
    rights = array.array("i", descriptors)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
        sock.sendmsg([said], ancillary, 0, address)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_only_who_knows_the_token_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """And only once, and no other user; what else comes is closed."""
    here, good = sharing(), sealed()
    try:
        assert await handed(here, bytes(16), lambda to, _: _send(to, b"x" * 16, good)) == []
        assert await handed(here, bytes(16), lambda to, token: _send(to, token + b"x", good)) == []
        before = open_files()
        assert await handed(here, bytes(16), lambda to, _: _send(to, b"", good, good, good)) == []
        assert await handed(here, bytes(16), _send) == [None]
        assert await handed(here, bytes(16), lambda to, token: _send(to, token, good, good)) == [None]
        assert open_files() == before
        (memory,) = await handed(
            here, bytes(16), lambda to, token: [_send(to, token, good) for _ in range(3)]
        )  # type: ignore[func-returns-value,misc]
        assert memory is not None
        user = os.geteuid()
        with monkeypatch.context() as patch:
            patch.setattr(os, "geteuid", lambda: user + 1)
            assert await handed(here, bytes(16), lambda to, token: _send(to, token, good)) == []
    finally:
        here.close()
        os.close(good)


async def test_what_a_consumer_keeps_outlives_both_servers() -> None:
    """Also columns of a batch, after the sender has left and its memory was given back."""
    batch = pa.record_batch({"n": pa.array(range(200_000), pa.int64())})
    async with ReceiverServer() as receiver, SenderServer() as sender:
        inbox = receiver.register_channel("c")
        outbox = sender.register_channel("c", receiver.address)
        kept = []
        for _ in range(12):
            await outbox.send(batch)
            kept.append((await inbox.recv()).column(0))
            await asyncio.sleep(0.002)
        assert sender.statistics().bytes_sent < 8 * batch.nbytes
        await outbox.close()
    gc.collect()
    assert all(each.equals(batch.column(0)) for each in kept)


async def test_who_keeps_everything_gets_the_rest_over_the_socket() -> None:
    """And once it lets go, on any thread, there is room again."""
    async with connected(sender_memory=4 * LARGE) as (outbox, inbox, sent):
        await once_shared(outbox, inbox, sent)
        kept = await exchange(outbox, inbox, *[os.urandom(LARGE) for _ in range(4)])
        before = sent()
        more = await exchange(outbox, inbox, os.urandom(LARGE))
        assert sent() - before > LARGE
        assert len({bytes(each) for each in (*kept, *more)}) == 5
        letting_go = threading.Thread(target=kept.clear)
        letting_go.start()
        letting_go.join()
        await once_shared(outbox, inbox, sent)


@pytest.mark.processes
async def test_what_a_child_may_read_is_not_written_to() -> None:
    """A body that was in use when the process was forked stays as it was, though the parent lets go of it."""
    async with connected(sender_memory=4 * LARGE) as (outbox, inbox, sent):
        await once_shared(outbox, inbox, sent)
        await asyncio.sleep(0.05)
        (kept,) = await exchange(outbox, inbox, b"\1" * LARGE)
        go, told = os.pipe()
        child = os.fork()
        if child == 0:
            os.read(go, 1)
            os._exit(0 if bytes(kept) == b"\1" * LARGE else 1)
        del kept
        for _ in range(12):
            await exchange(outbox, inbox, b"\2" * LARGE)
        os.write(told, b"x")
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        os.close(go)
        os.close(told)


async def test_memory_is_used_again_in_order_of_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that keeps up has few pages in use, whatever goes through."""
    offsets = set()
    body = Borrower.body

    def noted(self: Borrower, offset: int, size: int, by: Any) -> memoryview:
        offsets.add(offset)
        return body(self, offset, size, by)

    monkeypatch.setattr(Borrower, "body", noted)
    async with connected() as (outbox, inbox, sent):
        await once_shared(outbox, inbox, sent)
        for _ in range(50):
            await exchange(outbox, inbox, os.urandom(LARGE))
    assert max(offsets) <= 8 * LARGE


PRODUCER = """
import asyncio, os, sys, netchannel
async def main():
    async with netchannel.SenderServer() as sender:
        outbox = sender.register_channel("c", sys.argv[1], codec="bytes")
        number = 0
        while True:
            body = number.to_bytes(8, "little") * (1 << 17)
            if sys.argv[2] == "made":
                memory = outbox.allocate(len(body))
                memory[:] = body
                body = memory
            await outbox.send(body)
            number += 1
asyncio.run(main())
"""
COPIED_OR_MADE = pytest.mark.parametrize("how", ["copied", "made"])
"""Whether bodies are copied into shared memory, or were made there."""


def nobody_at(server: ReceiverServer) -> bool:
    return server.statistics().connections == 0


def mappings() -> int:
    return Path("/proc/self/maps").read_text("utf-8").count("/memfd:netchannel")


@pytest.mark.processes
@COPIED_OR_MADE
async def test_a_killed_sender_leaves_what_was_received_and_nothing_else(how: str) -> None:
    """The memory goes with the last body; there is no name of it anywhere, and no socket."""
    gc.collect()
    before = mappings()
    async with ReceiverServer() as receiver:
        inbox = receiver.register_channel("c", codec="bytes", buffer=BufferPolicy(max_messages=3))
        command = [sys.executable, "-c", textwrap.dedent(PRODUCER), receiver.address, how]
        process = await asyncio.create_subprocess_exec(*command)
        try:
            kept = []
            for number in range(60):
                body = await inbox.recv()
                assert bytes(body[:8]) == number.to_bytes(8, "little")
                if number % 20 == 19:
                    kept.append((number, body))
        finally:
            process.send_signal(signal.SIGKILL)
            await process.wait()
        await eventually(partial(nobody_at, receiver))
        assert mappings() == before + 1
        for number, body in kept:
            assert body == number.to_bytes(8, "little") * (1 << 17)
    address = host_memory._address(receiver._host_memory._meeting)  # type: ignore[union-attr]
    del kept, body, inbox, receiver
    gc.collect()
    assert mappings() == before
    assert address[1:].decode() not in Path("/proc/net/unix").read_text("utf-8")


CONSUMER = """
import asyncio, os, sys, netchannel
async def main():
    position = netchannel.Position(sys.argv[3], int(sys.argv[2])) if sys.argv[3] else None
    async with netchannel.ReceiverServer(sys.argv[1]) as receiver:
        inbox = receiver.register_channel("c", codec="bytes", ack="explicit", resume_from=position)
        async for body in inbox:
            await asyncio.sleep(0.002)  # slower than its producer, so that some are waiting
            stream, end = inbox.position
            told = inbox.statistics()
            whole = body == bytes(body[:8]) * (1 << 17)
            number = int.from_bytes(body[:8], "little") if whole else -1
            # One write: a kill leaves it whole or not at all.
            os.write(1, f"{stream} {end} {number} {told.shared_bytes} {told.buffered_messages}\\n".encode())
            if end % 10 == 0:
                await inbox.ack(end)
        await inbox.ack(inbox.position)
asyncio.run(main())
"""


@pytest.mark.processes
@COPIED_OR_MADE
async def test_killed_receivers_and_their_successors_take_every_large_message_once(
    free_address: str, how: str
) -> None:
    """kill -9 with messages in memory, read and not: the successor has the rest, in memory again; none is left."""
    gc.collect()
    before = mappings()
    total = 120
    assert await through_kills(free_address, total, how) == list(range(total))
    gc.collect()
    assert mappings() == before


async def through_kills(address: str, total: int, how: str) -> list[int]:
    """The numbers in what a consumer and its successors have read of ``total`` messages, all but the last killed."""
    numbers: list[int] = []
    stream = ""
    async with SenderServer() as sender, asyncio.timeout(120):
        outbox = sender.register_channel("c", address, codec="bytes")

        async def produce() -> None:
            for number in range(total):
                body = number.to_bytes(8, "little") * (1 << 17)
                await outbox.send(body if how == "copied" else made(outbox, body))
            await outbox.close()

        producing = asyncio.create_task(produce())
        for kill_at in (30, 57, 85, total):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", CONSUMER, address, str(len(numbers)), stream),
                stdout=asyncio.subprocess.PIPE,
            )
            assert process.stdout is not None
            # What it printed before it was killed is committed, whether it was read by then or not.
            while line := await process.stdout.readline():
                stream, end, number, shared, waiting = line.decode().split()
                numbers.append(int(number))
                assert int(end) == len(numbers)
                if len(numbers) == kill_at:
                    assert int(shared) >= LARGE
                    if kill_at < total:
                        assert int(waiting) > 0
                        process.send_signal(signal.SIGKILL)
            await process.wait()
        await producing
    return numbers


async def test_servers_leave_no_descriptors() -> None:
    left = []
    for _ in range(3):
        async with connected() as (outbox, inbox, sent):
            await once_shared(outbox, inbox, sent)
        del outbox, inbox, sent
        gc.collect()
        left.append((open_files(), mappings()))
    assert left[0] == left[1] == left[2]


async def test_ended_sessions_leave_nothing_mapped() -> None:
    """At a server that goes on: as soon as nobody has what they brought, though it was never read."""
    gc.collect()
    async with ReceiverServer() as receiver:
        await session(receiver)  # the first makes the socket, which stays
        gc.collect()
        before = (open_files(), mappings())
        assert before[1] == 0
        for _ in range(8):
            await session(receiver)
            gc.collect()
            assert (open_files(), mappings()) == before


async def session(receiver: ReceiverServer) -> None:
    """Bodies in shared memory, of which some are left to a successor that takes none of them."""
    async with SenderServer() as sender:
        inbox = receiver.register_channel("c", codec="bytes", ack="explicit")
        outbox = sender.register_channel("c", receiver.address, codec="bytes")
        waiting = asyncio.create_task(inbox.recv())  # before there is a sender
        await outbox.attached()
        await outbox.send(bytes(LARGE))
        await waiting
        await once_shared(outbox, inbox, lambda: sender.statistics().bytes_sent)
        await exchange(outbox, inbox, b"")
        for _ in range(4):
            await outbox.send(bytes(LARGE))
        await eventually(lambda: inbox.statistics().buffered_messages == 4)
        assert mappings() == 2
        await inbox.detach()
        await receiver.register_channel("c", codec="bytes", resume_from=inbox.position).close("enough")
    await eventually(partial(nobody_at, receiver))


async def test_pages_that_are_given_back_are_gone() -> None:
    here = sharing()
    memory = memoryview(mmap.mmap(-1, 4 * 4096))
    memory[:] = b"x" * len(memory)
    here.give_back(memory, 4096, 2 * 4096)
    assert bytes(memory) == b"x" * 4096 + bytes(2 * 4096) + b"x" * 4096
    here.close()


@pytest.mark.parametrize("wrong", [-1, 1 << 63, "1", 1.5, None])
def test_what_is_no_size(wrong: Any) -> None:
    for server in (SenderServer, ReceiverServer):
        with pytest.raises((ValueError, TypeError), match="shared_memory"):
            server(shared_memory=wrong)
