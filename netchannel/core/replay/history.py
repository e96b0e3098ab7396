"""The part of a stream that a retaining end keeps, to be read any number of times: here in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from netchannel.errors import NetChannelError, PositionLost
from netchannel.values import Ending

from .index import Index, locate, part_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from netchannel.core.sending.send_buffer import Record
    from netchannel.values import Located

    from .consumers import SavedConsumer

RECORD_COST = 512
"""Bytes that a record takes in addition to its messages, about, so that small ones fill a history too."""


class Cursor(ABC):
    """Reads messages ``first`` to ``until`` (excluded), record by record."""

    def __init__(self, first: int, until: int) -> None:
        self.next = first
        self.until = until

    def take(self) -> Record | None:
        """The next record, cut to what is wanted; None at the end, and while it is on its way from the disk.

        Raises PositionLost where consumers have let it go, and what the disk has against it.
        """
        if self.next >= self.until:
            return None
        record = self._take()
        if record is None:
            return None
        end = min(record.end, self.until)
        if record.first < self.next or record.end > end:
            record = part_of(record, self.next, end)
        self.next = end
        return record

    @abstractmethod
    def _take(self) -> Record | None:
        """The record that holds number ``next``."""

    def close(self) -> None:  # noqa: B027 - there is nothing to give back in memory
        """Close, as nothing more is wanted."""


class History(ABC):
    """One stream, as much of it as is kept.

    Messages below ``head`` can be read by anyone; ``taken`` are those that were given to `keep`. ``on_kept`` is
    called when ``head`` or ``ended`` have changed, or there is room again. ``error``: nothing can be kept any more.
    """

    durable = False
    """True if the history survives the process; then messages are not durable yet when `keep` returns."""

    def __init__(self, stream: str, codec: str, max_bytes: int, index: Index) -> None:
        self.stream = stream
        self.codec = codec
        self.schema: bytes | None = None
        self.index = index
        self.oldest = index.oldest
        self.ending: Ending | None = None
        self.error: NetChannelError | None = None
        self.remembered: Mapping[str, SavedConsumer] = {}  # consumers, from before a restart
        self.on_kept: Callable[[float], None] = lambda now: None
        self.positions: Callable[[], dict[str, SavedConsumer]] = dict
        self._max_bytes = max_bytes

    @property
    def head(self) -> int:
        """The number below which everything is kept."""
        return self.index.head

    @property
    @abstractmethod
    def taken(self) -> int:
        """The number below which everything is kept, or is about to be."""

    @property
    @abstractmethod
    def kept_bytes(self) -> int:
        """Bytes that count against its bound."""

    @property
    def disk_bytes(self) -> int:
        """The size of its files."""
        return 0

    def room(self, size: int) -> bool:
        """True if ``size`` more bytes may be kept."""
        return self.taken == self.index.oldest or self.kept_bytes + size <= self._max_bytes

    def check_range(self, first: int, until: int) -> None:
        """Raise PositionLost, or NetChannelError for numbers that are not there yet."""
        if first < self.oldest:
            raise PositionLost(
                f"number {first} of stream {self.stream!r} was requested, but the history starts at "
                f"{self.oldest}: all its consumers have acknowledged earlier messages"
            )
        if not first <= until <= self.head:
            raise NetChannelError(
                f"messages {first} to {until} of stream {self.stream!r} were requested, but only {self.oldest} "
                f"to {self.head} are kept: wait for more messages with heads(beyond=...)"
            )

    @abstractmethod
    def keep(self, record: Record, rows: int, size: int) -> None:
        """Keep ``record``, whose messages have so many rows and bytes, after all others."""

    @abstractmethod
    def finish(self, failure: str | None) -> None:
        """The stream ends after all messages."""

    @abstractmethod
    def release(self, upto: int) -> None:
        """Let go of everything below ``upto``, which is not wanted any more."""

    def settle(self, then: Callable[[NetChannelError | None, float], None], now: float) -> None:
        """Call ``then`` once it is durable what consumers have acknowledged, if that is kept anywhere.

        With the error, if it cannot be any more.
        """
        then(None, now)

    def leave(
        self, *, discard: bool, then: Callable[[float], None], now: float, remember: bool = False
    ) -> None:
        """Give back the files, if there are any; calls ``then`` when that is done.

        They are removed to ``discard`` what is kept, but for the consumers' names where a successor is to
        ``remember`` them.
        """
        then(now)

    @abstractmethod
    def cursor(self, first: int, until: int, on_ready: Callable[[], None]) -> Cursor:
        """Read a range; ``on_ready`` is called when more of it has come from the disk."""

    @abstractmethod
    def locate(
        self,
        first: int,
        max_rows: int | None,
        max_bytes: int | None,
        answer: Callable[[Located | NetChannelError, float], None],
        now: float,
    ) -> None:
        """Find a range by its size, and give it to ``answer``, once."""


class MemoryHistory(History):
    """A history in memory."""

    def __init__(self, stream: str, codec: str, max_bytes: int, start: int = 0) -> None:
        super().__init__(stream, codec, max_bytes, Index(start))
        self._records: dict[int, Record] = {}  # by their first numbers

    @property
    def taken(self) -> int:
        return self.index.head

    @property
    def kept_bytes(self) -> int:
        return self.index.kept + RECORD_COST * len(self._records)

    def keep(self, record: Record, rows: int, size: int) -> None:
        self._records[record.first] = record
        self.index.add(record.end, rows, size, record.timestamp)

    def finish(self, failure: str | None) -> None:
        if self.ending is None:
            self.ending = Ending(self.head, failure)

    def release(self, upto: int) -> None:
        self.oldest = max(self.oldest, upto)
        first = self.index.oldest
        oldest = self.index.trim(self.oldest)
        while first < oldest:
            first = self._records.pop(first).end

    def record(self, sequence: int) -> Record:
        """The record that holds a number. Raises PositionLost."""
        self.check_range(sequence, sequence)
        return self._records[self.index.below(sequence)[0]]

    def cursor(self, first: int, until: int, on_ready: Callable[[], None]) -> Cursor:
        return _MemoryCursor(self, first, until)

    def locate(
        self,
        first: int,
        max_rows: int | None,
        max_bytes: int | None,
        answer: Callable[[Located | NetChannelError, float], None],
        now: float,
    ) -> None:
        steps = locate(self.index, self.codec, first, max_rows, max_bytes)
        try:
            wanted = next(steps)
            while True:
                wanted = steps.send(self._records[wanted])
        except StopIteration as found:
            answer(found.value, now)


class _MemoryCursor(Cursor):
    def __init__(self, history: MemoryHistory, first: int, until: int) -> None:
        super().__init__(first, until)
        self._history = history

    def _take(self) -> Record | None:
        return self._history.record(self.next)
