"""What all stories share: processes that end, one after the other, with the power or without, as a seed draws it.

Where in its work that finds a process depends on the machine, too: a story that fails is found again by its seed often,
not always.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from netchannel import NetChannelError

from .actors import HUNG
from .machine import KILLED, Machine, Process

FILES = {
    "send": (".segment", "/", "manifest.new", "marks"),
    "retain": (".segment", "/", "manifest.new", "marks", "consumers.new"),
    "stage": (".unsealed", "/", "manifest.new", "marks", "journal", "journal.new"),
}
"""By the first word of a seed, which is the kind of its story: how the names of files end that are synced there."""
LIVES = 5
DEADLINE_S = 60.0
_QUICK_S = 2.0
_SPARED, _SHORT, _FAULTY = 0.4, 0.1, 0.4
"""How often only the process ends; how often a write takes less than it was given; and how often something fails."""
_FULL = 4
"""For so many changes nothing can grow: whoever waits for room looks for it once in a second."""
_SAYS = {"failing_syncs": "Input/output error", "until": "No space left"}
ANY = tuple(_SAYS)


class Life(NamedTuple):
    """How one of the processes ends, and what fails before (`Machine.start`). The last ends by itself."""

    end_at: int | None
    of: str
    spared: bool
    fault: dict[str, int]

    @property
    def is_last(self) -> bool:
        return self.end_at is None


@dataclass
class Story:
    """A new disk, whose syncs do nothing for files that end like ``lies`` (`tests.power.disk.Disk`)."""

    power: Machine
    seed: str
    lies: tuple[str, ...] = ()
    messages: Random = field(init=False)
    """For whoever makes some: how processes end is not to depend on how many there were."""
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        self.messages, self._random = Random(f"messages of {self.seed}"), Random(self.seed)

    def lives(self) -> Iterator[Life]:
        """With power at the beginning of each; it may go at the end."""
        power = self.power
        power.new_disk(self.seed, short_writes=_SHORT, lies=self.lies)
        for number in range(LIVES):
            power.power_on(f"{self.seed} {number}")
            life = self._life() if number < LIVES - 1 else Life(None, of="", spared=False, fault={})
            yield life
            if not life.spared:
                power.cut()

    def _life(self) -> Life:
        random = self._random
        of = random.choice(["", *FILES[self.seed.split()[0]]])
        # Early changes as often as late ones: these are much alike.
        end_at = int(2 ** random.uniform(0, 3 if of else 6.5))
        spared = random.random() < _SPARED
        return Life(end_at, of, spared, {} if self.lies else self._fault())

    def _fault(self) -> dict[str, int]:
        random = self._random
        if random.random() >= _FAULTY:
            return {}
        start = int(2 ** random.uniform(0, 6))
        failing = random.random() < 0.7
        return {"from": start, "failing_syncs": 1} if failing else {"from": start, "until": start + _FULL}

    async def ended(self, process: Process) -> int:
        """The exit code. Raises TimeoutError for a process that did not end."""
        within_s = _QUICK_S if self.lies else DEADLINE_S
        status = await asyncio.to_thread(self.power.ended, process, within_s)
        if status == HUNG:
            raise TimeoutError(f"it did not end: {process.said()[-3:]}")
        return status


@contextmanager
def undecided(lies: tuple[str, ...]) -> Iterator[None]:
    """Around a story: a lie may make somebody wait for ever, which shows no more than a slow machine does."""
    try:
        yield
    except TimeoutError:
        if not lies:
            raise


def check_end(process: Process, status: int, life: Life, last: int = 0) -> None:
    """It ended as it should, or its disk failed and it said so."""
    if status != (last if life.is_last else KILLED):
        fault, said = life.fault, process.said()
        error = "LogBroken" if "failing_syncs" in fault else "StorageFull" if fault else "nothing"
        assert said, status
        assert said[-1][:2] == ["failed", error], (status, said[-1])


@contextmanager
def disk_errors(faults: Iterable[str]) -> Iterator[None]:
    """Within it, whoever relies on the disk may be told what was wrong with it."""
    try:
        yield
    except NetChannelError as error:
        if not any(_SAYS.get(fault, "\n") in str(error) for fault in faults):
            raise
