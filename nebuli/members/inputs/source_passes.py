"""`Reading`: a source that can be read again, read ahead of the steps that its rows count for."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from nebuli.connectors.endpoints import Rereadable, Source
from nebuli.connectors.errors import InputChanged
from nebuli.connectors.provider import source_of
from nebuli.storage.logs.addresses import Address, Passage

from .checksums import checksum
from .polled_source import PolledSource
from .row_positions import RowPositions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from concurrent.futures import ThreadPoolExecutor

    import pyarrow as pa

    from placement.stepped import Feed


class _Pass:
    """One pass over the source, from an address on. ``at`` is where those rows begin that were not taken."""

    def __init__(self, feed: Feed, at: Address, threads: ThreadPoolExecutor) -> None:
        self.at = at
        self._end = at
        self._feed = feed
        self._read: deque[pa.RecordBatch] = deque()
        self._polled: PolledSource[Source] = PolledSource(self._made, threads)
        self._is_open = False
        self.waiting_bytes = 0

    def _made(self, wake: Callable[[], None]) -> Source:
        source = source_of(self._feed.source, wake)
        if not isinstance(source, Rereadable):
            source = RowPositions(source, self._feed.source.physical.reads)
        source.seek(self.at.position)
        return source

    @property
    def waiting_rows(self) -> int:
        """How many rows were read and not taken."""
        return self._end.rows - self.at.rows

    async def next(self) -> tuple[pa.RecordBatch, Address] | None:
        """The next rows, with the address behind them; None at the end. Raises InputError."""
        if not self._is_open:
            await self._polled.open()
            self._is_open = True
        batch = await self._polled.next()
        if batch is None:
            return None
        source = self._polled.source
        assert isinstance(source, Rereadable), "it was made so"
        return batch, Address(source.position, self._end.rows + batch.num_rows)

    def keep(self, batch: pa.RecordBatch, end: Address) -> None:
        """Have these rows wait, which end there."""
        self._read.append(batch)
        self._end = end
        self.waiting_bytes += batch.nbytes

    def read(self) -> Passage:
        """All that waits."""
        return Passage(self.at, self._end, checksum(self._read))

    def take(self, until: Address) -> Sequence[pa.RecordBatch]:
        """The rows that wait, up to that address, which is among them."""
        left = until.rows - self.at.rows
        taken = []
        while left:
            batch = self._read.popleft()
            self.waiting_bytes -= batch.nbytes
            if batch.num_rows > left:
                rest = batch.slice(left)
                self._read.appendleft(rest)
                self.waiting_bytes += rest.nbytes
                batch = batch.slice(0, left)
            taken.append(batch)
            left -= batch.num_rows
        self.at = until
        return taken

    async def release(self, at: Address) -> None:
        """Nobody will ask again for what is before that; one that is not open yet hears of it the next time."""
        if not self._is_open:
            return
        source = self._polled.source
        assert isinstance(source, Rereadable), "it was made so"
        await self._polled.call(source.release, at.position)

    def close(self) -> None:
        """Close the source."""
        self._polled.close()


class Reading:
    """A source from where no step has its rows, and once more from before that while steps are replayed."""

    def __init__(self, feed: Feed, at: Address, threads: ThreadPoolExecutor) -> None:
        self.feed = feed
        self._threads = threads
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
        """Read to the end, whenever there is room; ``arrived`` hears of each batch's rows. Raises InputError."""
        while (found := await self._ahead.next()) is not None:
            await room()
            self._ahead.keep(*found)
            arrived(found[0].num_rows)

    def passage(self) -> Passage:
        """What the next step is to have of it."""
        return self._ahead.read()

    async def rows(self, passage: Passage) -> Sequence[pa.RecordBatch]:
        """The rows of a step. Raises InputChanged where the source does not have them any more; InputError."""
        if passage.first == self._ahead.at:
            self.leave_replay()
            return self._ahead.take(passage.until)
        if self._again is None or self._again.at != passage.first:
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
        """No state is kept that would be gone on from with what is before that."""
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
