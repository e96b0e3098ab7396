"""Many senders and many channels to one receiver: all are cut in one moment, and the receiver is killed under them.

Each round sends on every channel, does one of the two, and sends again. What every channel was given is taken once and
in order, or the receiver ends; a round is over when all of it was taken and acknowledged, and nothing is left of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from .crowd_receiver import PLACE, Places
from .messages import Violation

ROOT = Path(__file__).parents[2]
FAULTS = ("all connections cut", "receiver killed")
DEADLINE_S = 300.0
"""For all of a crowd, on a busy machine."""
GROWTH_BYTES = 16 << 20
GROWTH_BYTES_PER_CHANNEL = 1 << 10
"""So much more memory may be resident at an end after all rounds than after the first of its kind."""


@dataclass
class Round:
    """What became of one fault."""

    fault: str
    connections_cut: int  # seen by who did it; those of a killed process
    reconnects: int
    through_s: float
    receiver_cpu_s: float
    senders_cpu_s: float
    receiver_resident: int
    senders_resident: int
    receiver_descriptors: int
    senders_descriptors: int


@dataclass
class Crowd:
    """What happened."""

    seed: int
    senders: int
    channels: int
    opened_s: float = 0.0
    open_cpu_s: float = 0.0
    messages: int = 0
    rounds: list[Round] = field(default_factory=list)
    descriptors: dict[str, tuple[int, int]] = field(
        default_factory=dict
    )  # before the first channel, after the last

    def check_faults(self, asked: tuple[str, ...]) -> None:
        """Raise Violation unless each fault that was asked for happened, and all channels came back from it."""
        if not asked:
            raise Violation("no fault was asked for: nothing is shown by that")
        for number, each in enumerate(self.rounds, 1):
            if min(each.connections_cut, each.reconnects) < self.channels:
                raise Violation(
                    f"round {number}, {each.fault}: {each.connections_cut} connections were cut and {each.reconnects} "
                    f"channels came back, of {self.channels}: it had no effect"
                )
        times = Counter(each.fault for each in self.rounds)
        if never := [fault for fault in asked if not times[fault]]:
            raise Violation(f"asked for, and never happened: {never}")


class Child:
    """A module of this package in a process, which answers each line by one."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.system = psutil.Process(process.pid)

    @classmethod
    async def start(cls, module: str, *arguments: object) -> Child:
        """Start the process; its first line is still to be heard."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", f"tests.soak.{module}", *map(str, arguments)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            limit=1 << 24,
        )
        return cls(process)

    @property
    def cpu_s(self) -> float:
        """The processor seconds that it has taken."""
        times = self.system.cpu_times()
        return float(times.user + times.system)

    async def hear(self) -> dict[str, Any]:
        """Its next line. Raises Violation if it has ended."""
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), DEADLINE_S)
        if not line:
            raise Violation(f"a process of the crowd ended with {await self._process.wait()}")
        heard: dict[str, Any] = json.loads(line)
        return heard

    def tell(self, what: str) -> None:
        """Say what to do."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n".encode())

    async def ask(self, what: str) -> dict[str, Any]:
        """Say what to do, and hear what came of it."""
        self.tell(what)
        return await self.hear()

    def check(self) -> None:
        """Raise Violation if it has ended: it has found something wrong."""
        if (code := self._process.returncode) is not None:
            raise Violation(f"a process of the crowd ended with {code}")

    async def kill(self) -> int:
        """At once; the code that it has ended with, which is another one if it was no more."""
        if self._process.returncode is None:
            self._process.kill()
        return await self._process.wait()

    async def leave(self) -> None:
        """Have it end by itself. Raises Violation if it did not end well."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = await asyncio.wait_for(self._process.wait(), DEADLINE_S)
        if code:
            raise Violation(f"a process of the crowd ended with {code}")


class Run:
    """``senders`` in some processes, ``channels`` of all of them, and one receiver."""

    def __init__(
        self, seed: int, senders: int, channels: int, processes: int, report: Callable[[str], None]
    ) -> None:
        self.crowd = Crowd(seed, senders, channels)
        self._random = Random(seed)
        self._processes = processes
        self._report = report
        self._sent = 0
        self._senders: list[Child] = []
        self._receiver: Child

    async def run(self, seconds: float, fewest: int = 2, faults: tuple[str, ...] = FAULTS) -> Crowd:
        """Rounds for so long, ``fewest`` at least, each fault before one comes again. Raises Violation."""
        crowd = self.crowd
        with TemporaryDirectory() as folder:
            path = Path(folder) / "places"
            path.write_bytes(bytes(PLACE.size * crowd.channels))
            self._places = Places(path, crowd.channels)
            try:
                self._receiver = await Child.start("crowd_receiver", "127.0.0.1:0", path, crowd.channels)
                before = await self._receiver.hear()
                self._arguments = (before["address"], path, crowd.channels)
                await self._open(before)
                end = time.monotonic() + seconds
                deck: list[str] = []
                while faults and (len(crowd.rounds) < fewest or time.monotonic() < end):
                    if not deck:
                        deck = self._random.sample(faults, len(faults))
                    await self._round(deck.pop())
                await self._close(before)
            finally:
                for child in [*self._senders, self._receiver]:
                    await child.kill()
                self._places.close()
        crowd.check_faults(faults)
        self._check_memory()
        return crowd

    async def _open(self, receiver: dict[str, Any]) -> None:
        crowd, count = self.crowd, self._processes
        ends = [[crowd.channels * n // count, crowd.senders * n // count] for n in range(count + 1)]
        for (first, some), (last, more) in pairwise(ends):
            arguments = (receiver["address"], more - some, first, last - first)
            self._senders.append(await Child.start("crowd_senders", *arguments))
        self._idle = [await child.hear() for child in self._senders]
        cpu, began = self._cpu(), time.monotonic()
        await self._all("open")
        await self._send(1)
        await self._through()
        crowd.opened_s = time.monotonic() - began
        crowd.open_cpu_s = sum(self._cpu()) - sum(cpu)
        self._report(
            f"{crowd.channels} channels of {crowd.senders} senders are open after {crowd.opened_s:.1f} s, "
            f"{crowd.open_cpu_s:.1f} s of processors"
        )
        self._settled = await self._settle()

    async def _round(self, fault: str) -> None:
        crowd = self.crowd
        reconnects = sum(map(sum, (each["reconnects"] for each in self._settled[1:])))
        await self._send(self._random.randint(1, 3))  # of which any part may be on its way
        cpu, began = self._cpu(), time.monotonic()
        if fault == "receiver killed":
            cut = self._settled[0]["connections"]
            if (code := await self._receiver.kill()) != -signal.SIGKILL:
                raise Violation(f"the receiver had ended with {code} before it was killed")
            self._receiver = await Child.start("crowd_receiver", *self._arguments)
            await self._receiver.hear()
            cpu = (0.0, cpu[1])
        else:
            cut = (await self._receiver.ask("cut"))["cut"]
        await self._send(1)
        await self._through()
        through_s = time.monotonic() - began
        spent = [after - before for before, after in zip(cpu, self._cpu(), strict=True)]
        receiver, *senders = self._settled = await self._settle()
        crowd.rounds.append(
            Round(
                fault,
                cut,
                sum(sum(each["reconnects"]) for each in senders) - reconnects,
                through_s,
                *spent,
                receiver["resident"],
                sum(each["resident"] for each in senders),
                receiver["descriptors"],
                sum(each["descriptors"] for each in senders),
            )
        )
        last = crowd.rounds[-1]
        self._report(
            f"round {len(crowd.rounds)}, {fault}: {last.reconnects} reconnects, all through after {through_s:.1f} s, "
            f"{spent[0]:.1f} s of processors at the receiver, {spent[1]:.1f} s at the senders"
        )

    async def _send(self, times: int) -> None:
        answers = await self._all(f"send {times}")
        self._sent += sum(each["sent"] for each in answers)

    async def _all(self, what: str) -> list[dict[str, Any]]:
        for child in self._senders:
            child.tell(what)
        return [await child.hear() for child in self._senders]

    def _cpu(self) -> tuple[float, float]:
        return self._receiver.cpu_s, sum(child.cpu_s for child in self._senders)

    async def _through(self) -> None:
        """Until everything that was sent is taken; the receiver sees to the order, and takes nothing twice."""
        await self._until(lambda: sum(self._places.all_due()) >= self._sent, self._missing)

    def _missing(self) -> str:
        due = self._places.all_due()
        behind = [n for n, number in enumerate(due) if number < max(due)]
        return f"{sum(due)} of {self._sent} messages were taken; behind are {len(behind)} channels: {behind[:20]}"

    async def _until(self, condition: Callable[[], bool], missing: Callable[[], str]) -> None:
        end = time.monotonic() + DEADLINE_S
        while not condition():
            for child in (self._receiver, *self._senders):
                child.check()
            if time.monotonic() > end:
                raise Violation(f"after {DEADLINE_S} s: {missing()}")
            await asyncio.sleep(0.05)

    async def _settle(self) -> list[dict[str, Any]]:
        """What all processes hold once all is acknowledged and each connection is there once."""
        crowd = self.crowd
        wanted = crowd.channels + crowd.senders
        end = time.monotonic() + DEADLINE_S
        while True:
            held = [await self._receiver.ask("report"), *await self._all("report")]
            connections = [held[0]["connections"], sum(each["connections"] for each in held[1:])]
            unacknowledged = sum(each["unacknowledged"] for each in held[1:])
            if connections == [wanted, wanted] and not unacknowledged:
                return held
            if time.monotonic() > end:
                raise Violation(
                    f"{connections} connections where {wanted} are due, {unacknowledged} unacknowledged"
                )
            # Measuring stops the world of a process for a while: not so often that peers give it up.
            await asyncio.sleep(0.2 + crowd.channels / 2000)

    async def _close(self, receiver: dict[str, Any]) -> None:
        """All channels end; every one was taken to its end, and neither side holds more than before the first."""
        crowd = self.crowd
        closed = [number for each in await self._all("close") for number in each["closed"]]
        await self._receiver.ask("end")
        if closed != self._places.all_due():
            raise Violation(f"{sum(closed)} messages were sent, {sum(self._places.all_due())} were taken")
        crowd.messages = sum(closed)
        before = [receiver, *self._idle]
        end = time.monotonic() + DEADLINE_S
        while True:
            after = [await self._receiver.ask("report"), *await self._all("report")]
            held = [
                (now["descriptors"], then["descriptors"]) for now, then in zip(after, before, strict=True)
            ]
            if all(now <= then for now, then in held):
                break
            if time.monotonic() > end:
                raise Violation(f"descriptors at the end and before the first channel: {held}")
            await asyncio.sleep(0.2)
        crowd.descriptors["receiver"] = (before[0]["descriptors"], after[0]["descriptors"])
        crowd.descriptors["senders"] = (
            sum(each["descriptors"] for each in before[1:]),
            sum(each["descriptors"] for each in after[1:]),
        )
        for child in [*self._senders, self._receiver]:
            await child.leave()

    def _check_memory(self) -> None:
        """Neither side grows from round to round, and none holds other descriptors than after the first."""
        rounds = self.crowd.rounds
        bound = GROWTH_BYTES + GROWTH_BYTES_PER_CHANNEL * self.crowd.channels
        for name in ("receiver_resident", "senders_resident"):
            first, last = (getattr(each, name) for each in (rounds[0], rounds[-1]))
            # Each process has its own share of what its libraries keep.
            allowed = bound if name == "receiver_resident" else bound * max(1, self._processes // 2)
            if last > first + allowed:
                raise Violation(f"{name} grew from {first} to {last} bytes in {len(rounds)} rounds")
        for name in ("receiver_descriptors", "senders_descriptors"):
            first, last = (getattr(each, name) for each in (rounds[0], rounds[-1]))
            if last > first:
                raise Violation(f"{name} grew from {first} to {last} in {len(rounds)} rounds")


def table(crowd: Crowd) -> str:
    """What happened, for people."""
    mib = 1 << 20
    lines = [
        f"{crowd.channels:,} channels of {crowd.senders:,} senders, {crowd.messages:,} messages, seed {crowd.seed}",
        f"open after {crowd.opened_s:.1f} s, {crowd.open_cpu_s:.1f} s of processors",
        "",
        f"{'':22}{'':>9}{'':>12}{'processor s':>20}{'resident MiB':>20}{'descriptors':>20}",
        f"{'fault':22}{'seconds':>9}{'reconnects':>12}" + 3 * f"{'receiver':>10}{'senders':>10}",
    ]
    lines += [
        f"{each.fault:22}{each.through_s:9.1f}{each.reconnects:12,}{each.receiver_cpu_s:10.1f}{each.senders_cpu_s:10.1f}"
        f"{each.receiver_resident / mib:10.1f}{each.senders_resident / mib:10.1f}"
        f"{each.receiver_descriptors:10,}{each.senders_descriptors:10,}"
        for each in crowd.rounds
    ]
    lines += ["", f"{'descriptors':22}{'before':>9}{'after':>12}"]
    lines += [f"{name:22}{before:9,}{after:12,}" for name, (before, after) in crowd.descriptors.items()]
    return "\n".join(lines)
