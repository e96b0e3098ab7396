"""The process-wide services, in processes of their own: threads, exits, forks and kills are real."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import netchannel
from netchannel import Position, ReceiverServer, SenderServer, Timing, Tls

pytestmark = pytest.mark.processes


def script(text: str, *arguments: str) -> subprocess.Popen[str]:
    """A Python process that runs ``text``."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", text, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def ended(process: subprocess.Popen[str]) -> Any:
    """What it printed, once it has ended well."""
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert err == ""
    return json.loads(out)


ROUND_TRIP = """
import json, threading, pyarrow as pa, netchannel
receiver, sender = netchannel.receiver_server(), netchannel.sender_server()
assert netchannel.receiver_server().address == receiver.address
try:
    netchannel.receiver_server("127.0.0.1:1")
except netchannel.NetChannelError as error:
    message = str(error)
inbox = receiver.register_channel("c")
outbox = sender.register_channel("c", to=receiver.address)
sent = [pa.record_batch({"n": [number]}) for number in range(100)]
def produce():
    outbox.send(sent[0], b"note")
    outbox.send_many(sent[1:])
    outbox.flush()
    outbox.close()
thread = threading.Thread(target=produce)
thread.start()
first = inbox.recv_message()
assert (first.batch, first.note, first.sequence) == (sent[0], b"note", 0)
assert list(inbox) == sent[1:]
thread.join()
print(json.dumps([message, outbox.position, inbox.statistics().received, inbox.schema().names]))
"""


def test_blocking_objects_with_the_same_names() -> None:
    """SP-API-1: a thread without an event loop sends and receives; the interpreter exits cleanly by itself."""
    message, position, received, names = ended(script(ROUND_TRIP))
    assert "127.0.0.1:1" in message
    assert (position, received, names) == (100, 100, ["n"])


ALLOCATED = """
import asyncio, json, netchannel
from netchannel import aio
receiver, sender, there = netchannel.receiver_server(), netchannel.sender_server(), aio.sender_server()
inbox = receiver.register_channel("c", codec="bytes")
outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
wrong = []
def filled(channel, value):
    memory = channel.allocate(1 << 20)
    memory[:] = bytes([value]) * (1 << 20)
    return memory
def check(value):
    if inbox.recv() != bytes([value]) * (1 << 20):
        wrong.append(value)
for value in range(20):
    outbox.send_many(filled(outbox, value) for _ in range(2))
    check(value)
    check(value)
shared = outbox.statistics().shared_bytes >> 20
async def main():
    other = there.register_channel("d", to=receiver.address, codec="bytes")
    await other.send(filled(other, 7))
    await other.close()
there_inbox = receiver.register_channel("d", codec="bytes")
asyncio.run(main())
last = bytes(there_inbox.recv()) == bytes([7]) * (1 << 20)
outbox.close()
print(json.dumps([wrong, shared, last]))
"""


def test_threads_and_other_loops_have_memory_to_fill() -> None:
    """What is filled on the caller's thread goes through shared memory, from when there is some."""
    wrong, shared, last = ended(script(ALLOCATED))
    assert (wrong, last) == ([], True)
    assert 20 < shared <= 40


EXIT_BY_EXCEPTION = """
import sys, netchannel
outbox = netchannel.sender_server().register_channel("c", to=sys.argv[1], codec="bytes")
outbox.send(b"x")
sys.exit(0)
"""


async def test_a_process_that_exits_without_closing_has_failed() -> None:
    """CH-END-7: also where the process-wide sender is left by the interpreter's exit."""
    async with ReceiverServer() as receiver:
        inbox = receiver.register_channel("c", codec="bytes")
        process = script(EXIT_BY_EXCEPTION, receiver.address)
        async with asyncio.timeout(60):
            assert await inbox.recv() == b"x"
            with pytest.raises(netchannel.ChannelFailed, match="left without closing"):
                await inbox.recv()
        await asyncio.to_thread(process.communicate)


LEAVES_AND_ENDS = """
import os, sys, time, netchannel
receiver = netchannel.receiver_server()
buffer = netchannel.BufferPolicy(max_messages=2)
inbox = receiver.register_channel("c", codec="bytes", buffer=buffer, ack="explicit")
print(receiver.address, flush=True)
inbox.recv()
time.sleep(0.3)  # what the connection brings stays unread
inbox.close("enough")
os._exit(0)
"""


async def test_a_process_may_end_behind_close() -> None:
    """What it has not read makes its end a reset, which would overtake its last word to a producer that is busy."""
    process = script(LEAVES_AND_ENDS)
    async with SenderServer(timing=Timing(leave_s=0.1)) as sender:
        address = (await asyncio.to_thread(process.stdout.readline)).strip()
        outbox = sender.register_channel("c", address, codec="bytes")
        await outbox.attached()
        for _ in range(50):
            await outbox.send(bytes(1_000))
        await asyncio.sleep(0.1)
        time.sleep(1)  # noqa: ASYNC251 - this event loop looks at nothing for so long, and then writes first
        with pytest.raises(netchannel.ChannelClosedByPeer, match="enough"):
            await asyncio.wait_for(outbox.send_many(bytes(1_000) for _ in range(100_000)), 30)
    await asyncio.to_thread(process.communicate)


PIPELINE = """
import json, netchannel
receiver, sender = netchannel.receiver_server(), netchannel.sender_server()
inbox, outbox = [receiver.register_channel(name, codec="bytes") for name in "ab"], []
for name in "ab":
    outbox.append(sender.register_channel(name, to=receiver.address, codec="bytes"))
outbox[0].send_many([b"%d" % number for number in range(100)])
outbox[0].send_many(b"%d" % number for number in range(100, 200))
outbox[1].send_many(inbox[0].recv() for _ in range(200))
outbox[1].close()
print(json.dumps([int(bytes(body)) for body in inbox[1]]))
"""


def test_what_one_channel_gives_another_may_take() -> None:
    """SP-API-1: a generator runs on the thread that gave it, and may wait for another channel there."""
    assert ended(script(PIPELINE)) == list(range(200))


NOBODY_ANSWERS = """
import atexit, json, logging, os, netchannel
def at_exit():
    try:
        outbox.send(b"late")
    except netchannel.ChannelClosed as error:
        said.append(str(error))
    print(json.dumps(said))
atexit.register(at_exit)
class Handler(logging.Handler):
    def emit(self, record):
        try:
            outbox.send(record.getMessage().encode())
        except netchannel.NetChannelError as error:
            said.append(str(error))
            logger.removeHandler(self)
said = []
receiver = netchannel.receiver_server()
outbox = netchannel.sender_server().register_channel("c", to=receiver.address, codec="bytes")
reader, writer = os.pipe()
pid = os.fork()
if pid == 0:
    try:
        outbox.send(b"child")
    except netchannel.NetChannelError as error:
        os.write(writer, str(error).encode())
    os._exit(0)
os.wait()
said.append(os.read(reader, 1000).decode())
logger = logging.getLogger("netchannel")
logger.addHandler(Handler())
logger.setLevel(logging.INFO)
inbox = receiver.register_channel("c", codec="bytes")
outbox.attached()
outbox.close()
"""


def test_calls_that_nobody_could_answer_do_not_wait() -> None:
    """CH-FORK-1, SP-API-1: in a forked child, on the services' own thread, and after they were left."""
    fork, own_thread, exiting = ended(script(NOBODY_ANSWERS))
    assert "a fork of it" in fork
    assert "from their own thread" in own_thread
    assert "exiting" in exiting


FORK = """
import json, os, netchannel
from netchannel.process.services import services
alive, keep_alive = os.pipe()
parent = netchannel.receiver_server()
inbox = parent.register_channel("c", codec="bytes")
own = netchannel.sender_server().register_channel("own", to=parent.address, codec="bytes")
parent.register_channel("own", codec="bytes")
own.attached()
reader, writer = os.pipe()
pid = os.fork()
if pid == 0:
    os.close(keep_alive)
    child = netchannel.receiver_server()
    outbox = netchannel.sender_server().register_channel("c", to=parent.address, codec="bytes")
    outbox.send(child.address.encode())
    outbox.close()
    os.write(writer, b"done")
    os.read(alive, 1)  # until the parent is gone or lets go
    os._exit(0)
address = bytes(inbox.recv()).decode()
os.read(reader, 4)
own.send(b"unharmed")
own.flush()
parent_address = parent.address
services.leave()
again = netchannel.receiver_server(parent_address)
print(json.dumps([parent_address, again.address, address]))
os.close(keep_alive)
os.wait()
"""


def test_a_forked_child_gets_services_of_its_own() -> None:
    """CH-FORK-1: the child's are fresh, the parent's unharmed, its port free again while the child lives."""
    parent, again, child = ended(script(FORK))
    assert parent == again != child


AIO = """
import asyncio, json, pyarrow as pa, netchannel.aio
async def main():
    receiver, sender = netchannel.aio.receiver_server(), netchannel.aio.sender_server()
    inbox = receiver.register_channel("c", ack="explicit")
    outbox = sender.register_channel("c", to=receiver.address)
    received = []
    async def consume():
        async for batch in inbox:
            received.append(batch.column(0)[0].as_py())
            await inbox.ack(inbox.position.sequence)
    async def cancelled():
        task = asyncio.create_task(consume())
        await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])
    for number in range(200):
        await outbox.send(pa.record_batch({"n": [number]}))
        await cancelled()
    consuming = asyncio.create_task(consume())
    report = await outbox.close()
    await consuming
    print(json.dumps([received, report.acknowledged, inbox.statistics().received]))
asyncio.run(main())
"""


def test_coroutines_of_other_loops_use_the_same_services() -> None:
    """CH-CAN-1: through `netchannel.aio` too, a `recv` that is cancelled takes nothing away."""
    received, acknowledged, counted = ended(script(AIO))
    assert received == list(range(200))
    assert (acknowledged, counted) == (200, 200)


UPQUERIES = """
import asyncio, json, threading, netchannel.aio
receiver, sender = netchannel.receiver_server(), netchannel.sender_server()
inbox = receiver.register_channel("c", codec="bytes")
outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
answered = []
def answer():
    try:
        while True:
            outbox.send(b"to " + outbox.recv_upquery())
    except netchannel.ChannelClosed as error:
        answered.append(type(error).__name__)
thread = threading.Thread(target=answer)
thread.start()
outbox.attached()
while not inbox.upquery(b"1"):
    pass
answered.append(bytes(inbox.recv()).decode())
outbox.close()
thread.join()
async def main():
    inbox = netchannel.aio.receiver_server().register_channel("d", codec="bytes")
    outbox = netchannel.aio.sender_server().register_channel("d", to=receiver.address, codec="bytes")
    await outbox.attached()
    given = []
    async def take():
        given.append(int(await outbox.recv_upquery()))
    while not inbox.upquery(b"0"):
        pass
    for number in range(1, 200):
        taking = asyncio.create_task(take())
        await asyncio.sleep(number % 10 / 10_000)
        taking.cancel()
        await asyncio.wait([taking])
        assert inbox.upquery(b"%d" % number)
    while len(given) < 200:
        await take()
    answered.append(given == list(range(200)))
    await outbox.close()
asyncio.run(main())
print(json.dumps(answered))
"""


def test_a_producer_is_asked_from_threads_and_other_loops() -> None:
    """CH-CAN-1: and a call that is cancelled takes nothing away, and changes no order."""
    assert ended(script(UPQUERIES)) == ["to 1", "ChannelClosed", True]


SECURE = """
import asyncio, json, sys, netchannel.aio
from dataclasses import replace
tls = netchannel.Tls(*sys.argv[1:])
trust = {"secret": "open sesame", "tls": tls}
receiver, sender = netchannel.receiver_server(**trust), netchannel.sender_server(**trust)
inbox = receiver.register_channel("c", codec="bytes")
outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
outbox.send(b"from a thread")
outbox.close()
received = [bytes(body).decode() for body in inbox]
async def main():
    receiver, sender = netchannel.aio.receiver_server(), netchannel.aio.sender_server(**trust)
    inbox = receiver.register_channel("c", codec="bytes")
    outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
    await outbox.send(b"from another loop")
    await outbox.close()
    received.extend([bytes(body).decode() async for body in inbox])
    async with netchannel.SenderServer() as stranger:
        try:
            await stranger.register_channel("d", to=receiver.address, codec="bytes").close()
        except netchannel.HandshakeError as error:
            received.append(str(error))
import logging
logging.getLogger("netchannel").setLevel(logging.ERROR)
asyncio.run(main())
for function in (netchannel.receiver_server, netchannel.aio.sender_server):
    for other in ({"secret": "open barley"}, {"tls": replace(tls, server_name="another")}):
        try:
            function(**other)
        except netchannel.NetChannelError as error:
            received.append(str(error))
print(json.dumps(received))
"""


def test_the_services_of_a_process_take_tls_and_a_secret(tls: Tls) -> None:
    """CH-TLS-1, CH-SEC-1: from the first call; what a later one gives must be the same."""
    one, other, stranger, *refused = ended(
        script(SECURE, *map(str, (tls.certificate, tls.key, tls.authority)))
    )
    assert (one, other) == ("from a thread", "from another loop")
    assert "does the sender have tls=?" in stranger
    assert [re.findall("already running, (.*): the first", text) for text in refused] == [
        ["with another secret"],
        ["with another tls"],
    ] * 2
    assert not any("open" in text for text in refused)


SETTINGS = """
import json, netchannel, netchannel.aio
receiver = netchannel.receiver_server(message_limit=3 << 20, shared_memory=0)
sender = netchannel.sender_server(shared_memory=1 << 22)
inbox = receiver.register_channel("c", codec="bytes")
outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
outbox.send(bytes(3 << 20))
outbox.flush()
said = []
try:
    outbox.send(bytes(4 << 20))
except netchannel.MessageTooLarge as error:
    said.append(str(error))
outbox.close()
netchannel.aio.receiver_server(message_limit=3 << 20)
netchannel.aio.sender_server()
for call in (
    lambda: netchannel.receiver_server(message_limit=1 << 30),
    lambda: netchannel.aio.receiver_server(shared_memory=1 << 26),
    lambda: netchannel.sender_server(shared_memory=0),
    lambda: netchannel.sender_server(secret="open sesame"),
):
    try:
        call()
    except netchannel.NetChannelError as error:
        said.append(str(error))
print(json.dumps(said))
"""


def test_the_services_of_a_process_take_limits() -> None:
    """From the first call; what a later one gives must be the same."""
    too_large, *refused = ended(script(SETTINGS))
    assert "3145728" in too_large
    assert [re.findall("already running, (.*): the first", text) for text in refused] == [
        ["with another message_limit"],
        ["with another shared_memory"],
        ["with another shared_memory"],
        ["without a secret"],
    ]


DEFAULTS = """
import json, netchannel
netchannel.receiver_server(), netchannel.sender_server()
netchannel.receiver_server(message_limit=1 << 30, shared_memory=1 << 26)
netchannel.sender_server(shared_memory=1 << 26)
refused = 0
for call in (lambda: netchannel.receiver_server(message_limit=5), lambda: netchannel.sender_server(shared_memory=0)):
    try:
        call()
    except netchannel.NetChannelError:
        refused += 1
print(json.dumps(refused))
"""


def test_the_services_of_a_process_have_the_limits_of_servers() -> None:
    """What nobody has set is what a later call may name, and no other."""
    assert ended(script(DEFAULTS)) == 2


SHARING = """
import json, sys, time, netchannel
size = {name: 0 if name in sys.argv else None for name in ("receiver", "sender")}
receiver = netchannel.receiver_server(shared_memory=size["receiver"])
sender = netchannel.sender_server(shared_memory=size["sender"])
outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
inbox = receiver.register_channel("c", codec="bytes")
for _ in range(20 if 0 in size.values() else 2000):
    outbox.send(bytes(1 << 20))
    inbox.recv()
    if outbox.statistics().shared_bytes:  # a busy machine takes its time to share memory
        break
    time.sleep(0.01)
outbox.close()
print(json.dumps(outbox.statistics().shared_bytes))
"""


@pytest.mark.parametrize(("off", "shares"), [("sender", False), ("receiver", False), ("neither", True)])
def test_either_service_of_a_process_can_share_no_memory(off: str, shares: bool) -> None:
    assert (ended(script(SHARING, off)) > 0) is shares


KILLED_RECEIVER = """
import asyncio, os, sys, netchannel
async def main():
    position = netchannel.Position(sys.argv[3], int(sys.argv[2])) if sys.argv[3] else None
    async with netchannel.ReceiverServer(sys.argv[1]) as receiver:
        inbox = receiver.register_channel("c", codec="bytes", ack="explicit", resume_from=position)
        acked = 0
        async for body in inbox:
            message = inbox.position
            # One write: a kill leaves it whole or not at all.
            os.write(1, f"{message.stream} {message.sequence - 1} {bytes(body).decode()}\\n".encode())
            if message.sequence % 10 == 0:
                await inbox.ack(message.sequence)
        await inbox.ack(inbox.position.sequence)
asyncio.run(main())
"""


@pytest.mark.story
async def test_a_killed_receiver_and_its_successors_take_every_message_once(
    tmp_path: Path, free_address: str
) -> None:
    """CH-ACK-1, CH-FLT-2: kill -9 at any point; against the consumer's own commit every message is exactly once."""
    # More than what pipes hold: who is to be killed at some message cannot have come to the end meanwhile.
    total, committed, stream = 10_000, 0, ""
    values: list[str] = []
    async with netchannel.SenderServer() as sender:
        outbox = sender.register_channel("c", to=free_address, codec="bytes")

        async def produce() -> None:
            for number in range(total):
                await outbox.send(b"%d" % number)
            await outbox.close()

        producing = asyncio.create_task(produce())
        for kill_at in (37, 150, 155, None):
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-c", KILLED_RECEIVER, free_address, str(committed), stream),
                stdout=subprocess.PIPE,
            )
            assert process.stdout is not None
            async with asyncio.timeout(30):
                # What it printed before it was killed is committed, whether it was read by then or not.
                while line := await process.stdout.readline():
                    stream, number, value = line.decode().split()
                    assert int(number) == committed
                    values.append(value)
                    committed += 1
                    if len(values) == kill_at:
                        process.send_signal(signal.SIGKILL)
                await process.wait()
            if committed == total:
                break
        async with asyncio.timeout(60):
            await producing
    assert values == [str(number) for number in range(total)]
    assert Position(stream, committed) == Position(outbox.stream, total)


STOPPED = """
import asyncio, sys, netchannel
async def main():
    timing = netchannel.Timing(heartbeat_s=0.1, dead_after_s=0.5)
    async with netchannel.ReceiverServer(timing=timing) as receiver:
        inbox = receiver.register_channel("c", codec="bytes")
        print(receiver.address, flush=True)
        async for body in inbox:
            print(bytes(body).decode(), flush=True)
asyncio.run(main())
"""


async def test_a_stopped_receiver_is_found_dead_and_resumed() -> None:
    """CH-CTL-3: SIGSTOP: reported within the heartbeat budget; SIGCONT: nothing lost or doubled."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", STOPPED, stdout=subprocess.PIPE)
    assert process.stdout is not None
    address = (await process.stdout.readline()).decode().strip()
    timing = netchannel.Timing(heartbeat_s=0.1, dead_after_s=0.5)
    async with netchannel.SenderServer(timing=timing) as sender, asyncio.timeout(100):
        outbox = sender.register_channel("c", to=address, codec="bytes")
        for number in range(100):
            await outbox.send(b"%d" % number)
        await outbox.flush()
        os.kill(process.pid, signal.SIGSTOP)
        for number in range(100, 200):
            await outbox.send(b"%d" % number)
        async with asyncio.timeout(60):
            while outbox.statistics().state == "attached":
                await outbox.changes.wait()
        os.kill(process.pid, signal.SIGCONT)
        await outbox.close()
        lines = (await process.stdout.read()).decode().split()
        await process.wait()
    assert lines == [str(number) for number in range(200)]


async def test_resets_at_random_bytes_leave_the_sequence_exact(chaos: Any) -> None:
    """CH-SEQ-2, CH-SEQ-3: 200 resets of control and data connections by a proxy: strictly increasing by one."""
    timing = netchannel.Timing(backoff_limit_s=0.05)
    async with (
        ReceiverServer() as receiver,
        chaos(receiver.address) as proxy,
        netchannel.SenderServer(timing=timing) as sender,
    ):
        inbox = receiver.register_channel("c", codec="bytes")
        # Frames hold what the buffer does: small ones get through connections that live for 20 000 bytes.
        outbox = sender.register_channel(
            "c", to=proxy.address, codec="bytes", buffer=netchannel.BufferPolicy(max_messages=50)
        )

        async def produce() -> None:
            number = 0
            while proxy.resets < 200:
                await outbox.send(b"%d" % number + bytes(number % 300))
                number += 1
            await outbox.close()

        async with asyncio.timeout(60):
            producing = asyncio.create_task(produce())
            messages = []
            async for _ in _messages(inbox, messages):
                pass
            await producing
    assert [sequence for sequence, _ in messages] == list(range(len(messages)))
    assert [body for _, body in messages] == [b"%d" % n + bytes(n % 300) for n in range(len(messages))]
    assert outbox.position == len(messages)


async def _messages(inbox: netchannel.ReceiverChannel, into: list[tuple[int, bytes]]) -> Any:
    while True:
        try:
            message = await inbox.recv_message()
        except netchannel.EndOfChannel:
            return
        into.append((message.sequence, bytes(message.batch)))
        yield
