"""Rows that count for the steps of a member: rows logged, sources read again, and rows left out."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

import pyarrow as pa

from nebuli.dataflow.steps.origins import SourceRows
from nebuli.dataflow.steps.trial import Trial
from nebuli.dataflow.zset import added
from nebuli.durable_files import sync_directory
from nebuli.steps.logs.remap import NOTHING, Address, Passage
from nebuli.store.errors import LogTaken
from placement.stepped_plan import TIME

from .replayable_source import ReplayableSource
from .step_times import DatedReading, StepTimes

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from nebuli.steps.errors import FailedStep
    from nebuli.steps.logs.input_log import InputLog
    from placement.stepped_plan import Feed, SteppedPlan


_NONE = Passage(Address(), Address(), 0)
WAITING_ROWS = 1 << 18
"""Sources are not read on, and pushes not taken, while so many rows have come in and are in no step yet."""
WAITING_BYTES = 1 << 26
"""The same for the bytes of those that are kept in memory."""


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
        self._has_times = gives_times or any(feed.source.physical.dated for feed in self._feeds)
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
        dated = await self.times.passages() if self._has_times else {}
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


class LeftOut(NamedTuple):
    """Rows of an input in a step; ``unfit``: only those that a `Trial` finds unfit, and otherwise all.

    No ``input``: the step has no rows, and event time does not end with it.
    """

    step: int
    input: str
    unfit: bool = False


class LeftOutRows:
    """The rows of ``plan``'s inputs that these rules leave out, the same wherever it is computed."""

    def __init__(self, plan: SteppedPlan, rules: Iterable[LeftOut] = ()) -> None:
        self._plan = plan
        self._rules: dict[int, dict[str, bool]] = {}
        for step, input_, unfit in rules:
            self._rules.setdefault(step, {})[input_] = unfit

    def __contains__(self, step: int) -> bool:
        return step in self._rules

    def whole(self, step: int) -> bool:
        """Return True if all rows of an input are left out of a step. Event time does not end with such a step."""
        return not all(self._rules.get(step, {}).values())

    def inputs(self, step: int) -> Mapping[str, bool]:
        """The inputs of which rows are left out, each with whether these are the unfit ones alone."""
        return self._rules.get(step, {})

    @cached_property
    def _trial(self) -> Trial:
        return Trial(self._plan)

    def kept(self, step: int, input_: str, batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        """The rows that are not left out."""
        return self._parted(step, input_, batches)[0]

    def left_out(self, step: int, input_: str, batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        """The rows that are left out."""
        return self._parted(step, input_, batches)[1]

    def _parted(
        self, step: int, input_: str, batches: Sequence[pa.RecordBatch]
    ) -> tuple[Sequence[pa.RecordBatch], Sequence[pa.RecordBatch]]:
        unfit = self.inputs(step).get(input_)
        if unfit is None or not batches:
            return batches, ()
        if not unfit:
            return (), batches
        fit, rest = self._trial.parted(input_, added(batches, batches[0].schema))
        return [fit], [rest]


def rules_for(plan: SteppedPlan, failed: FailedStep) -> list[LeftOut]:
    """Rules for a step that failed: the rows that fail on their own, if the operator identifies them; otherwise all."""
    unfit = failed.operator in Trial(plan).tried
    return [LeftOut(failed.step, input_, unfit) for input_ in failed.inputs]


async def rows_of_step(
    log: InputLog, readings: ReplayableSources, step: int
) -> dict[str, list[pa.RecordBatch]]:
    """Return the logged rows of a step, and the sources' rows for it, by input; only inputs with rows.

    Raises InputError, StorageError.
    """
    if not log.first <= step < log.last:
        return {}
    parts = {input_: [rows] for input_, rows in (await log.logged(step)).items()}
    for input_, sources in (await readings.rows(step)).items():
        for each in sources.values():
            parts.setdefault(input_, []).extend(each.rows)
    readings.leave_replay()
    return {input_: rows for input_, rows in parts.items() if any(each.num_rows for each in rows)}


def put_into_file(folder: Path, step: int, input_: str, rows: pa.RecordBatch) -> Path:
    """Write rows that are left out into a file of their own, durably: an Arrow IPC file. Raises OSError."""
    file = folder / f"skipped-{step}-{quote(input_, safe='')}.arrow"
    aside = file.with_name(f".{file.name}.new")
    with aside.open("wb") as opened:
        with pa.ipc.new_file(opened, rows.schema) as writer:
            writer.write_batch(rows)
        opened.flush()
        os.fsync(opened.fileno())
    aside.rename(file)
    sync_directory(folder)
    return file


class StepInputs:
    """The input that counts by ``log``, with its rows, and those of ``readings``.

    Rows that are ``left_out`` of a step do not count.
    """

    def __init__(self, log: InputLog, readings: ReplayableSources, left_out: LeftOutRows) -> None:
        self._log = log
        self._left_out = left_out
        self._readings = readings
        self._last = log.last
        self._taken = asyncio.Event()
        self.held: set[str] = set()
        """The inputs for which nothing is taken."""

    @property
    def waiting_rows(self) -> int:
        """How many rows have come in and count for no step yet."""
        return self._log.waiting_rows() + self._readings.waiting_rows

    async def room(self, input_: str, reading: ReplayableSource | None = None) -> None:
        """Wait until more rows are taken for an input: without a deadline, as that may be paused, or the circuit.

        Where steps wait for a ``reading``, what fills the room is not taken before that has read on.
        """
        while input_ in self.held or (self._is_full and not (reading is not None and reading.is_waited_for)):
            self._taken.clear()
            await self._taken.wait()

    @property
    def _is_full(self) -> bool:
        return self.waiting_rows >= WAITING_ROWS or self._readings.waiting_bytes >= WAITING_BYTES

    def let_go(self, input_: str) -> None:
        """Take rows for an input again."""
        self.held.discard(input_)
        self._taken.set()

    def leaves_out(self, step: int) -> bool:
        """True if rows are left out of a step."""
        return step in self._left_out

    def keeps_time_open(self, step: int) -> bool:
        """True if event time does not end with a step, although the log has that."""
        return self._left_out.whole(step)

    def check_whose(self) -> None:
        """Raise LogTaken where another process has fixed steps: what was read here is not what counts for them."""
        if self._log.last > self._last:
            raise LogTaken(f"input log {self._log.name}")

    async def of(
        self, step: int, *, replayed: bool, ended: bool
    ) -> tuple[Mapping[str, Sequence[pa.RecordBatch]], Mapping[str, Mapping[str, SourceRows]]]:
        """Return the input of a step, as a circuit takes it: Z-sets for each input, and the sources' rows.

        The next step is fixed by it, with all that has come in.

        ``replayed``: with nothing, as others had that step already. ``ended``: event time ends with it. That it counts
        is durable, even if this process ends. Raises StorageError, InputError; LogTaken as `check_whose`.
        """
        self.check_whose()
        self._last = max(self._last, step + 1)  # also where it fails, and has happened
        if not replayed:
            self._readings.leave_replay()
        logged = await self._logged(step, replayed=replayed, ended=ended)
        inputs: dict[str, Sequence[pa.RecordBatch]] = {
            key: [rows] for key, rows in logged.items() if rows.num_rows
        }
        sources = await self._readings.rows(step)
        if step in self._left_out:
            inputs = {key: self._left_out.kept(step, key, rows) for key, rows in inputs.items()}
            sources = {key: self._kept(step, key, rows) for key, rows in sources.items()}
        self._taken.set()
        return inputs, sources

    def _kept(self, step: int, input_: str, sources: Mapping[str, SourceRows]) -> Mapping[str, SourceRows]:
        return {
            source: SourceRows(self._left_out.kept(step, input_, each.rows), each.awaited)
            for source, each in sources.items()
        }

    async def _logged(self, step: int, *, replayed: bool, ended: bool) -> dict[str, pa.RecordBatch]:
        if step < self._log.last:
            return await self._log.fix(step)
        read = NOTHING
        if replayed:
            await self._log.pass_over(step)
        else:
            read = await self._readings.passages()
        return await (self._log.end(step, read) if ended else self._log.fix(step, read))
