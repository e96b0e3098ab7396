"""One channel of each kind: a producer until it is told to stop, and a consumer that checks every message."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from netchannel import (
    BufferPolicy,
    EndOfChannel,
    Position,
    ReceiverChannel,
    ReceiverServer,
    SenderServer,
)

from .messages import Violation, batch, body, check

ROOT = Path(__file__).parents[2]
COMMIT_EVERY = 40
LONG_PAUSE_S = 2.0

KINDS: dict[str, tuple[BufferPolicy, dict[str, Any]]] = {
    "in memory": (BufferPolicy(max_bytes=2 << 20), {"codec": "bytes"}),
    "explicit": (
        BufferPolicy(max_bytes=2 << 20, max_messages=500),
        {"codec": "bytes", "ack": "explicit"},
    ),
    "spill": (
        BufferPolicy(max_bytes=1 << 20, when_full="spill", max_disk_bytes=64 << 20),
        {"codec": "bytes"},
    ),
    "arrow": (BufferPolicy(max_bytes=2 << 20), {"codec": "arrow"}),
}
"""Channels whose producer is in the long-lived process: the sender's buffer, and how the receiver registers."""


class Consumer:
    """Reads to the end; stands still, or leaves its place to a successor, when told to."""

    def __init__(
        self, kind: str, channel_id: str, receiver: ReceiverServer, random: Random, settings: dict[str, Any]
    ) -> None:
        self.kind = kind
        self.effects: Counter[str] = Counter()
        self.read = 0
        self.ended = False
        self.reconnects = 0
        self._where = f"channel {channel_id}"
        self._register: Callable[..., ReceiverChannel] = lambda **more: receiver.register_channel(
            channel_id, buffer=BufferPolicy(max_bytes=1 << 20), **settings, **more
        )
        self._explicit = settings.get("ack") == "explicit"
        self._random = random
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._leaves = False
        self._inbox = self._register()

    def disturbances(self) -> dict[str, Callable[[], float]]:
        """A pause at any time; a successor where the position is the consumer's own."""
        able: dict[str, Callable[[], float]] = {}
        if not self.ended:
            able["consumer stalled"] = self._pause
            if self._explicit:
                able["consumer replaced"] = self._leave
        return able

    def _pause(self) -> float:
        self._may_read.clear()
        return self._random.uniform(0.1, LONG_PAUSE_S)

    def _leave(self) -> float:
        self._leaves = True
        return 0.0

    def calm(self) -> None:
        """Read on."""
        self._may_read.set()

    async def consume(self) -> None:
        """To the end. Raises Violation."""
        with suppress(EndOfChannel):
            while True:
                if not self._may_read.is_set():
                    self.effects["consumer stalled"] += 1
                    await self._may_read.wait()
                if self._leaves:
                    await self._make_way()
                message = await self._inbox.recv_message()
                check(self._where, self.read, message.sequence, message.batch)
                self.read += 1
                if self._explicit and self.read % COMMIT_EVERY == 0:
                    await self._inbox.ack(self.read)
        if self._explicit:
            await self._inbox.ack(self.read)
        self.ended = True
        self.reconnects += self._inbox.statistics().reconnects

    async def _make_way(self) -> None:
        self._leaves = False
        stream = self._inbox.stream
        self.reconnects += self._inbox.statistics().reconnects
        await self._inbox.detach()
        # What it had received and not read comes again.
        self._inbox = self._register(resume_from=None if stream is None else Position(stream, self.read))
        self.effects["consumer replaced"] += 1


async def produce(kind: str, channel_id: str, sender: SenderServer, address: str, stop: asyncio.Event) -> int:
    """Send until told to stop, then close; how many messages there were."""
    policy, settings = KINDS[kind]
    codec = settings["codec"]
    outbox = sender.register_channel(channel_id, to=address, codec=codec, buffer=policy)
    make = batch if codec == "arrow" else body
    while not stop.is_set():
        await outbox.send(make(outbox.position))
    report = await outbox.close()
    if report.acknowledged != outbox.position:
        raise Violation(f"channel {channel_id}: closed with {report}, and {outbox.position} were sent")
    return outbox.position


class DurableProducer:
    """A process that sends from a buffer on disk; killed and stopped, and started again until it has closed."""

    def __init__(
        self, channel_id: str, address: str, directory: Path, random: Random, latency_s: float
    ) -> None:
        self.effects: Counter[str] = Counter()
        self.returned = 0
        self.restarts = 0
        self._arguments = (str(directory), address, channel_id, str(latency_s))
        self._random = random
        self._process: asyncio.subprocess.Process | None = None
        self._stream = ""

    def disturbances(self) -> dict[str, Callable[[], float]]:
        """A kill, and a stop."""
        process = self._process
        if process is None or process.returncode is not None:
            return {}
        return {"process killed": self._kill, "process stopped": self._stop}

    def _kill(self) -> float:
        self._signal(signal.SIGKILL)
        return 0.0

    def _stop(self) -> float:
        self._signal(signal.SIGSTOP)
        return self._random.uniform(0.1, LONG_PAUSE_S)

    def calm(self) -> None:
        """Let it run on."""
        if self._is_stopped():
            self.effects["process stopped"] += 1
        self._signal(signal.SIGCONT)

    def _is_stopped(self) -> bool:
        if self._process is None or self._process.returncode is not None:
            return False
        with suppress(OSError):
            status = Path(f"/proc/{self._process.pid}/stat").read_text("utf-8")
            return status.rpartition(")")[2].split()[0] == "T"
        return False

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def produce(self, stop: asyncio.Event, consumer: Consumer) -> int:
        """Send until told to stop, then close; how many messages it said it had sent. Raises Violation."""
        while not (await self._live(stop) or consumer.ended):
            self.restarts += 1
        return self.returned

    async def _live(self, stop: asyncio.Event) -> bool:
        """Run the process once; whether it came to its end."""
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.soak.producer", *self._arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        telling = asyncio.create_task(self._tell(stop, process.stdin))
        closed = False
        try:
            while line := await process.stdout.readline():
                closed = self._hear(*line.decode().split()) or closed
            code = await process.wait()
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
            self._signal(signal.SIGKILL)
            await process.wait()
            process.stdin.close()
        self.effects["process killed"] += code == -signal.SIGKILL
        if code not in (0, -signal.SIGKILL):
            raise Violation(f"the producer of {self._arguments} ended with {code}")
        return closed

    async def _tell(self, stop: asyncio.Event, stdin: asyncio.StreamWriter) -> None:
        await stop.wait()
        stdin.write(b"stop\n")
        with suppress(ConnectionError):
            await stdin.drain()

    def _hear(self, what: str, value: str) -> bool:
        """What the process says; whether it says that it has closed."""
        if what == "stream":
            if self._stream and value != self._stream:
                # The last life had come to its end, and was killed before it could say so.
                self._signal(signal.SIGKILL)
                return True
            self._stream = value
            return False
        if int(value) < self.returned:
            raise Violation(f"{self._arguments} is at {value} and was at {self.returned}")
        self.returned = int(value)
        return what == "closed"
