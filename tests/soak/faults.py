"""What goes wrong: on the way between processes, and to them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import Protocol

from netchannel import Timing
from tests.support.chaos import DOWN, UP, Proxy, Wire

from .messages import Violation

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


ON_THE_WAY = (
    "connection reset",
    "connection ended",
    "all connections reset",
    "all arrives late",
    "bit flipped",
    "black hole",
)
TO_CONSUMERS = ("consumer stalled", "consumer replaced")
TO_PROCESSES = ("process killed", "process stopped")
LATENCY = "latency"
"""Of every connection, all the time: it is asked for by a latency above 0."""
FAULTS = ON_THE_WAY + TO_CONSUMERS + TO_PROCESSES


ENOUGH_TIMES = 5
"""A single fault may miss, as one whose connection is cut at once; so many of a kind do not all miss."""


def check_happened(asked: Iterable[str], times: Counter[str], effects: Counter[str]) -> None:
    """Raise Violation unless each fault that was ``asked`` for happened, and if often, then with an effect."""
    asked = list(asked)
    if not asked:
        raise Violation("no fault was asked for: that all went well shows nothing")
    if never := [fault for fault in asked if not times[fault]]:
        raise Violation(f"these faults were asked for, and never happened: {never}")
    if vain := [fault for fault in asked if times[fault] >= ENOUGH_TIMES and not effects[fault]]:
        raise Violation(f"these faults happened, and none of them had an effect: {vain}")


class FlippingWire(Wire):
    """Changes one bit of what it carries next, once told to."""

    def __init__(self, random: Random, effects: Counter[str]) -> None:
        super().__init__()
        self.flips = False
        self._random = random
        self._effects = effects

    def forward(self, direction: str, chunk: bytes) -> bytes:
        if chunk and self.swallows:
            self._effects["black hole"] += 1
        elif chunk and self.latency_s[direction]:
            self._effects[LATENCY] += 1
        return super().forward(direction, chunk)

    def changed(self, direction: str, chunk: bytes) -> bytes:
        if not (self.flips and chunk):
            return chunk
        self.flips = False
        self._effects["bit flipped"] += 1
        changed = bytearray(chunk)
        changed[self._random.randrange(len(changed))] ^= 1 << self._random.randrange(8)
        return bytes(changed)


class Way(Proxy):
    """The way to a receiver, on which anything may happen to all connections, or to one of them.

    Each direction of each connection has a latency of its own, of ``latency_s`` at most.
    """

    def __init__(self, target: str, random: Random, latency_s: float) -> None:
        super().__init__(target, self._make)
        self.effects: Counter[str] = Counter()
        self._random = random
        self._latency_s = latency_s
        self._swallows = False
        self._cut_by: list[str] = []

    def will_cut(self, wires: Iterable[Wire], fault: str) -> None:
        """Connections are about to be cut; that has had its effect when somebody comes back."""
        cut = [wire for wire in wires if not wire.is_cut and any(wire.passed.values())]
        self._cut_by += [fault] * len(cut)

    def _make(self, number: int) -> Wire:
        self.effects.update(self._cut_by)  # they are back
        self._cut_by.clear()
        wire = FlippingWire(self._random, self.effects)
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

    @property
    def carrying_wires(self) -> list[FlippingWire]:
        """Open connections whose bytes get through."""
        return [wire for wire in self.open_wires if not wire.swallows]

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

    def __init__(
        self,
        random: Random,
        ways: list[Way],
        victims: list[Victim],
        timing: Timing,
        asked: Iterable[str],
        done: Counter[str],
    ) -> None:
        self.done = done
        self._asked = frozenset(asked)
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
                    # What has happened least of all comes first, so that a short run sees every kind.
                    fewest = min(self.done[name] for name, *_ in choices)
                    choices = [each for each in choices if self.done[each[0]] == fewest]
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
                ("black hole", lambda: self._swallow(way), way.recover),
            ]
        if way.carrying_wires:
            choices.append(("bit flipped", lambda: self._flip(way), way.recover))
        for victim in self._victims:
            choices += [(name, begin, victim.calm) for name, begin in victim.disturbances().items()]
        return [each for each in choices if each[0] in self._asked]

    def _cut(self, way: Way, *, resets: bool) -> float:
        wire = self._random.choice(way.open_wires)
        way.will_cut([wire], "connection reset" if resets else "connection ended")
        wire.resets = resets
        wire.cut()
        return 0.0

    def _cut_all(self, way: Way) -> float:
        way.will_cut(way.open_wires, "all connections reset")
        for wire in way.open_wires:
            wire.cut()
        return 0.0

    def _hang_up(self, way: Way) -> float:
        way.will_cut(way.open_wires, "all arrives late")
        for wire in way.open_wires:
            wire.hang_up()
        return 0.0

    def _flip(self, way: Way) -> float:
        self._random.choice(way.carrying_wires).flips = True
        return 0.0

    def _swallow(self, way: Way) -> float:
        way.swallow()
        return self._random.uniform(0.1, self._swallowed_s)
