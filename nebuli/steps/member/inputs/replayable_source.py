"""The reading of a member's sources: on threads, and ahead of the steps that their rows count for.

`PolledSource` asks any source on threads, for code that waits on an event loop. `ReplayableSource` reads a source that
can be read again: ahead of the steps, and once more while steps are replayed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.connectors.endpoints import DatedSource, Rereadable, Signal, Source
from nebuli.connectors.errors import InputChanged
from nebuli.connectors.provider import source_of
from nebuli.steps.logs.remap import Address, Passage
from nebuli.steps.member.inputs.row_positions import RowPositions, checksum
from nebuli.store.errors import LogTaken

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from concurrent.futures import Future, ThreadPoolExecutor
    from typing import Any

    from placement.stepped_plan import Feed


class PolledSource:
    """``source``, made with what it is to call when it has something after it had nothing; one call at a time."""

    def __init__(self, make: Callable[[Callable[[], None]], Source], threads: ThreadPoolExecutor) -> None:
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._threads = threads
        self._turn = asyncio.Lock()
        self._asked: Future[Any] | None = None
        self.source = make(self._wake)

    def _wake(self) -> None:
        """Called by the source, from any thread."""
        self._loop.call_soon_threadsafe(self._woken.set)

    async def open(self) -> None:
        """Open it. Raises InputError."""
        await self.call(self.source.open)

    async def next(self) -> pa.RecordBatch | None:
        """Its next rows, which may be none; None at its end. Raises InputError."""
        while True:
            self._woken.clear()
            batch = await self.call(self.source.poll)
            if batch is Signal.END:
                return None
            if batch is Signal.LATER:
                await self._woken.wait()  # without a deadline: a source may have nothing for days
            elif isinstance(batch, pa.RecordBatch):
                return batch

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call it on a thread. A cancelled call continues there, and is asked to end."""
        async with self._turn:
            self._asked = self._threads.submit(function, *arguments)
            try:
                return await asyncio.wrap_future(self._asked)
            except asyncio.CancelledError:
                self.source.interrupt()
                raise

    def close(self) -> None:
        """Close it, once no call is in it."""
        if self._asked is None or self._asked.done():
            self._close()
        else:
            self.source.interrupt()
            self._asked.add_done_callback(self._close)

    def _close(self, _: object = None) -> None:
        self.source.close("its member has ended")


class _Pass:
    """One pass over the source, from an address on. ``at`` is where those rows begin that were not taken."""

    def __init__(self, feed: Feed, at: Address, threads: ThreadPoolExecutor) -> None:
        self.at = at
        # The next rows are not known before they are requested: a file may have grown since.
        self._end = replace(at, awaited=True)
        self._feed = feed
        self._read: deque[tuple[pa.RecordBatch, Address]] = deque()
        self._polled = PolledSource(self._made, threads)
        self._is_open = False
        self.waiting_bytes = 0

    def _made(self, wake: Callable[[], None]) -> Source:
        source = source_of(self._feed.source, wake)
        if not isinstance(source, Rereadable):
            source = RowPositions(source, self._feed.source.physical.reads)
        source.seek(self.at.position)
        if isinstance(source, DatedSource):
            source.apart()
        return source

    @property
    def waiting_rows(self) -> int:
        """How many rows were read and not taken."""
        return self._end.rows - self.at.rows

    async def next(self) -> tuple[pa.RecordBatch, Address] | None:
        """Return the next rows, with the address after them; None at the end. Raises InputError.

        For a dated source there may be no rows, and the address is a later time.
        """
        if not self._is_open:
            await self._polled.open()
            self._is_open = True
        while True:
            batch = await self._polled.next()
            if batch is None:
                return None
            if batch.num_rows or self._feed.source.physical.dated:
                break
        source = self._polled.source
        assert isinstance(source, Rereadable), "it was made so"
        return batch, Address(source.position, self._end.rows + batch.num_rows)

    def keep(self, batch: pa.RecordBatch, end: Address) -> None:
        """Have these rows wait, which end there."""
        if batch.num_rows:
            self._read.append((batch, end))
        self._end = end
        self.waiting_bytes += batch.nbytes

    def end(self) -> None:
        """Know that nothing follows what waits."""
        self._end = replace(self._end, awaited=False)

    def read(self) -> Passage:
        """All that waits."""
        return Passage(self.at, self._end, checksum(batch for batch, _ in self._read))

    def read_up_to(self, time: int) -> Passage:
        """Return the rows waiting up to a time: addresses are times."""
        batches = []
        rows = self.at.rows
        for batch, end in self._read:
            if int(end.position) > time:
                break
            batches.append(batch)
            rows = end.rows
        awaited = self._end.awaited or rows < self._end.rows
        return Passage(self.at, Address(str(time), rows, awaited), checksum(batches))

    def take(self, until: Address) -> Sequence[pa.RecordBatch]:
        """The rows that wait, up to that address, which is among them."""
        left = until.rows - self.at.rows
        taken = []
        while left:
            batch, end = self._read.popleft()
            self.waiting_bytes -= batch.nbytes
            if batch.num_rows > left:
                rest = batch.slice(left)
                self._read.appendleft((rest, end))
                self.waiting_bytes += rest.nbytes
                batch = batch.slice(0, left)
            taken.append(batch)
            left -= batch.num_rows
        self.at = until
        return taken

    def hasten(self) -> None:
        """Have the time of what is dated move on, where it can be moved from here."""
        if self._is_open and isinstance(self._polled.source, DatedSource):
            self._polled.source.hasten()

    async def release(self, at: Address) -> None:
        """Rows before that will not be requested again; a source that is not open yet is notified the next time."""
        if not self._is_open:
            return
        source = self._polled.source
        assert isinstance(source, Rereadable), "it was made so"
        await self._polled.call(source.release, at.position)

    def close(self) -> None:
        """Close the source."""
        self._polled.close()


class ReplayableSource:
    """A source from where no step has its rows, and once more from before that while steps are replayed.

    ``is_timed``: event time waits for its rows. Asked for rows, and without any for ``idle_after_s``, it is not waited
    for until it has some; nor is it at its end, unless it ``grows``.
    """

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
        self.feed = feed
        self._grows = grows
        self._threads = threads
        self._is_timed = is_timed
        self._idle_after_s = idle_after_s
        self._asked_at: float | None = None
        source = feed.source.model_copy(update={"physical": feed.source.physical.unpaced})
        self._unpaced = feed.model_copy(update={"source": source})
        self._ahead = _Pass(feed, at, threads)
        self._again: _Pass | None = None

    @property
    def waiting_rows(self) -> int:
        """How many rows were read that count for no step yet."""
        return self._ahead.waiting_rows

    @property
    def waiting_bytes(self) -> int:
        """How many bytes these have."""
        return self._ahead.waiting_bytes

    @property
    def rows_read(self) -> int:
        """How many of its rows are in steps, or wait for the next one."""
        return self._ahead.at.rows + self._ahead.waiting_rows

    async def read(self, room: Callable[[], Awaitable[None]], arrived: Callable[[int], None]) -> None:
        """Read to the end, whenever there is room. Raises InputError.

        ``arrived`` is called with each batch's rows, and for the end as if it were one, where event time waits for it.
        """
        while (found := await self._next()) is not None:
            await room()
            self._keep(*found, arrived)
        if not self._grows:
            self._ahead.end()
        self._has_ended(arrived)
        if self._is_timed:
            arrived(1)

    def _keep(self, batch: pa.RecordBatch, end: Address, arrived: Callable[[int], None]) -> None:
        self._ahead.keep(batch, end)
        arrived(batch.num_rows)

    def _has_ended(self, arrived: Callable[[int], None]) -> None:
        """Finish the rest at the end."""

    @property
    def is_waited_for(self) -> bool:
        """True if it is to be read even without room, as waiting rows wait for it."""
        return False

    async def _next(self) -> tuple[pa.RecordBatch, Address] | None:
        self._asked_at = monotonic()
        try:
            return await self._ahead.next()
        finally:
            self._asked_at = None

    @property
    def _is_idle(self) -> bool:
        if self._asked_at is None or self._idle_after_s is None:
            return False
        return monotonic() - self._asked_at >= self._idle_after_s

    def passage(self) -> Passage:
        """Return its passage for the next step."""
        return self._awaited(self._ahead.read())

    def _awaited(self, passage: Passage) -> Passage:
        if passage.rows or not self._is_idle:
            return passage
        return replace(passage, until=replace(passage.until, awaited=False))

    async def rows(self, passage: Passage) -> Sequence[pa.RecordBatch]:
        """The rows of a step. Raises InputChanged where the source does not have them any more; InputError.

        LogTaken: more count for it than were read here, so that another process has fixed it.
        """
        if passage.first == self._ahead.at:
            if passage.rows > self._ahead.waiting_rows:
                raise LogTaken(f"the steps of {self.feed.name}")
            self.leave_replay()
            return self._ahead.take(passage.until)
        if self._again is None or self._again.at != passage.first:
            if not passage.rows:
                return ()
            self.leave_replay()
            self._again = _Pass(self._unpaced, passage.first, self._threads)
        again = self._again
        while again.waiting_rows < passage.rows:
            found = await again.next()
            if found is None:
                raise self._changed(passage, again.waiting_rows)
            again.keep(*found)
        taken = again.take(passage.until)
        if checksum(taken) != passage.checksum:
            raise self._changed(passage, passage.rows)
        return taken

    def _changed(self, passage: Passage, found: int) -> InputChanged:
        reads = self.feed.source.physical.reads
        return InputChanged(reads, passage.first.rows, passage.until.rows, found)

    async def release(self, at: Address) -> None:
        """No kept state needs rows before that."""
        await self._ahead.release(at)

    def leave_replay(self) -> None:
        """Close what was opened once more; harmless if nothing is."""
        if self._again is not None:
            self._again.close()
            self._again = None

    def close(self) -> None:
        """Close the source."""
        self.leave_replay()
        self._ahead.close()
