"""`ReplayableSources`: all sources of a member that can be read again, and what of them counts for its steps."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from nebuli.dataflow.steps.origins import SourceRows
from nebuli.steps.logs.addresses import Address, Passage
from nebuli.steps.member.inputs.replayable_source import ReplayableSource
from nebuli.steps.member.inputs.step_times import DatedReading, StepTimes
from placement.stepped_plan import TIME

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from nebuli.steps.logs.input_log import InputLog
    from placement.stepped_plan import Feed


_NONE = Passage(Address(), Address(), 0)


class ReplayableSources:
    """Entered, they stand where the log's last step ended; left, they are closed.

    ``feeds`` are all of the member's; ``idle_after_s`` and ``untimed`` are as of `nebuli.dataflow.SteppedCircuit`.
    ``gives_times``: something is written at the times of steps, which this member gives. ``awaits_growth``: event time
    waits for what a later run finds in sources that grow.
    """

    def __init__(
        self,
        feeds: Sequence[Feed],
        log: InputLog,
        idle_after_s: Mapping[str, float | None],
        *,
        untimed: Container[str] = (),
        gives_times: bool = False,
        awaits_growth: bool = False,
    ) -> None:
        self._feeds = [feed for feed in feeds if feed.source.physical.can_be_read_again]
        self._log = log
        self._idle_after_s = idle_after_s
        self._untimed = untimed
        self._gives_times = gives_times
        self._awaits_growth = awaits_growth
        self._readings: dict[str, ReplayableSource] = {}
        self.times: StepTimes
        """The times of steps."""
        self._threads = ThreadPoolExecutor(2 * len(self._feeds) + 1, "nebuli-reading")

    async def __aenter__(self) -> Self:
        at = await self._log.where(self._log.last)
        self._readings = {
            feed.name: (DatedReading if feed.source.physical.dated else ReplayableSource)(
                feed,
                at.get(feed.name, Address()),
                self._threads,
                is_timed=feed.input in self._idle_after_s,
                idle_after_s=self._idle_after_s.get(feed.input),
                grows=self._awaits_growth and feed.source.physical.grows,
            )
            for feed in self._feeds
        }
        dated = [each for each in self if isinstance(each, DatedReading)]
        before = int(at[TIME].position) if TIME in at else 0
        self.times = StepTimes(dated, before, is_written=self._gives_times)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for reading in self:
            reading.close()
        self._threads.shutdown(wait=False)

    def __iter__(self) -> Iterator[ReplayableSource]:
        return iter(self._readings.values())

    @property
    def waiting_rows(self) -> int:
        """How many rows were read that count for no step yet."""
        return sum(each.waiting_rows for each in self)

    @property
    def waiting_bytes(self) -> int:
        """How many bytes these have."""
        return sum(each.waiting_bytes for each in self)

    async def passages(self) -> Mapping[str, Passage]:
        """Return the passage of each for the next step; and its time, if something is dated."""
        dated = await self.times.passages()
        others = {key: each.passage() for key, each in self._readings.items() if key not in dated}
        return {**others, **dated}

    async def rows(self, step: int) -> Mapping[str, Mapping[str, SourceRows]]:
        """Return the rows of each in a fixed step, by input. Raises InputChanged, InputError, StepOutOfRange."""
        found: dict[str, dict[str, SourceRows]] = {}
        passages = await self._log.passages(step)
        if TIME in passages:
            self.times.before = max(self.times.before, int(passages[TIME].until.position))
        for source, reading in self._readings.items():
            passage = passages.get(source, _NONE)
            rows = await reading.rows(passage) if source in passages else ()
            awaited = passage.until.awaited and self._is_awaited(reading.feed)
            found.setdefault(reading.feed.input, {})[source] = SourceRows(rows, awaited)
        return found

    def _is_awaited(self, feed: Feed) -> bool:
        """True if event time waits for a source at all: without its own time, only for one that ends on its own."""
        return feed.input not in self._untimed or feed.source.physical.ends == "always"

    async def release(self, step: int) -> None:
        """No state is kept of before that step. Raises InputError, StepOutOfRange."""
        for source, address in (await self._log.where(step)).items():
            if source != TIME:
                await self._readings[source].release(address)

    async def time(self, step: int) -> int | None:
        """The time of a step that is fixed; None if it has none of its own. Raises StepOutOfRange."""
        passage = (await self._log.passages(step)).get(TIME, _NONE)
        return None if passage.first == passage.until else int(passage.until.position)

    def leave_replay(self) -> None:
        """Close what was opened once more for steps that were replayed."""
        for reading in self:
            reading.leave_replay()
