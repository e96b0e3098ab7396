"""A sender's buffer on disk: nothing goes on the wire before its record is durable, and a successor continues it."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from netchannel.core.link import Job
from netchannel.core.sending.store import DurableStore
from netchannel.core.states import SenderEvent
from netchannel.errors import BufferFull, NetChannelError

from .jobs import BufferWriter, append, appended

if TYPE_CHECKING:
    from netchannel.core.sending.outbound import OutboundChannel
    from netchannel.core.sending.packer import Ticket
    from netchannel.core.sending.send_buffer import Record

    from .log import SegmentLog

ENTRY_BYTES = 128
"""Bytes that a record takes on disk in addition to its messages, about."""
PIECE_BYTES = 1 << 20
"""Bytes that are given to the disk at a time while producers have more at hand."""
GROUP_BYTES = 1 << 23
GROUP_US = 10_000
"""Bytes, or microseconds, up to which pieces wait for each other while more come, to be synced at once."""


def keep_in(channel: OutboundChannel, log: SegmentLog) -> None:
    """Make the channel's buffer durable in ``log``, and continue with its messages."""
    channel.keep_in(DurableWriter(channel, log), log, log.acknowledged, log.head, log.ending)


class DurableWriter(BufferWriter, DurableStore):
    """Appends records to a log, all that wait by one sync, and lets them go out once they are durable."""

    def __init__(self, channel: OutboundChannel, log: SegmentLog) -> None:
        super().__init__(channel)
        self.upto = log.durable  # everything below is durable
        self.finished = log.ending is not None
        self._log = log
        self._waiting: deque[tuple[Record, Ticket, int]] = deque()  # with the bytes that were taken before
        self._waiting_bytes = 0
        self._written = 0  # so many of them are written, and not waited for yet
        self._written_bytes = 0
        self._written_at = 0  # when the first of these was
        self._cooling = False

    def _disk_bytes(self) -> int:
        return self._log.disk_bytes

    @property
    def uncommitted_bytes(self) -> int:
        return self._waiting_bytes

    def room(self, size: int) -> bool:
        buffer = self.channel.buffer
        waiting = self._waiting_bytes + self.channel.packer.size
        if waiting and waiting + size > self.channel.bounds.memory_bytes:
            return False
        needed = self.disk_bytes + waiting + size + ENTRY_BYTES * (len(self._waiting) + 1)
        return buffer.max_disk_bytes is None or needed <= buffer.max_disk_bytes

    def credit(self) -> int:
        waiting = self._waiting_bytes + self.channel.packer.size
        room, limit = self.channel.bounds.memory_bytes - waiting, self.channel.buffer.max_disk_bytes
        if limit is None:
            return room
        return min(room, limit - self.disk_bytes - waiting - ENTRY_BYTES * (len(self._waiting) + 1))

    def take(self, record: Record, ticket: Ticket, taken_bytes: int) -> None:
        self._waiting.append((record, ticket, taken_bytes))
        self._waiting_bytes += record.size
        self.request()

    def _work(self) -> Job | None:
        channel = self.channel
        more = self._more_is_coming
        fresh = self._waiting_bytes - self._written_bytes
        records: list[Record] = []
        if not self._full and not (more and fresh + channel.packer.size < PIECE_BYTES):
            channel.seal()
            records = [record for record, _, _ in islice(self._waiting, self._written, None)]
        finish = channel.closing is not None and not self.finished and not self._full
        sync = not (more and self._within_group())
        if records or finish or (sync and self._written) or channel.acknowledged > self._log.acknowledged:
            return _Commit(self, self._log, records, finish=finish, sync=sync)
        return None

    @property
    def _more_is_coming(self) -> bool:
        """True if producers are about to bring more, and do not wait for earlier messages."""
        channel = self.channel
        waited_for = channel.awaited or channel.waiting or channel.leaving or channel.closing is not None
        return channel.gathering > 0 and not waited_for

    def _within_group(self) -> bool:
        waits_us = self.channel.core.wall() - self._written_at if self._written else 0
        return self._written_bytes < GROUP_BYTES and 0 <= waits_us < GROUP_US

    def committed(self, job: _Commit, now: float) -> None:
        """Let out what is durable now, of the job and of those before it."""
        channel = self.channel
        if job.appended and not self._written:
            self._written_at = channel.core.wall()
        self._written += job.appended
        self._written_bytes += sum(record.size for record in job.records[: job.appended])
        if job.synced:
            self._synced()
        if job.appended or job.finished:
            self.on_written()
        if job.finished:
            self.finished = True
        if job.full is not None:
            if channel.buffer.when_full == "fail":
                self._refuse(job.full)
            if self._waiting or channel.buffer.when_full != "fail" or channel.closing is not None:
                self.on_full(job.full, now)
        if job.error is not None:
            channel.fail(SenderEvent.GIVE_UP, job.error, now)
        self.ended(now)

    def _synced(self) -> None:
        """Note that all that was written is durable."""
        for _ in range(self._written):
            record, ticket, _ = self._waiting.popleft()
            self._waiting_bytes -= record.size
            self.upto = record.end
            record.log = self._log
            ticket.durable = True
            if not self.channel.terminal:
                self._keep(record)
        self._written = self._written_bytes = 0

    def _keep(self, record: Record) -> None:
        # From the memory's bound down to half of it: else one record in two would come back from the disk alone.
        send_buffer, bound = self.channel.send_buffer, self.channel.bounds.memory_bytes
        room = send_buffer.memory + record.size
        self._cooling = room > (bound // 2 if self._cooling else bound)
        if self._cooling:
            send_buffer.add_cold(record.first, record.end, self._log)
        else:
            send_buffer.add(record)

    def _refuse(self, error: BufferFull) -> None:
        """Notify the senders of waiting messages, instead of having them wait: these messages were not taken.

        Those before one whose sender has gone stay, and wait: its number cannot be withdrawn any more.
        """
        if self.channel.pending_final:
            return
        taken_bytes = None
        while self._waiting and not self._waiting[-1][1].final:
            record, ticket, taken_bytes = self._waiting.pop()
            ticket.error = error
            self._waiting_bytes -= record.size
        first = self._waiting[-1][0].end if self._waiting else self.upto
        self.channel.take_back(first, taken_bytes, error)

    def _leave_files(self) -> None:
        log = self._log
        try:
            if self._discarding:
                log.discard()
            else:
                self._finish()
                log.trim(min(self.channel.acknowledged, log.durable))
        finally:
            log.close()

    def _finish(self) -> None:
        """The end, if the channel was given up before its turn came: a successor is to deliver that too."""
        log, closing = self._log, self.channel.closing
        if closing is not None and log.ending is None and closing.count == log.head:
            log.finish(closing.failure)
            log.sync()


class _Commit(Job):
    """Appends, and one sync for all, if it is time; what was acknowledged is forgotten first, as it makes room."""

    def __init__(
        self, writer: DurableWriter, log: SegmentLog, records: list[Record], *, finish: bool, sync: bool
    ) -> None:
        channel = writer.channel
        self._writer = writer
        self._log = log
        self.records = records
        self._sync = sync
        self._schema = channel.schema or b""
        self._closing = channel.closing if finish else None
        self._acknowledged = channel.acknowledged
        self.appended = 0
        self.synced = False
        self.finished = False
        self.full: BufferFull | None = None
        self.error: NetChannelError | None = None

    def run(self) -> None:
        log = self._log
        try:
            log.trim(self._acknowledged)
            count, finished = self._append()
            if self._sync or self.full is not None:
                log.sync()
                self.synced = True
        except NetChannelError as error:
            self.error = error
        else:
            self.appended, self.finished = count, finished

    def _append(self) -> tuple[int, bool]:
        try:
            append(self._log, self.records, self._schema)
            if self._closing is not None:
                self._log.finish(self._closing.failure)
        except BufferFull as error:
            self.full = error
            return appended(self.records, self._log), False
        return len(self.records), self._closing is not None

    def done(self, now: float) -> None:
        self._writer.committed(self, now)
