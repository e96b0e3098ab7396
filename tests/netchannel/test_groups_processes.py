"""Staged groups between processes: receivers that are killed, and the process-wide services."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from netchannel import Group, GroupClient, ReceiverServer, Sealed, SenderServer, StagingPolicy

pytestmark = pytest.mark.processes

RECEIVER = """
import asyncio, os, signal, sys
from netchannel import ReceiverServer, StagingPolicy
from netchannel.storage import StagingStore, files

address, directory, point = sys.argv[1], sys.argv[2], int(sys.argv[3])
steps = None

def step():
    global steps
    if steps == point:
        os.kill(os.getpid(), signal.SIGKILL)
    if steps is not None:
        steps += 1

def counted(method):
    def call(*arguments):
        step()
        return method(*arguments)
    return call

for name in ("pwritev", "fdatasync"):
    setattr(files.RealFile, name, counted(getattr(files.RealFile, name)))

commit = StagingStore.commit

def killed(*arguments, **settings):
    global steps
    steps = 0
    commit(*arguments, **settings)
    step()
    steps = None

StagingStore.commit = killed

async def main():
    async with ReceiverServer(address) as receiver:
        receiver.register_staged_channel("c", StagingPolicy(directory), codec="bytes", ack="explicit")
        await asyncio.Event().wait()

asyncio.run(main())
"""


def receiver(address: str, directory: Path, point: int = -1) -> subprocess.Popen[bytes]:
    """A process with a staged channel; it is killed before step ``point`` of a commit."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(
        [sys.executable, "-c", RECEIVER, address, str(directory), str(point)], env=environment
    )


async def write(sender: SenderServer, to: str, epoch: int, partition: int) -> Sealed:
    outbox = sender.register_attempt("c", to, Group("app", epoch, partition), codec="bytes")
    await outbox.send_many([b"%d.%d.%d" % (epoch, partition, number) for number in range(3)])
    return await outbox.seal()


@pytest.mark.uvloop
async def test_a_receiver_that_is_killed_in_a_commit_has_done_it_or_not(
    free_address: str, tmp_path: Path
) -> None:
    """CH-STG-4: at every point; the retry tells which, and each group is there once."""
    fresh = []
    async with SenderServer() as sender, GroupClient(free_address, "c") as client:
        for epoch in range(5):
            process = receiver(free_address, tmp_path, point=epoch)
            try:
                winners = [await write(sender, free_address, epoch, partition) for partition in range(2)]
                committing = asyncio.create_task(client.commit("app", epoch, winners))
                if epoch < 4:  # there are so many steps, and the answer behind them
                    await asyncio.to_thread(process.wait, 30)
                    process = receiver(free_address, tmp_path)
                fresh.append(await committing)
                assert await client.commit("app", epoch, winners) is False
            finally:
                process.kill()
                process.wait()
    # The kernel lives on: what was written before the kill is there.
    assert fresh == [True, False, False, False, True]
    async with ReceiverServer() as there:
        inbox = there.register_staged_channel("c", StagingPolicy(tmp_path), codec="bytes")
        got = [bytes(await inbox.recv()) for _ in range(5 * 2 * 3)]
        assert got == [b"%d.%d.%d" % (e, p, n) for e in range(5) for p in range(2) for n in range(3)]
        assert inbox.position == (inbox.stream, 30)


SERVICES = """
import asyncio, json, tempfile, netchannel
from netchannel import Group, StagingPolicy
directory = tempfile.mkdtemp()
receiver, sender = netchannel.receiver_server(), netchannel.sender_server()
inbox = receiver.register_staged_channel("c", StagingPolicy(directory), codec="bytes")
outbox = sender.register_attempt("c", receiver.address, Group("app", 7, 0), codec="bytes")
outbox.send_many([b"1", b"2"])
sealed = outbox.seal()
with netchannel.group_client(receiver.address, "c") as client:
    committed = [client.last_epoch("app"), client.commit("app", 7, [sealed]), client.last_epoch("app")]
got = [bytes(inbox.recv()).decode() for _ in range(2)]

async def main():
    outbox = netchannel.aio.sender_server().register_attempt(
        "c", receiver.address, Group("app", 8, 0), codec="bytes"
    )
    await outbox.send(b"3")
    async with netchannel.aio.group_client(receiver.address, "c") as client:
        committed.append(await client.commit("app", 8, [await outbox.seal()], end=True))
        await client.drop("app", 9)
        committed.append(await client.last_epoch("app"))

import netchannel.aio
asyncio.run(main())
got += [bytes(body).decode() for body in inbox]
try:
    client.commit("app", 9, [])
except netchannel.ChannelClosed:
    print(json.dumps([committed, got, outbox.group]))
"""


def test_the_services_of_a_process_have_groups() -> None:
    """For threads, and for coroutines of another loop."""
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", SERVICES], capture_output=True, encoding="utf-8", timeout=30, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert process.stderr == ""
    assert json.loads(process.stdout) == [[None, True, 7, True, 8], ["1", "2", "3"], ["app", 7, 0]]
