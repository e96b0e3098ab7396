"""A sender's buffer that continues in temporary files when the memory is full; not durable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netchannel.core.link import Job
from netchannel.core.states import SenderEvent
from netchannel.errors import BufferFull, NetChannelError
from netchannel.log_texts import log

from .jobs import BufferWriter, append, appended

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from netchannel.core.sending.outbound import OutboundChannel
    from netchannel.core.sending.send_buffer import Record

    from .log import SegmentLog


def spill_to(
    channel: OutboundChannel, open_log: Callable[[int], SegmentLog], close: Callable[[], None]
) -> None:
    """Have the channel continue in temporary files when the memory is full; see `SpillWriter`."""
    channel.store = SpillWriter(channel, open_log, close)


class SpillWriter(BufferWriter):
    """Writes the newest of what is yet to be sent to logs in temporary files: one for each run of messages.

    ``open_log(start)`` makes a log for messages from number ``start`` on; ``close`` closes the files of all of them.
    """

    def __init__(
        self, channel: OutboundChannel, open_log: Callable[[int], SegmentLog], close: Callable[[], None]
    ) -> None:
        super().__init__(channel)
        self._open_log = open_log
        self._close = close
        self._logs: list[SegmentLog] = []
        self._at_limit = False  # and it was logged, since files were there

    def _disk_bytes(self) -> int:
        return sum(log.disk_bytes for log in self._logs)

    def room(self, size: int) -> bool:
        channel = self.channel
        if channel.kept_bytes + size <= channel.bounds.memory_bytes:
            return True
        unsent = channel.send_buffer.unsent
        # Messages that cannot be spilled, as they are sent and not acknowledged, must not keep another one
        # out.
        return not self._full and not channel.packer.size and (not unsent or unsent[-1].log is not None)

    def credit(self) -> int:
        return self.channel.bounds.memory_bytes - self.channel.kept_bytes

    def taken(self) -> None:
        if self._pressed():
            self.request()

    def _pressed(self) -> bool:
        channel = self.channel
        return channel.waiting > 0 or channel.kept_bytes * 4 >= channel.bounds.memory_bytes * 3

    def _work(self) -> Job | None:
        records: list[Record] = []
        log: SegmentLog | None = None
        if self._pressed() and not self._full:
            self.channel.seal()
            log, records = self._to_spill()
        if not records and all(log.acknowledged >= self.channel.acknowledged for log in self._logs):
            return None
        return _Spill(self, self._logs, log, records, self._open_log)

    def _to_spill(self) -> tuple[SegmentLog | None, list[Record]]:
        """Return the records to write after the last log, or into a new one: the newest half of what is in memory."""
        records = self.channel.send_buffer.in_memory_only()
        last = self._logs[-1] if self._logs else None
        if last is None or not records or records[0].first != last.head:
            last = None
            half = self.channel.bounds.memory_bytes // 2
            size, newest = 0, len(records)
            while newest and size < half:
                newest -= 1
                size += records[newest].size
            records = records[newest:]
        return last, self._within_limit(records)

    def _within_limit(self, records: list[Record]) -> list[Record]:
        limit = self.channel.buffer.max_disk_bytes
        if limit is None:
            return records
        used, count = self.disk_bytes, 0
        self._at_limit = self._at_limit and bool(self._logs)
        for record in records:
            used += record.size
            if used > limit and self._logs:
                break
            count += 1
        if records and not count and self.channel.waiting:
            self._say_full(limit)
        return records[:count]

    def _say_full(self, limit: int) -> None:
        if not self._at_limit:
            self._at_limit = True
            log.warning(
                "channel %s to %s: its producer waits: %d of max_disk_bytes=%d are used, and %d bytes are in memory; "
                "wait until the receiver has acknowledged more, or raise the limit",
                self.channel.id, self.channel.to, self.disk_bytes, limit, self.channel.kept_bytes,
            )  # fmt: skip

    def spilled(self, job: _Spill, now: float) -> None:
        """Drop from memory what came to the disk."""
        channel = self.channel
        self._logs = [log for log in self._logs if log not in job.gone]
        if job.log is not None and job.log not in self._logs:
            self._logs.append(job.log)
        if job.log is not None and job.appended and not channel.terminal:
            self.on_written()
            channel.send_buffer.cool(job.records[0].first, job.records[job.appended - 1].end, job.log)
        if job.full is not None:
            self.on_full(job.full, now)
        if job.error is not None:
            channel.fail(SenderEvent.GIVE_UP, job.error, now)
        self.ended(now)

    def _leave_files(self) -> None:
        try:
            for each in self._logs:
                each.discard()
        finally:
            self._close()


class _Spill(Job):
    def __init__(
        self,
        writer: SpillWriter,
        logs: Sequence[SegmentLog],
        log: SegmentLog | None,
        records: list[Record],
        open_log: Callable[[int], SegmentLog],
    ) -> None:
        self._writer = writer
        self._logs = logs
        self._open_log = open_log
        self._acknowledged = writer.channel.acknowledged
        self.log = log
        self.records = records
        self.appended = 0
        self.gone: list[SegmentLog] = []
        self.full: BufferFull | None = None
        self.error: NetChannelError | None = None

    def run(self) -> None:
        try:
            self._free()
            self._write()
        except BufferFull as error:
            self.full = error
        except NetChannelError as error:
            self.error = error

    def _free(self) -> None:
        for each in self._logs:
            if each.head <= self._acknowledged and each is not self.log:
                each.discard()
                self.gone.append(each)
            else:
                each.trim(min(self._acknowledged, each.head))

    def _write(self) -> None:
        if not self.records:
            return
        if self.log is None:
            self.log = self._open_log(self.records[0].first)
        try:
            append(self.log, self.records)
        finally:
            self.log.sync()
            self.appended = appended(self.records, self.log)

    def done(self, now: float) -> None:
        self._writer.spilled(self, now)
