"""What goes wrong: on the way between processes, and to them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Protocol

from netchannel import Timing
from tests.support.chaos import DOWN, UP, Proxy, Wire

BETWEEN_S = 0.25
"""Mean time between two faults."""


def timing(latency_s: float) -> Timing:
    """Short, so that a run sees as many losses in a minute as a usual network in a month, but no way is too long."""
    return Timing(
        heartbeat_s=0.2,
        dead_after_s=1.0 + 2 * latency_s,
        handshake_s=1.0 + 4 * latency_s,
        backoff_limit_s=0.3 + latency_s,
    )


class FlippingWire(Wire):
    """Changes one bit of what it carries next, once told to."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.flips = False
        self._random = random

    def changed(self, direction: str, chunk: bytes) -> bytes:
        if not (self.flips and chunk):
            return chunk
        self.flips = False
        changed = bytearray(chunk)
        changed[self._random.randrange(len(changed))] ^= 1 << self._random.randrange(8)
        return bytes(changed)


class Way(Proxy):
    """The way to a receiver, on which anything may happen to all connections, or to one of them.

    Each direction of each connection has a latency of its own, of ``latency_s`` at most.
    """

    def __init__(self, target: str, random: Random, latency_s: float) -> None:
        super().__init__(target, self._make)
        self._random = random
        self._latency_s = latency_s
        self._swallows = False

    def _make(self, number: int) -> Wire:
        wire = FlippingWire(self._random)
        wire.swallows = self._swallows
        wire.latency_s = {direction: self._random.uniform(0, self._latency_s) for direction in (UP, DOWN)}
        return wire

    @property
    def open_wires(self) -> list[FlippingWire]:
        """Connections that are there now."""
        return [
            wire
            for wire in self.wires
            if isinstance(wire, FlippingWire) and not (wire.over.is_set() or wire.left.is_set())
        ]

    def swallow(self) -> None:
        """Nothing gets through, and nobody is told."""
        self._swallows = True
        for wire in self.wires:
            wire.swallows = True

    def recover(self) -> None:
        """Connections get through again; those from before have lost bytes, and are cut."""
        self._swallows = False
        for wire in self.open_wires:
            if wire.swallows:
                wire.cut()


class Victim(Protocol):
    """Who has something that can be disturbed."""

    def disturbances(self) -> dict[str, Callable[[], float]]:
        """What can be done now, by name; each begins it, and gives the seconds after which `calm` is to be called."""

    def calm(self) -> None:
        """Let everything go on."""


class Mischief:
    """Does something at random, again and again, and counts what it did."""

    def __init__(self, random: Random, ways: list[Way], victims: list[Victim], timing: Timing) -> None:
        self.done: Counter[str] = Counter()
        self._random = random
        self._ways = ways
        self._victims = victims
        self._swallowed_s = 2.5 * timing.dead_after_s

    async def go_on(self) -> None:
        """Until cancelled; then everything is calm again."""
        try:
            async with asyncio.TaskGroup() as healing:
                while True:
                    await asyncio.sleep(self._random.expovariate(1 / BETWEEN_S))
                    choices = self._choices()
                    if not choices:
                        continue
                    name, begin, calm = self._random.choice(choices)
                    seconds = begin()
                    self.done[name] += 1
                    if seconds:
                        healing.create_task(self._calm_after(seconds, calm))
        finally:
            for way in self._ways:
                way.recover()
            for victim in self._victims:
                victim.calm()

    async def _calm_after(self, seconds: float, calm: Callable[[], None]) -> None:
        await asyncio.sleep(seconds)
        calm()

    def _choices(self) -> list[tuple[str, Callable[[], float], Callable[[], None]]]:
        way = self._random.choice(self._ways)
        choices: list[tuple[str, Callable[[], float], Callable[[], None]]] = []
        if way.open_wires:
            choices = [
                ("connection reset", lambda: self._cut(way, resets=True), way.recover),
                ("connection ended", lambda: self._cut(way, resets=False), way.recover),
                ("all connections reset", lambda: self._cut_all(way), way.recover),
                ("all arrives late", lambda: self._hang_up(way), way.recover),
                ("bit flipped", lambda: self._flip(way), way.recover),
                ("black hole", lambda: self._swallow(way), way.recover),
            ]
        for victim in self._victims:
            choices += [(name, begin, victim.calm) for name, begin in victim.disturbances().items()]
        return choices

    def _cut(self, way: Way, *, resets: bool) -> float:
        wire = self._random.choice(way.open_wires)
        wire.resets = resets
        wire.cut()
        return 0.0

    def _cut_all(self, way: Way) -> float:
        for wire in way.open_wires:
            wire.cut()
        return 0.0

    def _hang_up(self, way: Way) -> float:
        for wire in way.open_wires:
            wire.hang_up()
        return 0.0

    def _flip(self, way: Way) -> float:
        self._random.choice(way.open_wires).flips = True
        return 0.0

    def _swallow(self, way: Way) -> float:
        way.swallow()
        return self._random.uniform(0.1, self._swallowed_s)
