"""The durable log of one channel: append, sync, trim, and read by number."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from netchannel.errors import ChannelClosed, LogBroken, StorageFull
from netchannel.values import Ending

from . import folders
from .failures import NO_SPACE, broken, no_space, over_limit
from .files import RealFiles, abandon_in_children, nbytes
from .layout import END, FAIL, FRAMES, SEGMENT_HEADER, Entry, entry_bytes, folder_name
from .log_reader import LogContents, LogReader
from .manifest import Mark, Marks
from .recovery import RecoveredLog, recover
from .segment import WINDOW
from .tail import NO_CONTENT, Content, ContentNames, NewEntry, Tail, create_tail, first_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from netchannel.wire.pool import Pool

    from .files import Buffer, FileSystem
    from .manifest import Manifest
    from .segment import LogRecord, Outline, Segment

SEGMENT_BYTES = 1 << 26
WRITE_BYTES = 1 << 20
"""Records are written together until they have as many bytes: larger writes are no faster, and the disk waits for them.
"""
_HASTE_BYTES = 1 << 18
SEGMENTS_PER_LIMIT = 8
"""Room comes back in whole segments: a limit holds several."""


class NewRecord(NamedTuple):
    """Messages ``first`` to ``end`` (excluded), to be appended as ``frames``: their headers are in one buffer each.

    ``timestamp``, ``size`` and ``rows`` are stored for the caller; ``schema`` and ``context`` once per segment.
    """

    first: int
    end: int
    frames: Sequence[Buffer]
    timestamp: int = 0
    size: int = 0
    rows: int = 0
    schema: bytes = b""
    context: bytes = b""


class SegmentLog:
    """Records of a stream's messages, in segment files; made by `SegmentLog.open`.

    Writing methods (`append`, `finish`, `sync`, `trim`, `close`) are called by one thread at a time;
    iterators of `read` and `outline` may be used by others meanwhile. Only what is durable is read.

    A write or sync that failed is final (`LogBroken`): after a failed sync the kernel may call pages clean
    that it never wrote, so trying again would prove nothing. The exception is a write that finds the disk
    full (`StorageFull`): space is taken by the write, not by the sync, so the record is cut off again and can
    be appended later. A disk that is found full by a sync (network file systems) breaks the log.
    """

    def __init__(
        self,
        folder: folders.Folder,
        manifest: Manifest,
        marks: Marks,
        found: RecoveredLog,
        *,
        segment_bytes: int,
        max_disk_bytes: int | None,
        start: int,
    ) -> None:
        self.path = folder.path
        self.stream = manifest.stream
        self.codec = manifest.codec
        self.ending = found.ending
        self.disk_bytes = sum(segment.size for segment in found.segments)
        self._folder = folder
        self._files = folder.files
        self._marks = marks
        self._kept = LogContents(
            tuple(found.segments), marks.last.acknowledged, max(start, marks.last.acknowledged)
        )
        self._reading = LogReader(folder.files, folder.path, manifest.stream, self._kept)
        self._tail: Tail | None = None
        if found.segments:
            last = found.segments[-1]
            self._tail = Tail(self._files.open(last.path), last, found.blobs, synced=True)
        self._segment_bytes = segment_bytes
        if max_disk_bytes is not None:
            self._segment_bytes = min(segment_bytes, max_disk_bytes // SEGMENTS_PER_LIMIT)
        self._max_disk_bytes = max_disk_bytes
        self._schemas, self._contexts = ContentNames(), ContentNames()
        self._broken: LogBroken | None = None
        self._closed = False
        if not found.segments and self.acknowledged > marks.settled.acknowledged:
            self._settle_start()
        if self._tail is not None and not (
            marks.settled.offset and marks.settled.base == self._tail.segment.base
        ):
            marks.settle(self._current_mark())  # the process that made the segment was stopped before this
        self._mark()
        abandon_in_children(self)

    @classmethod
    def open(
        cls,
        directory: str | Path,
        channel_id: str,
        *,
        create_stream: Callable[[], str],
        codec: str = "",
        segment_bytes: int = SEGMENT_BYTES,
        max_disk_bytes: int | None = None,
        start: int = 0,
        files: FileSystem | None = None,
    ) -> SegmentLog:
        """Open the log of ``channel_id`` below ``directory``, or make one for the stream ``create_stream()``.

        Numbers begin at ``start`` in a new one.

        All that is found is durable when this returns; a torn tail is cut off. Raises ChannelInUse if it is open
        already, in this process or another; LogDamaged if something durable is missing or wrong; SchemaMismatch if
        it holds another codec; StorageFull and LogBroken if the disk does not play along.
        """
        files = files or RealFiles()
        path = Path(directory) / folder_name(channel_id)
        try:
            folder = folders.lock_folder(files, path, channel_id)
            try:
                manifest = folders.claim(folder, channel_id, codec, create_stream)
                marks = Marks(files, path, manifest.stream)
                try:
                    found = recover(files, path, manifest.stream, marks.last)
                    return cls(
                        folder, manifest, marks, found,
                        segment_bytes=segment_bytes, max_disk_bytes=max_disk_bytes, start=start,
                    )  # fmt: skip
                except BaseException:
                    marks.close()
                    raise
            except BaseException:
                folder.lock.release()
                raise
        except OSError as error:
            if error.errno in NO_SPACE:
                raise no_space(path, SEGMENT_HEADER, error) from error
            raise broken(path, 0, "opening", error) from error

    @property
    def head(self) -> int:
        """The number of the next message to append."""
        return self._kept.head

    @property
    def durable(self) -> int:
        """The number of the first message that is not durable."""
        return self._kept.durable

    @property
    def acknowledged(self) -> int:
        """The number below which everything is forgotten."""
        return self._kept.acknowledged

    def room(self, length: int, *, schema: bytes = b"", context: bytes = b"") -> bool:
        """True if ``max_disk_bytes`` admits a record with ``length`` bytes of payload now.

        Errs on the side of no, by what may be stored already of ``schema`` and ``context``.
        """
        contents = (self._schemas.of(schema), self._contexts.of(context))
        return self._admits(first_bytes(length, contents))

    def append(self, records: Iterable[NewRecord]) -> int:
        """Write the first of ``records``, and as many of the later ones as go into the same write; returns how many.

        Not many more are asked for. They are durable after the next `sync`. The first begins at `head`, and
        each where the one before it ends. Raises StorageFull, and nothing has changed: append the same later,
        or something else. Raises LogBroken, ChannelClosed; ValueError for a number out of order.

        One record is always admitted to a log whose messages are all acknowledged, whatever
        ``max_disk_bytes``.
        """
        self._check_writable()
        due, size = self.head, 0
        writings: list[NewEntry] = []
        for record in records:
            if record.first != due or record.end <= record.first:
                raise ValueError(
                    f"messages {record.first} to {record.end} are appended where number {due} was expected"
                )
            due = record.end
            writings.append(self._writing(record))
            size += writings[-1].entry.length
            if size >= WRITE_BYTES:
                break
        return self._with_space(lambda: self._append(writings))

    def _writing(self, record: NewRecord) -> NewEntry:
        length = sum(map(nbytes, record.frames))
        entry = Entry(
            FRAMES,
            0,
            length,
            record.first,
            record.end,
            record.timestamp,
            record.size,
            record.rows,
            0,
            0,
            0,
            0,
        )
        return NewEntry(
            entry, record.frames, self._schemas.of(record.schema), self._contexts.of(record.context)
        )

    def _append(self, writings: Sequence[NewEntry]) -> int:
        """Write as many as go into one segment, and within the limit; at least one."""
        entry, _, *contents = writings[0]
        tail = self._tail_for(entry.length, contents)
        needed, count = tail.needed_bytes(entry.length, contents), 1
        for entry, _, *contents in writings[1:]:
            # Shared contents count for each: a record that fits after all is written by the next write.
            needed += tail.needed_bytes(entry.length, contents)
            if tail.segment.size + needed > self._segment_bytes or not self._admits(needed):
                break
            count += 1
        try:
            self._write(tail, writings[:count])
        except StorageFull:
            if count == 1:
                raise
            count = 1
            self._write(tail, writings[:count])
        return count

    def finish(self, failure: str | None = None) -> None:
        """Write the end of the stream after all messages: a clean one, or the producer's ``failure``.

        It is durable after the next `sync`. It takes no heed of ``max_disk_bytes``. Raises as `append` does.
        """
        self._check_writable()
        message = b"" if failure is None else failure.encode()
        kind = END if failure is None else FAIL
        entry = Entry(kind, 0, len(message), self.head, self.head, 0, 0, 0, 0, 0, 0, 0)

        def write() -> int:
            tail = self._tail or self._roll(first_bytes(len(message), ()))
            self._write(tail, [NewEntry(entry, [message], NO_CONTENT, NO_CONTENT)])
            return 1

        self._with_space(write)
        self.ending = Ending(self.head, failure)

    def sync(self) -> int:
        """Make everything appended durable; returns the number of the first message that is not: `head`.

        Raises LogBroken: what was appended since the last `sync` may or may not be found after a restart.
        """
        self._check_open()
        tail = self._tail
        if tail is None or tail.synced:
            return self.durable
        segment = tail.segment
        is_new = not segment.durable
        try:
            tail.sync()
            if is_new:
                self._files.sync_directory(self.path)
        except OSError as error:
            raise self._break(segment.path, segment.durable, "syncing", error) from error
        segment.durable = segment.size
        if is_new:
            self._marks.settle(self._current_mark())  # from now on it is missed
        self._kept.durable = segment.end
        self._mark()
        return self.durable

    def trim(self, acknowledged: int) -> None:
        """Forget everything below ``acknowledged``: segments that hold nothing else are deleted.

        The position itself gets to the disk when the kernel sees fit, at the latest by `close`: an older one found
        after a crash means that messages are sent again. A broken log deletes nothing. Raises LogBroken; ValueError
        beyond what is durable.
        """
        if acknowledged > self.durable:
            raise ValueError(f"{acknowledged} messages are acknowledged, but only {self.durable} are durable")
        if acknowledged <= self.acknowledged:
            return
        self._kept.acknowledged = acknowledged
        if self._broken is None and not self._closed:
            self._mark()
            self._delete_segments()

    def read(
        self, from_sequence: int, *, window: int = WINDOW, pool: Pool | None = None
    ) -> Iterator[LogRecord]:
        """The durable records from the one that holds ``from_sequence``, and those that become durable meanwhile.

        ``window`` bytes are read at a time, into memory of ``pool``: a payload keeps as much from being used again.
        Raises PositionLost below what is kept, also later if `trim` overtakes the iterator by a segment; LogDamaged
        where a record is not what was written. ValueError beyond what is durable.
        """
        return self._reading.read(from_sequence, window, pool)

    def outline(self, from_sequence: int) -> Iterator[Outline]:
        """The outlines of records, as by `read`, without payloads: only headers are read from the disk."""
        return self._reading.outline(from_sequence)

    def close(self) -> None:
        """Give the files and the lock back. Records appended since the last `sync` may be lost."""
        if self._closed:
            return
        self._closed = True
        if self._broken is None:
            self._marks.sync()
        self._close_files()
        self._folder.lock.release()

    def abandon(self) -> None:
        """Close the descriptors and do nothing else: for a forked child, whose parent continues with the log."""
        self._closed = True
        self._close_files()
        self._folder.lock.abandon()

    def discard(self, *beside: str) -> None:
        """Close the log and remove it from the disk: the stream is over and all of it acknowledged, or not wanted.

        A crash leaves all of it or nothing; what goes with it, by names in its folder ``beside`` it, may stay then.
        Raises LogBroken.
        """
        self._check_open()
        self._closed = True
        self._close_files()
        try:
            folders.discard(self._folder, *beside)
        except OSError as error:
            raise self._break(self.path, 0, "removing", error) from error
        finally:
            self._folder.lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- writing

    def _check_open(self) -> None:
        if self._broken is not None:
            raise self._broken
        if self._closed:
            raise ChannelClosed(f"the buffer in {self.path} was closed at number {self.head}")

    def _check_writable(self) -> None:
        self._check_open()
        if self.ending is not None:
            raise ChannelClosed(f"the stream in {self.path} has ended after {self.ending.count} messages")

    def _break(self, path: Path, offset: int, doing: str, cause: OSError) -> LogBroken:
        self._broken = broken(path, offset, doing, cause)
        return self._broken

    def _admits(self, needed: int) -> bool:
        limit = self._max_disk_bytes
        return limit is None or self.head == self.acknowledged or self.disk_bytes + needed <= limit

    def _with_space(self, write: Callable[[], int]) -> int:
        try:
            return write()
        except StorageFull:
            if not self._start_over():
                raise
            return write()

    def _start_over(self) -> bool:
        """Delete the last segment too, where all of it is acknowledged: it may be what the disk is full of.

        Returns true if anything was deleted. No segment then shows where numbers continue, so the mark must,
        and durably, before.
        """
        if self.head != self.acknowledged or self.disk_bytes <= SEGMENT_HEADER:
            return False
        if not self._marks.settle(Mark(self.head, self.head, 0)):
            return False
        if self._tail is not None:
            self._tail.file.close()
            self._tail = None
        for segment in self._kept.segments:
            self._delete(segment)
        return True

    def _tail_for(self, length: int, contents: Sequence[Content]) -> Tail:
        """The segment that an entry goes to: the one at hand, or a new one. Raises StorageFull."""
        tail = self._tail
        if tail is not None:
            needed = tail.needed_bytes(length, contents)
            if not tail.has_records or tail.segment.size + needed <= self._segment_bytes:
                return self._with_room(tail, needed, length, contents)
        needed = first_bytes(length, contents)
        self._check_room(needed)
        return self._roll(needed)

    def _with_room(self, tail: Tail, needed: int, length: int, contents: Sequence[Content]) -> Tail:
        self._check_room(needed)
        limit = self._max_disk_bytes
        if limit is None or not tail.has_records or self.disk_bytes + needed <= limit:
            return tail
        # All is acknowledged, and in the way only because a log never deletes its last segment.
        return self._roll(first_bytes(length, contents))

    def _check_room(self, needed: int) -> None:
        limit = self._max_disk_bytes
        if limit is not None and not self._admits(needed):
            raise over_limit(self.path, needed, self.disk_bytes, limit)

    def _roll(self, needed: int) -> Tail:
        """Continue in a new segment, once the one before is durable: recovery relies on that order."""
        self.sync()
        try:
            tail = create_tail(self._files, self.path, self.stream, self.head)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise no_space(self.path, needed, error) from error
            raise self._break(self.path, 0, "making a segment in", error) from error
        if self._tail is not None:
            self._tail.file.close()
        self._tail = tail
        self._kept.segments = (*self._kept.segments, tail.segment)
        self.disk_bytes += tail.segment.size
        if self.acknowledged == self.head and len(self._kept.segments) > 1:
            self.sync()
            self._delete_segments()
        return tail

    def _write(self, tail: Tail, writings: Sequence[NewEntry]) -> None:
        before = tail.segment.size
        try:
            tail.write(writings)
        except OSError as error:
            path = tail.segment.path
            if error.errno not in NO_SPACE:
                raise self._break(path, before, "writing", error) from error
            try:
                tail.take_back()
            except OSError as failure:
                raise self._break(path, before, "cutting", failure) from error
            raise no_space(self.path, entry_bytes(writings[0].entry.length), error) from error
        except BaseException:
            # A signal's exception in between: the bytes after the last entry are not known.
            self._break(tail.segment.path, before, "writing", InterruptedError("interrupted"))
            raise
        written = tail.segment.size - before
        self.disk_bytes += written
        if written >= _HASTE_BYTES:
            tail.file.hasten(before, written)

    def _settle_start(self) -> None:
        """Record where the first segment will begin: nothing is missing before it."""
        start = self.acknowledged
        if not self._marks.settle(Mark(start, start, 0)):
            assert self._marks.error is not None
            raise self._marks.error

    def _current_mark(self) -> Mark:
        if self._tail is not None and self._tail.segment.durable:
            return Mark(self.acknowledged, self._tail.segment.base, self._tail.segment.durable)
        return self._marks.last._replace(acknowledged=self.acknowledged)

    def _mark(self) -> None:
        self._marks.write(self._current_mark())

    def _delete_segments(self) -> None:
        # The acknowledged number is durable first: a segment that is gone without that is a loss. A disk that
        # does not take it keeps them.
        if not self._oldest_is_done():
            return
        if self._marks.settled.acknowledged < self.acknowledged and not self._marks.settle(
            self._current_mark()
        ):
            return
        # From the oldest, each for good before the next: a crash leaves no gap.
        while self._oldest_is_done():
            self._delete(self._kept.segments[0])

    def _oldest_is_done(self) -> bool:
        segments = self._kept.segments
        return len(segments) > 1 and bool(segments[1].durable) and segments[0].end <= self.acknowledged

    def _delete(self, oldest: Segment) -> None:
        try:
            self._files.unlink(oldest.path)
            self._files.sync_directory(self.path)
        except OSError as error:
            raise self._break(oldest.path, 0, "deleting", error) from error
        self._kept.drop_oldest()
        self.disk_bytes -= oldest.size

    def _close_files(self) -> None:
        if self._tail is not None:
            self._tail.file.close()
        self._marks.close()
