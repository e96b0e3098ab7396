"""A history on disk: records in a log, and the consumers' positions in another file."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from netchannel.core.link import Job, JobOwner
from netchannel.core.replay.consumers import SavedConsumer
from netchannel.core.replay.history import Cursor, History
from netchannel.core.replay.index import Index, locate
from netchannel.core.sending.send_buffer import Record
from netchannel.errors import BufferFull, ChannelClosed, NetChannelError
from netchannel.log_texts import log
from netchannel.values import Ending
from netchannel.wire.frames import largest_message

from .failures import damaged
from .jobs import FULL_S, READ_BYTES, WINDOW_BYTES
from .log import NewRecord
from .manifest import NEW, file_content, replace_file
from .segment import WINDOW

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from netchannel.core.link import Core
    from netchannel.values import Located

    from .files import FileSystem
    from .log import SegmentLog

    _Settled = Callable[[NetChannelError | None, float], None]

WAITING_BYTES = 1 << 24
"""Bytes that wait for the disk, at most, in addition to one message."""
STATE = "consumers"
"""The file in a log's folder that `ConsumerState` is in."""


class ConsumerState(NamedTuple):
    """The saved state of consumers by their names, kept next to the records.

    Before ``base``, where a record begins, there were so many rows and bytes.
    """

    stream: str
    schema: bytes | None
    base: tuple[int, int, int]
    consumers: dict[str, SavedConsumer]

    def pack(self) -> bytes:
        """The state as it is in the file."""
        packed: bytes = msgpack.packb(self._asdict())
        return packed


def read_state(files: FileSystem, segment_log: SegmentLog, *, is_new: bool) -> ConsumerState:
    """The state of the log's stream. Raises LogDamaged.

    If a log has none, no consumer has acknowledged anything, even one known from the previous stream. A log
    that ``is_new`` has none: files in its folder were left by one that was thrown away, even if that was of the same
    stream.
    """
    path = segment_log.path / STATE
    content = file_content(files, path)
    empty = ConsumerState(segment_log.stream, None, (segment_log.acknowledged, 0, 0), {})
    if content is None:
        return empty
    try:
        fields: dict[str, Any] = msgpack.unpackb(content)
        first, rows, size = fields["base"]
        consumers = {name: SavedConsumer(*each) for name, each in fields["consumers"].items()}
        state = ConsumerState(fields["stream"], fields["schema"], (first, rows, size), consumers)
    except (ValueError, TypeError, KeyError, AttributeError, msgpack.exceptions.UnpackException) as error:
        raise damaged(path, 0, f"it differs from the written data ({error!r})") from error
    if is_new or state.stream != segment_log.stream:
        start = segment_log.acknowledged
        return empty._replace(
            consumers={name: each._replace(position=start) for name, each in consumers.items()}
        )
    if not segment_log.acknowledged <= state.base[0] <= segment_log.durable:
        kept = f"{segment_log.acknowledged} to {segment_log.durable}"
        text = f"it begins at number {state.base[0]}, but the log has {kept}"
        raise damaged(path, 0, text)
    return state


class DiskHistory(History):
    """A history in a `SegmentLog`, each record as it goes on the wire. Everything below ``head`` is durable."""

    durable = True

    def __init__(
        self,
        core: Core,
        segment_log: SegmentLog,
        files: FileSystem,
        state: ConsumerState,
        *,
        codec: str,
        max_bytes: int,
    ) -> None:
        index = Index(*state.base)
        for outline in segment_log.outline(state.base[0]):
            index.add(outline.end, outline.rows, outline.size, outline.timestamp)
        super().__init__(segment_log.stream, codec, max_bytes, index)
        self.core = core
        self.log = segment_log
        self.files = files
        self.schema = state.schema
        self.remembered = state.consumers
        self.ending = segment_log.ending
        self._appender = _Appender(self)

    @property
    def taken(self) -> int:
        return self._appender.taken

    @property
    def kept_bytes(self) -> int:
        return self.index.kept + self._appender.waiting_bytes

    @property
    def disk_bytes(self) -> int:
        return self.log.disk_bytes

    def room(self, size: int) -> bool:
        waiting = self._appender.waiting_bytes
        return super().room(size) and (not waiting or waiting + size <= WAITING_BYTES)

    def keep(self, record: Record, rows: int, size: int) -> None:
        self._appender.keep(record, rows, size)

    def finish(self, failure: str | None) -> None:
        self._appender.finish(failure)

    def release(self, upto: int) -> None:
        # The files have followed already, when the positions were remembered that this comes from.
        self.oldest = max(self.oldest, upto)
        self.index.trim(self.oldest)

    def settle(self, then: _Settled, now: float) -> None:
        if self.error is not None or self._appender.left:
            then(self.error, now)
        else:
            self._appender.settle(then)

    def state(self) -> ConsumerState:
        """The state to save now; messages below its base are no longer needed."""
        positions = self.positions()
        lowest = min([each.position for each in positions.values()], default=0)
        return ConsumerState(self.stream, self.schema, self.index.below(max(self.oldest, lowest)), positions)

    def cursor(self, first: int, until: int, on_ready: Callable[[], None]) -> Cursor:
        return _DiskCursor(self, first, until, on_ready)

    def locate(
        self,
        first: int,
        max_rows: int | None,
        max_bytes: int | None,
        answer: Callable[[Located | NetChannelError, float], None],
        now: float,
    ) -> None:
        _Locating(self, locate(self.index, self.codec, first, max_rows, max_bytes), answer).step(None, now)

    def leave(
        self, *, discard: bool, then: Callable[[float], None], now: float, remember: bool = False
    ) -> None:
        if self._appender.closed:
            then(now)
        else:
            self._appender.leave(discard=discard, remember=remember, then=then)

    def read(self, first: int, until: int, size: int) -> list[Record]:
        """Records from the one that holds ``first`` on, about so many bytes; on another thread."""
        records: list[Record] = []
        for found in self.log.read(first, window=min(max(size, WINDOW), WINDOW_BYTES)):
            largest = max(largest_message(found.payload), len(found.context))
            records.append(
                Record(found.first, found.end, found.size, largest, [found.payload], found.context)
            )
            size -= found.size
            if found.end >= until or size <= 0:
                break
        return records


class _Appender(JobOwner):
    """Brings to the disk what a history is given: all that waits by one sync."""

    def __init__(self, history: DiskHistory) -> None:
        self.history = history
        self.taken = history.head
        self.waiting_bytes = 0
        self._waiting: deque[tuple[Record, int, int]] = deque()
        self._schema = history.schema
        self._finishing: Ending | None = None
        self._settling: list[_Settled] = []
        self._changed = False  # what is remembered
        self._busy = False
        self._full = self._stuck = False  # the disk is, for records, and even for what is remembered
        self._said_full = False
        self._leaving: list[Callable[[float], None]] = []
        self._discard = self._remember = False
        self.left = self.closed = False  # nothing is begun any more; the files are closed

    def keep(self, record: Record, rows: int, size: int) -> None:
        self._waiting.append((record, rows, size))
        self.waiting_bytes += size
        self.taken = record.end
        self.request()

    def finish(self, failure: str | None) -> None:
        if self._finishing is None and self.history.ending is None:
            self._finishing = Ending(self.taken, failure)
            self.request()

    def remember(self) -> None:
        self._changed = True
        self.request()

    def settle(self, then: _Settled) -> None:
        self._settling.append(then)
        self.remember()

    def leave(self, *, discard: bool, remember: bool, then: Callable[[float], None]) -> None:
        self._leaving.append(then)
        self._discard = self._discard or discard
        self._remember = self._remember or remember
        self.request()

    def request(self) -> None:
        if not self._busy and not self.left:
            self.history.core.request(self)

    def begin(self) -> Job | None:
        history = self.history
        if self._busy or self.left:
            return None
        finish = None if self._full else self._finishing
        records = [] if self._full else list(self._waiting)
        news = (self._changed or history.schema is not self._schema) and not self._stuck
        idle = history.error is not None or not (records or finish or news)
        if self._leaving and (self._discard or idle):
            self._busy = self.left = True
            return _Leave(history, self._done_leaving, discard=self._discard, remember=self._remember)
        if idle:
            return None
        self._busy = True
        settling: list[_Settled] = []
        if news:
            settling, self._settling = self._settling, settling
            self._schema, self._changed = history.schema, False
        return _Append(self, records, finish, history.state() if news else None, settling)

    def kept(self, job: _Append, now: float) -> None:
        """A job is done."""
        history = self.history
        self._busy = False
        for _ in range(job.appended):
            record, rows, size = self._waiting.popleft()
            self.waiting_bytes -= size
            history.index.add(record.end, rows, size, record.timestamp)
        if job.finished:
            history.ending, self._finishing = history.log.ending, None
        if job.full is not None:
            self._wait_for_space(job, now)
        elif job.appended or job.remembered:
            self._said_full = False
        if job.error is not None:
            history.error = job.error
            job.settling += self._settling
        if job.remembered or history.error is not None:
            for then in job.settling:
                then(history.error, now)
        self.request()
        history.on_kept(now)

    def _wait_for_space(self, job: _Append, now: float) -> None:
        if not self._said_full:
            self._said_full = True
            log.warning("stream %s: %s; trying again", self.history.stream, job.full)
        self._full = True
        if not job.remembered:
            self._settling = job.settling + self._settling
            self._changed = self._stuck = True
        self.history.core.timers.at(now + FULL_S, self._try_again)

    def _try_again(self, now: float) -> None:
        self._full = self._stuck = False
        self.request()

    def _done_leaving(self, now: float) -> None:
        closed = ChannelClosed(f"stream {self.history.stream!r} is no longer kept here")
        for then in self._settling:
            then(closed, now)
        self.closed = True
        for leaving in self._leaving:
            leaving(now)


class _Append(Job):
    def __init__(
        self,
        appender: _Appender,
        records: list[tuple[Record, int, int]],
        finishing: Ending | None,
        state: ConsumerState | None,
        settling: list[_Settled],
    ) -> None:
        self._appender = appender
        self._history = appender.history
        self._records = records
        self._state = state
        self._finishing = finishing
        self._schema = appender.history.schema or b""
        self.settling = settling
        self.appended = 0
        self.finished = False
        self.remembered = False
        self.full: BufferFull | None = None
        self.error: NetChannelError | None = None

    def run(self) -> None:
        segment_log = self._history.log
        appended, finished = 0, False
        try:
            try:
                if self._state is not None:
                    # First what is not wanted any more, durably, then it goes: a restart begins at or above it.
                    replace_file(self._history.files, segment_log.path / STATE, self._state.pack())
                    segment_log.trim(self._state.base[0])
                self.remembered = True
                while appended < len(self._records):
                    appended += segment_log.append(
                        map(self._to_append, islice(self._records, appended, None))
                    )
                if self._finishing is not None:
                    segment_log.finish(self._finishing.failure)
                    finished = True
            except BufferFull as error:
                self.full = error
            segment_log.sync()
        except NetChannelError as error:
            self.error = error
        else:
            self.appended, self.finished = appended, finished

    def _to_append(self, kept: tuple[Record, int, int]) -> NewRecord:
        record, rows, size = kept
        frames, context = record.on_the_wire(), record.context
        return NewRecord(
            record.first, record.end, frames, record.timestamp, size, rows, self._schema, context
        )

    def done(self, now: float) -> None:
        self._appender.kept(self, now)


class _Leave(Job):
    def __init__(
        self, history: DiskHistory, then: Callable[[float], None], *, discard: bool, remember: bool
    ) -> None:
        self._history = history
        self._then = then
        self._discard = discard
        self._remember = remember

    def run(self) -> None:
        try:
            if self._discard:
                self._history.log.discard(*(() if self._remember else (STATE, STATE + NEW)))
        except NetChannelError as error:
            log.warning("%s", error)
        finally:
            self._history.log.close()

    def done(self, now: float) -> None:
        self._then(now)


class _DiskCursor(Cursor, JobOwner):
    """Reads ahead of its connection, one piece at a time."""

    def __init__(self, history: DiskHistory, first: int, until: int, on_ready: Callable[[], None]) -> None:
        super().__init__(first, until)
        self._history = history
        self._on_ready = on_ready
        self._ready: deque[Record] = deque()
        self._ready_bytes = 0
        self._fetched = first
        self._busy = False
        self._closed = False
        self._error: NetChannelError | None = None

    def _take(self) -> Record | None:
        self._history.check_range(self.next, self.until)
        if self._fetched < self.until and self._ready_bytes < READ_BYTES:
            self._history.core.request(self)
        if self._ready:
            record = self._ready.popleft()
            self._ready_bytes -= record.size
            return record
        if self._error is not None:
            raise self._error
        return None

    def close(self) -> None:
        self._closed = True
        self._ready.clear()

    def begin(self) -> Job | None:
        if self._busy or self._closed or self._error is not None or self._fetched >= self.until:
            return None
        self._busy = True
        return _Read(self._history, self._fetched, self.until, READ_BYTES, self._read)

    def _read(self, records: list[Record], error: NetChannelError | None, now: float) -> None:
        self._busy = False
        if self._closed:
            return
        self._error = error
        for record in records:
            self._ready.append(record)
            self._ready_bytes += record.size
            self._fetched = record.end
        self._on_ready()


class _Read(Job):
    def __init__(
        self,
        history: DiskHistory,
        first: int,
        until: int,
        size: int,
        then: Callable[[list[Record], NetChannelError | None, float], None],
    ) -> None:
        self._history = history
        self._first, self._until, self._size = first, until, size
        self._then = then
        self._records: list[Record] = []
        self._error: NetChannelError | None = None

    def run(self) -> None:
        try:
            self._records = self._history.read(self._first, self._until, self._size)
        except NetChannelError as error:
            self._error = error

    def done(self, now: float) -> None:
        self._then(self._records, self._error, now)


class _Locating(JobOwner):
    """Looks into records on disk, as `locate` asks for them."""

    def __init__(
        self,
        history: DiskHistory,
        steps: Generator[int, Record, Located],
        answer: Callable[[Located | NetChannelError, float], None],
    ) -> None:
        self._history = history
        self._steps = steps
        self._answer = answer
        self._wanted = 0

    def step(self, record: Record | None, now: float) -> None:
        """Continue with the requested record."""
        try:
            self._wanted = next(self._steps) if record is None else self._steps.send(record)
        except StopIteration as found:
            self._answer(found.value, now)
        except NetChannelError as error:
            self._answer(error, now)
        else:
            self._history.core.request(self)

    def begin(self) -> Job | None:
        return _Read(self._history, self._wanted, self._wanted, 0, self._read)

    def _read(self, records: list[Record], error: NetChannelError | None, now: float) -> None:
        if error is not None:
            self._answer(error, now)
        else:
            self.step(records[0], now)
