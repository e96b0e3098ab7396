"""Rounds of channels under faults, and what is left after them."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from netchannel import ReceiverServer, SenderServer
from netchannel.transports.runner import DISK_THREADS

from .channels import KINDS, Consumer, DurableProducer, produce
from .faults import FAULTS, LATENCY, Mischief, Way, check_happened, timing
from .messages import Violation
from .resources import Resources, measure, memory_of_the_system

ROUND_S = 15.0
THROUGH_S = 60.0
"""So long after producers were told to stop everything must be through, faults or not, where no way takes time."""
TROUBLED_S = 1.0
"""So long faults go on while channels end."""
MORE_ROUNDS = 8
"""So many more there are at most, beyond the time that was asked for, until every fault has shown an effect."""
RESIDENT_BYTES = 24 << 20
"""So much more may be resident after a run than after its first round: memory that is kept to be used again, of frames
and of what is received."""


@dataclass
class Tally:
    """What happened."""

    rounds: int = 0
    messages: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    effects: Counter[str] = field(default_factory=Counter)  # seen by whom the faults befell
    reconnects: Counter[str] = field(default_factory=Counter)
    connections: int = 0
    restarts: int = 0
    bytes_moved: int = 0
    before: Resources | None = None
    after: Resources | None = None


class Soak:
    """A long-lived process with a receiver and a sender. Everything is drawn from ``seed``, but for time.

    Each direction of a connection takes ``latency_s`` at most. Each of ``faults`` must happen, or the run fails.
    """

    def __init__(
        self,
        seed: int,
        latency_s: float = 0.0,
        report: Callable[[str], None] = lambda line: None,
        faults: Iterable[str] = FAULTS,
    ) -> None:
        self._faults = frozenset(faults)
        self.tally = Tally()
        self._latency_s = latency_s
        self._timing = timing(latency_s)
        self._through_s = THROUGH_S + 30 * latency_s
        self._random = Random(seed)
        self._report = report

    async def run(self, seconds: float) -> Tally:
        """Rounds for so long, the first one to warm up. Raises Violation."""
        with memory_of_the_system():
            return await self._run(seconds)

    async def _run(self, seconds: float) -> Tally:
        end = time.monotonic() + seconds
        round_s = min(ROUND_S, seconds / 4)
        threads = threading.active_count()
        async with (
            ReceiverServer(timing=self._timing) as receiver,
            SenderServer(timing=self._timing) as sender,
        ):
            await self._round(receiver, sender, round_s)
            before = self.tally.before = await self._rest(receiver, sender)
            while self.tally.rounds < 2 or time.monotonic() + round_s < end:
                await self._round(receiver, sender, round_s)
            last = self.tally.rounds + MORE_ROUNDS
            while self.tally.rounds < last and any(not self.tally.effects[each] for each in self._faults):
                await self._round(receiver, sender, round_s)
            after = self.tally.after = await self._rest(receiver, sender)
            self.tally.bytes_moved = receiver.statistics().bytes_received
        self._compare(before, after)
        if threading.active_count() > threads:
            raise Violation(
                f"{threading.enumerate()} were left behind by servers; {threads} were there before"
            )
        self._check_faults()
        return self.tally

    def _check_faults(self) -> None:
        tally, asked = self.tally, sorted(self._faults)
        if self._latency_s:
            asked.append(LATENCY)
            tally.faults[LATENCY] = tally.connections
        check_happened(asked, tally.faults, tally.effects)
        if not sum(tally.reconnects.values()):
            raise Violation("no channel has ever come back: no fault has reached a connection")

    async def _round(self, receiver: ReceiverServer, sender: SenderServer, seconds: float) -> None:
        tally, random = self.tally, self._random
        tally.rounds += 1
        stop = asyncio.Event()
        with tempfile.TemporaryDirectory() as directory:
            async with (
                Way(receiver.address, random, self._latency_s) as near,
                Way(receiver.address, random, self._latency_s) as far,
            ):
                consumers = {
                    kind: Consumer(kind, f"{kind} {tally.rounds}", receiver, random, settings)
                    for kind, (_, settings) in KINDS.items()
                }
                durable_id = f"durable {tally.rounds}"
                durable = Consumer("durable", durable_id, receiver, random, {"codec": "bytes"})
                process = DurableProducer(durable_id, far.address, Path(directory), random, self._latency_s)
                victims = [*consumers.values(), durable, process]
                mischief = Mischief(random, [near, far], victims, self._timing, self._faults, tally.faults)
                async with asyncio.TaskGroup() as group:
                    trouble = group.create_task(mischief.go_on())
                    consuming = [group.create_task(each.consume()) for each in [*consumers.values(), durable]]
                    producing = {
                        kind: group.create_task(
                            produce(kind, f"{kind} {tally.rounds}", sender, near.address, stop)
                        )
                        for kind in KINDS
                    }
                    producing["durable"] = group.create_task(process.produce(stop, durable))
                    await asyncio.sleep(seconds)
                    stop.set()
                    await asyncio.sleep(TROUBLED_S)
                    trouble.cancel()
                    await self._through([*consuming, *producing.values()])
                consumers["durable"] = durable
                for kind, consumer in consumers.items():
                    self._agree(consumer, producing[kind].result(), exactly=kind != "durable")
                for each in (near, far, *consumers.values(), process):
                    tally.effects.update(each.effects)
                tally.restarts += process.restarts
                tally.connections += len(near.wires) + len(far.wires)
        self._report(
            f"round {tally.rounds}: {sum(tally.messages.values())} messages, {sum(tally.faults.values())} faults"
        )

    async def _through(self, tasks: list[asyncio.Task[None] | asyncio.Task[int]]) -> None:
        _, pending = await asyncio.wait(tasks, timeout=self._through_s)
        if pending:
            names = sorted(repr(task.get_coro()) for task in pending)
            raise Violation(f"not through {self._through_s} s after the last fault: {names}")

    def _agree(self, consumer: Consumer, sent: int, *, exactly: bool) -> None:
        """Who was killed may have taken more than it could say."""
        if consumer.read != sent if exactly else consumer.read < sent:
            raise Violation(f"{consumer.kind}: {sent} messages were sent, {consumer.read} were read")
        self.tally.messages[consumer.kind] += consumer.read
        self.tally.reconnects[consumer.kind] += consumer.reconnects

    async def _rest(self, receiver: ReceiverServer, sender: SenderServer) -> Resources:
        """Wait until both servers are idle; what the process holds then."""
        end = time.monotonic() + self._through_s
        while True:
            left = [receiver.statistics(), sender.statistics()]
            if not any(server.channels or server.connections or server.peers for server in left):
                return measure()
            if time.monotonic() > end:
                raise Violation(f"after all channels have ended, these are left: {left}")
            await asyncio.sleep(0.05)

    def _compare(self, before: Resources, after: Resources) -> None:
        # Threads of the disk start as they are needed, and stay as long as their server.
        if (
            after.descriptors > before.descriptors
            or after.tasks > before.tasks
            or after.threads > before.threads + DISK_THREADS
            or after.resident > before.resident + RESIDENT_BYTES
        ):
            raise Violation(f"left behind: {before} became {after}")
