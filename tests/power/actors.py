"""Processes that keep channels, or a store, on a disk: forked one by one from one that has imported all they need.

``python -m tests.power.actors DESCRIPTOR``. On the socket comes a line of JSON for each process to start, and for each
whose end is waited for. What a process says goes, line by line, into a file of another disk: it is there when the
process is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from random import Random
from typing import Any, NoReturn

from nebuli.store import StorageError, Store
from nebuli.store.shards.payloads import INLINE_BYTES
from netchannel import (
    BufferPolicy,
    EndOfChannel,
    NetChannelError,
    ReceiverServer,
    RetainPolicy,
    SenderServer,
    StagingPolicy,
    Timing,
)
from tests.support.stores import SCHEMA, zset

TIMING = Timing(heartbeat_s=0.2, dead_after_s=5.0, backoff_s=0.01, backoff_limit_s=0.05, leave_s=1.0)
MAX_BYTES = 1 << 17
"""Of files of a channel: its segments have an eighth of it, so that there are several."""

HUNG = 5
"""Exit codes: `_run` has others."""

Say = Callable[..., None]


def content(number: int, life: int) -> bytes:
    """What message ``number`` is made of in one life of its producer: no two numbers and no two lives make the same."""
    return b"%d %d %s" % (number, life, bytes([number % 251]) * (number * 7919 % 5000))


def told_by(body: bytes) -> tuple[int, int]:
    """The number and the life. Raises AssertionError if that is not all that it is made of."""
    number, life = map(int, body.split(b" ", 2)[:2])
    assert body == content(number, life)
    return number, life


def shown(body: bytes) -> str:
    """What stands for a message of a staged group."""
    return f"{body[:20].decode()}... {len(body)} {blake2b(body, digest_size=8).hexdigest()}"


async def send(say: Say, directory: str, address: str, channel: str, life: int, count: int | None) -> None:
    """Send through a durable buffer: for ever, or up to number ``count`` and the end of the stream."""
    random = Random(f"{channel} {life}")
    policy = BufferPolicy(directory=directory, max_disk_bytes=MAX_BYTES)
    async with SenderServer(timing=TIMING) as sender:
        outbox = sender.register_channel(channel, to=address, codec="bytes", buffer=policy)
        say("at", outbox.position)
        while count is None or outbox.position < count:
            first, many = outbox.position, random.randint(1, 6)
            bodies = [content(number, life) for number in range(first, first + many)]
            if many == 1:
                await outbox.send(bodies[0])
            else:
                await outbox.send_many(bodies)
            say("sent", first, first + many)
        await outbox.close()


async def retain(say: Say, directory: str, address: str, channel: str) -> None:
    """Keep a stream that is sent here."""
    policy = RetainPolicy(MAX_BYTES, directory, lease_s=0.0)
    async with ReceiverServer(address, timing=TIMING) as receiver:
        receiver.retain_channel(channel, policy, codec="bytes")
        say("kept")
        await asyncio.Event().wait()


async def stage(say: Say, directory: str, address: str, channel: str) -> None:
    """Hold staged groups, and consume what was committed, to the end of the stream."""
    async with ReceiverServer(address, timing=TIMING) as receiver:
        inbox = receiver.register_staged_channel(
            channel, StagingPolicy(directory, max_staged_bytes=1 << 23), codec="bytes", ack="explicit"
        )
        say("staged")
        while True:
            try:
                message = await inbox.recv_message()
            except EndOfChannel:
                return
            say("got", message.sequence, shown(bytes(message.batch)))
            if message.sequence % 5 == 0:
                await inbox.ack(message.sequence + 1)


async def store(say: Say, directory: str) -> None:
    """Append to a shard, compact it now and then, and commit a state store beside it: for ever."""
    async with Store.at(directory) as opened:
        states = opened.state_store("state")
        shard = await opened.create_shard("shard", SCHEMA)
        say("opened", shard.upper, (await states.versions())[-1])
        while True:
            at = shard.upper
            rows = zset((at, 1), (-1, 1), padding=INLINE_BYTES * (at % 3 == 0))
            await shard.compare_and_append([(at, rows)], at, at + 1)
            say("appended", at)
            if at % 4 == 0:
                await shard.hold("reader", at)
                await shard.compact(full=at % 8 == 0)
            if at % 4 == 1:
                async with await states.open((await states.versions())[-1]) as database:
                    version = database.version + 1
                    for key in (b"long", b"short"):
                        content = b"%d " % version * (5000 if key == b"long" else 1)
                        await database.put("t", key, content)
                    await database.commit()
                say("committed", version)


ACTORS: dict[str, Callable[..., Awaitable[None]]] = {
    "send": send,
    "retain": retain,
    "stage": stage,
    "store": store,
}


def _run(actor: str, said: str, arguments: dict[str, Any]) -> NoReturn:
    """The process: it ends with 0, with 3 after an error of ours, with 4 after another."""
    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def say(*words: object) -> None:
        os.write(descriptor, (json.dumps(words) + "\n").encode())

    try:
        asyncio.run(ACTORS[actor](say, **arguments))
    except (NetChannelError, StorageError) as error:
        say("failed", type(error).__name__, str(error))
        os._exit(3)
    except BaseException:  # noqa: BLE001 - all that it says is this
        say("died", traceback.format_exc())
        os._exit(4)
    os._exit(0)


def _ended(pid: int, within_s: float) -> int:
    """The exit code of a process; one that does not end is killed, and has `HUNG`."""
    descriptor = os.pidfd_open(pid)
    hangs = not select.select([descriptor], [], [], within_s)[0]
    os.close(descriptor)
    if hangs:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return HUNG if hangs else os.waitstatus_to_exitcode(status)


def _started(control: socket.socket, command: dict[str, Any], gates: dict[int, int]) -> int:
    """The process, which begins once its gate is closed."""
    gate, ours = os.pipe()
    if pid := os.fork():
        os.close(gate)
        gates[pid] = ours
        return pid
    control.close()
    for other in (ours, *gates.values()):
        os.close(other)
    signal.alarm(200)  # whatever becomes of the test
    os.read(gate, 1)
    _run(command["actor"], command["said"], command["arguments"])


def _serve(control: socket.socket) -> None:
    gates: dict[int, int] = {}
    for line in control.makefile("r"):
        command = json.loads(line)
        answer = 0
        if "wait" in command:
            answer = _ended(command["wait"], command["within_s"])
        elif "begin" in command:
            os.close(gates.pop(command["begin"]))
        else:
            answer = _started(control, command, gates)
        control.sendall(b"%d\n" % answer)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as given:
        _serve(given)
