"""`StepTimes`: up to which time of what is dated a step has all, and at which time it is written: one for both."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING

from nebuli.steps.logs.remap import Address, Passage
from nebuli.steps.member.inputs.replayable_source import ReplayableSource
from placement.stepped_plan import TIME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from concurrent.futures import ThreadPoolExecutor

    import pyarrow as pa

    from placement.stepped_plan import Feed

BEAT_S = 1.0
"""If outputs have times, a step comes as often, also without rows: their readers wait for its time."""
_HASTEN_S = 0.25
"""How long a step waits for a time of its own. Without one, its rows are written at the time of a later step."""


class DatedReading(ReplayableSource):
    """A source whose positions are times. For each time it has all rows or none."""

    def __init__(
        self,
        feed: Feed,
        at: Address,
        threads: ThreadPoolExecutor,
        *,
        is_timed: bool,
        idle_after_s: float | None,
        grows: bool = False,
    ) -> None:
        super().__init__(feed, at, threads, is_timed=is_timed, idle_after_s=idle_after_s, grows=grows)
        self.begin = int(at.position) if at.position else None
        """The first time at which its rows are known; None before that is."""
        self.reached = self.begin
        """The last time up to which all rows are here; None before there is one."""
        self.has_ended = False
        self.times: StepTimes
        self._uncounted: deque[tuple[int, int]] = deque()

    def _keep(self, batch: pa.RecordBatch, end: Address, arrived: Callable[[int], None]) -> None:
        self._ahead.keep(batch, end)
        at = int(end.position)
        if batch.num_rows:
            self._uncounted.append((at, batch.num_rows))
        self.begin = at if self.begin is None else self.begin
        self.reached = at
        self.times.moved(arrived)

    def _has_ended(self, arrived: Callable[[int], None]) -> None:
        self.has_ended = True
        self.times.moved(arrived)

    @property
    def is_waited_for(self) -> bool:
        """True if others have read further, so that their rows count only once this one has."""
        return self.times.waits_for(self)

    def newly_counted(self, at: int) -> int:
        """How many rows there are up to a time, in addition to those that were counted before."""
        rows = 0
        while self._uncounted and self._uncounted[0][0] <= at:
            rows += self._uncounted.popleft()[1]
        return rows

    def passage_up_to(self, at: int | None) -> Passage:
        """Return its passage for the next step; nothing, if that has no time of its own."""
        here = self._ahead.at
        return self._awaited(Passage(here, here, 0) if at is None else self._ahead.read_up_to(at))

    def hasten(self) -> None:
        """Have it reach a later time, if it can."""
        self._ahead.hasten()


class StepTimes:
    """The times of one member, which reads all dated sources and writes all dated outputs; others have none.

    ``before`` is the time of the last step, 0 at first. Something ``is_written`` at them, or not.
    """

    def __init__(self, readings: Iterable[DatedReading], before: int, *, is_written: bool) -> None:
        self.before = before
        self._readings = list(readings)
        self._is_written = is_written
        self._moved = asyncio.Event()
        self._has_beaten = False
        for each in self._readings:
            each.times = self

    def _complete(self) -> int | None:
        """The last time up to which all is here; None before there is one for all sources."""
        reading = [each for each in self._readings if not each.has_ended]
        reached = [each.reached for each in reading]
        begins = [0 if each.begin is None else each.begin for each in self._readings]
        if None in reached:
            return None
        begin = max(begins, default=0)
        if not reached:  # what has ended is what it was where it began
            return begin if begin > self.before else max(time.time_ns() // 1_000_000, self.before + 1)
        at = min(each for each in reached if each is not None)
        return at if at >= begin else None

    def waits_for(self, reading: DatedReading) -> bool:
        """True if steps have no more rows until this one has read further: none of its own wait for the next one."""
        if reading.waiting_rows and self._complete() is not None:
            return False
        reached = [each.reached for each in self._readings if not each.has_ended]
        return reading.reached is None or reading.reached == min(each for each in reached if each is not None)

    def moved(self, arrived: Callable[[int], None]) -> None:
        """A source has read further: ``arrived`` is called with the number of additional rows for the next step."""
        self._moved.set()
        at = self._complete()
        if at is not None and (rows := sum(each.newly_counted(at) for each in self._readings)):
            arrived(rows)

    async def beat(self, arrived: Callable[[int], None]) -> None:
        """Where something is written, have a step made from time to time, once it has a later time; without an end."""
        while self._is_written:
            await asyncio.sleep(BEAT_S)
            at = self._complete()
            if at is not None and at > self.before and not self._has_beaten:
                self._has_beaten = True
                arrived(1)

    async def passages(self) -> Mapping[str, Passage]:
        """Return the passage of each source for the next step, and its time, if it has its own."""
        at = self._complete()
        if self._is_written and (at is None or at <= self.before):
            at = await self._hastened()
        self._has_beaten = False
        if at is not None and at <= self.before:
            at = None
        found = {each.feed.name: each.passage_up_to(at) for each in self._readings}
        if at is not None and (self._readings or self._is_written):
            found[TIME] = Passage(Address(str(self.before)), Address(str(at)), 0)
        return found

    async def _hastened(self) -> int | None:
        for each in self._readings:
            each.hasten()
        try:
            async with asyncio.timeout(_HASTEN_S):
                while (at := self._complete()) is None or at <= self.before:
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            return None
        return at
