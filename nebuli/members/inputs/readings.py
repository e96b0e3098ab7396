"""`Readings`: all sources of a member that can be read again, and what of them counts for its steps."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from nebuli.storage.logs.addresses import Address

from .source_passes import Reading

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    import pyarrow as pa

    from nebuli.storage.logs.addresses import Passage
    from nebuli.storage.logs.input_log import InputLog
    from placement.stepped import Feed


class Readings:
    """Entered, they stand where the log's last step ended; left, they are closed. ``feeds`` are all of the member's."""

    def __init__(self, feeds: Sequence[Feed], log: InputLog) -> None:
        self._feeds = [feed for feed in feeds if feed.source.physical.can_be_read_again]
        self._log = log
        self._readings: dict[str, Reading] = {}
        self._threads = ThreadPoolExecutor(2 * len(self._feeds) + 1, "nebuli-reading")

    async def __aenter__(self) -> Self:
        at = await self._log.where(self._log.last)
        self._readings = {
            feed.name: Reading(feed, at.get(feed.name, Address()), self._threads) for feed in self._feeds
        }
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for reading in self:
            reading.close()
        self._threads.shutdown(wait=False)

    def __iter__(self) -> Iterator[Reading]:
        return iter(self._readings.values())

    @property
    def waiting_rows(self) -> int:
        """How many rows were read that count for no step yet."""
        return sum(each.waiting_rows for each in self)

    @property
    def waiting_bytes(self) -> int:
        """How many bytes these have."""
        return sum(each.waiting_bytes for each in self)

    def passages(self) -> Mapping[str, Passage]:
        """What the next step is to have of each."""
        return {name: reading.passage() for name, reading in self._readings.items()}

    async def rows(self, step: int) -> Mapping[str, Sequence[pa.RecordBatch]]:
        """The rows of a step that is fixed, by input. Raises InputChanged, InputError, StepOutOfRange."""
        found: dict[str, list[pa.RecordBatch]] = {}
        for source, passage in (await self._log.passages(step)).items():
            reading = self._readings[source]
            if passage.rows:
                found.setdefault(reading.feed.input, []).extend(await reading.rows(passage))
        return found

    async def release(self, step: int) -> None:
        """No state is kept of before that step. Raises InputError, StepOutOfRange."""
        for source, address in (await self._log.where(step)).items():
            await self._readings[source].release(address)

    def leave_replay(self) -> None:
        """Close what was opened once more for steps that were replayed."""
        for reading in self:
            reading.leave_replay()
