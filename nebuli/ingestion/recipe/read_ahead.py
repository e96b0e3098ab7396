"""Messages that a reader has read ahead."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from nebuli.ingestion.errors import AddressGone, IngestionError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nebuli.ingestion.message_addresses import Addresses, Messages
    from nebuli.ingestion.source_reader import SourceReader

_AHEAD_BYTES = 1 << 26
"""So much is read ahead, and, where others have read further, what is wanted to get there."""
_LOOK_S = 5.0
"""After so long without a message that others have read is looked whether it is there."""
_OTHERS_S = 1.0
"""So long is read on when a part is refused, for the other parts."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 15.0


class ReadAhead:
    """Messages of a source, taken in the order of addresses.

    While it cannot be read, that is tried again and reported.
    """

    def __init__(
        self,
        make: Callable[[], SourceReader],
        at: Addresses,
        told: Callable[[IngestionError | None], Awaitable[None]],
    ) -> None:
        """``make`` gives a reader, which begins ``at``. ``told`` is called with what is wrong, and when it is over."""
        self._make = make
        self._told = told
        self.reader: SourceReader | None = None
        """The one that reads, while one does."""
        self.read: Addresses = dict(at)
        """By part, the address after the messages that were read."""
        self.news = asyncio.Event()
        """Set when there is more."""
        self._waiting: dict[str, deque[Messages]] = {}
        self._bytes = 0
        self._taken: Addresses = dict(at)
        self._wanted: Addresses = {}
        self._room = asyncio.Event()
        self._failed = False
        self._refused: dict[str, IngestionError] = {}
        self._reading = asyncio.timeout(None)

    async def run(self) -> None:
        """Read, until it is cancelled. Raises AddressGone where others have recorded what cannot be read any more."""
        pause_s = _FIRST_PAUSE_S
        while True:
            read = dict(self.read)
            try:
                await self._read_on()
            except IngestionError as error:
                if isinstance(error, AddressGone):
                    if self._is_behind_wanted():
                        raise
                    self._forget_waiting()
                self._failed = True
                await self._told(error)
            pause_s = _FIRST_PAUSE_S if self.read != read else min(2 * pause_s, _LONGEST_PAUSE_S)
            await asyncio.sleep(pause_s)

    async def _read_on(self) -> None:
        reader = self._make()
        self._refused = {}
        try:
            await reader.open(dict(self.read))  # of which something may be refused meanwhile
            if self._failed:
                self._failed = False
                await self._told(None)
            self._reading = asyncio.timeout(_OTHERS_S if self._refused else None)
            async with self._reading:
                self.reader = reader
                while True:
                    while self._bytes >= _AHEAD_BYTES and not self._is_behind_wanted():
                        self._room.clear()
                        await self._room.wait()
                    self._add(await reader.next())
        except TimeoutError:
            if not self._refused:
                raise
            raise next(iter(self._refused.values())) from None
        finally:
            self.reader = None
            await reader.close()

    def _forget_waiting(self) -> None:
        """Drop waiting messages: one that is not recorded yet may have changed, if a source was fixed."""
        self._waiting.clear()
        self._bytes, self.read = 0, dict(self._taken)

    def refuse(self, part: str, address: int, error: IngestionError) -> None:
        """Forget the messages of a part from an address on: they are read again, as they may be fixed then."""
        kept = [each.below(address) for each in self._waiting.pop(part, ()) if each.lower < address]
        self._waiting[part] = deque(kept)
        self._bytes = sum(each.nbytes for some in self._waiting.values() for each in some)
        self.read[part] = address
        if not self._refused and self.reader is not None:
            self._reading.reschedule(asyncio.get_running_loop().time() + _OTHERS_S)
        self._refused[part] = error

    def _add(self, some: Messages) -> None:
        if some.part in self._refused:
            return
        self._waiting.setdefault(some.part, deque()).append(some)
        self._bytes += some.nbytes
        self.read[some.part] = some.upper
        self.news.set()

    def _is_behind_wanted(self) -> bool:
        return any(self.read.get(part, -1) < address for part, address in self._wanted.items())

    def waiting(self) -> list[Messages]:
        """Return the messages that were not taken yet."""
        return [each for part in sorted(self._waiting) for each in self._waiting[part]]

    async def take(self, addresses: Addresses) -> list[Messages]:
        """All that is below these addresses, in the order of parts; waited for, as others may have read it already."""
        self._wanted = addresses
        self._room.set()
        while self._is_behind_wanted():
            self.news.clear()
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self.news.wait()
            except TimeoutError:
                await self._check_there()
        self._wanted = {}
        self._taken |= addresses
        taken = [some for part in sorted(addresses) for some in self._below(part, addresses[part])]
        self._room.set()
        return taken

    async def _check_there(self) -> None:
        """Raise AddressGone where others have read, and recorded, more than the source has now."""
        if self.reader is None:
            return
        ends = await self.reader.ends()
        for part, address in self._wanted.items():
            read, end = self.read.get(part, 0), ends.get(part, 0)
            if read < address and end < address:
                raise AddressGone(
                    f"{self.reader.reads}: messages up to {address}{f' of {part}' if part else ''} are "
                    f"recorded as available, but only messages up to {end} exist: some were lost, or the raw "
                    f"source was replaced; restore the raw source, or drop the source and create it again"
                )

    def _below(self, part: str, address: int) -> list[Messages]:
        taken = []
        waiting = self._waiting.get(part, deque())
        while waiting and waiting[0].lower < address:
            some = waiting.popleft()
            self._bytes -= some.nbytes
            if some.upper > address:
                rest = some.since(address)
                self._bytes += rest.nbytes
                waiting.appendleft(rest)
                some = some.below(address)
            taken.append(some)
        return taken
