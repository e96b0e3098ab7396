"""What both processes take of the machine's memory while nobody reads."""

from __future__ import annotations

import json
import subprocess
import sys
from subprocess import PIPE

import pytest

BOUND, QUEUE, SLACK = 32 << 20, 8 << 20, 64_000_000
AHEAD = 9 << 20
"""What a sender may have on its way when a queue is full: 8 MiB in shared memory, and a batch."""

MEMORY = """
import gc, json, re
def resident(name):
    return int(re.search(name + r":\\\\s+(\\\\d+) kB", open("/proc/self/status").read()).group(1)) * 1024
def reset():
    gc.collect()
    open("/proc/self/clear_refs", "w").write("5")
    return resident("VmHWM")
""".replace("\\\\", "\\")

SENDER = (
    MEMORY
    + """
import asyncio, sys, netchannel, pyarrow as pa
async def main():
    address, rows, bound = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    batch = lambda: pa.record_batch({"n": pa.array(range(rows), pa.int64())})
    async with netchannel.SenderServer() as sender:
        policy = netchannel.BufferPolicy(max_bytes=bound)
        outbox = sender.register_channel("c", to=address, buffer=policy)
        await outbox.send(batch())
        await outbox.flush()
        began = reset()
        held_up = False
        while not held_up:
            try:
                async with asyncio.timeout(2):
                    await outbox.send(batch())
            except TimeoutError:  # on a busy machine also before the bound is reached
                held_up = outbox.statistics().buffered_bytes > bound // 3
        kept = outbox.statistics().buffered_bytes
        print(json.dumps({"grown": resident("VmHWM") - began, "kept": kept}), flush=True)
        await outbox.close(grace=0)
asyncio.run(main())
"""
)

RECEIVER = (
    MEMORY
    + """
import asyncio, json, sys, netchannel
async def main():
    async with netchannel.ReceiverServer() as receiver:
        policy = netchannel.BufferPolicy(max_bytes=int(sys.argv[1]))
        inbox = receiver.register_channel("c", buffer=policy)
        print(receiver.address, flush=True)
        await inbox.recv()
        began = reset()
        await asyncio.to_thread(sys.stdin.read)
        print(json.dumps({"grown": resident("VmHWM") - began, "kept": inbox.statistics().buffered_bytes}), flush=True)
asyncio.run(main())
"""
)


@pytest.mark.timed
@pytest.mark.processes
@pytest.mark.parametrize("rows", [16, 1 << 17], ids=["small batches", "1 MiB batches"])
def test_a_stalled_consumer_costs_the_bound_and_a_little(rows: int) -> None:
    """CH-BP-1: resident memory of either process grows by its configured bound plus 64 MB at most."""
    python = [sys.executable, "-c"]
    with subprocess.Popen(
        [*python, RECEIVER, str(QUEUE)], stdin=PIPE, stdout=PIPE, encoding="utf-8"
    ) as receiver:
        assert receiver.stdout is not None
        address = receiver.stdout.readline().strip()
        command = [*python, SENDER, address, str(rows), str(BOUND)]
        sent = subprocess.run(command, stdout=PIPE, check=True, timeout=240).stdout
        received, _ = receiver.communicate("", timeout=240)
    for told, bound in ((json.loads(sent), BOUND), (json.loads(received), QUEUE)):
        assert bound // 3 < told["kept"] < bound + AHEAD  # it is the bound that holds it up
        assert told["grown"] < bound + SLACK, told
