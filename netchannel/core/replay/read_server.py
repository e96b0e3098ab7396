"""The retaining end of a connection on which a client reads ranges."""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING

from netchannel.core.control_connection import FOR_READING
from netchannel.core.link import Closing
from netchannel.core.sending.data_sender import WRITE_LIMIT
from netchannel.core.sending.features import describe_missing, missing_feature
from netchannel.errors import NetChannelError, ProtocolError, StreamReplaced
from netchannel.wire.frame_parser import FrameParser
from netchannel.wire.frames import (
    FRAME_LIMIT,
    TOKEN_FRAME_LIMIT,
    UNSUMMED,
    Buffer,
    Frame,
    Kind,
    blob,
    refused,
    signal,
)
from netchannel.wire.messages import TOKEN_SIZE

from .retained_service import ReadLink, RetainedService, code_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from netchannel.core.receiving.receiver_core import ReceiverCore
    from netchannel.core.sending.send_buffer import Record

    from .history import Cursor, History

REQUEST = struct.Struct("<Q")
"""The payload of a REQUEST frame: the number after the range."""
REQUESTS_LIMIT = 64
"""Ranges that may be asked for ahead, on a connection."""


def serve_reads(core: ReceiverCore) -> None:
    """Have ``core`` take connections on which clients read."""
    core.connections.kinds[FOR_READING] = lambda remote: ReadServerData(core, remote)


class ReadServerData(ReadLink):
    """Takes the token, then ranges; gives their messages, one range after the other."""

    def __init__(self, core: ReceiverCore, remote: str) -> None:
        super().__init__(core, remote)
        self._receiver = core
        self._parser = FrameParser(core.slab, core.pool, 0, TOKEN_FRAME_LIMIT)
        self._retained: RetainedService | None = None
        self._history: History
        self._ranges: deque[tuple[int, int]] = deque()
        self._cursor: Cursor | None = None
        self._parts: Iterator[Sequence[Buffer]] | None = None  # of a message that was begun
        self._schema_sent = False
        self._context_sent = b""
        self._summed = True

    def connected(self, now: float) -> None:
        self.arm(now + self.core.timing.handshake_s, self._expired)

    def _expired(self, now: float) -> None:
        self.abort()

    def get_buffer(self, hint: int) -> memoryview:
        return self._parser.get_buffer()

    def _received(self, n: int, now: float) -> None:
        if self.client is not None:
            self.client.heard(now)
        for frame in self._parser.received(n):
            if self.closing is not Closing.OPEN:
                return
            if self._retained is None:
                self._attach(frame, now)
            else:
                self._request(frame)

    def _attach(self, frame: Frame, now: float) -> None:
        if frame.kind != Kind.ATTACH:
            raise ProtocolError(f"expected a token, got a frame {Kind(frame.kind).name}")
        payload = bytes(frame.payload)
        found = self._receiver.services.redeem(payload[:TOKEN_SIZE])
        retained = None if found is None else found.service
        if found is None or not isinstance(retained, RetainedService) or retained.history is None:
            self._refuse("token", "the token is invalid, or no longer valid")
            return
        self.disarm()
        self._receiver.connections.proven(self)
        self._retained, self.client = retained, found.client
        self._history = retained.history
        self._retained.attached(self)
        self._summed = not self.is_direct(payload[TOKEN_SIZE:])
        self.send(signal(Kind.ATTACHED, flags=0 if self._summed else UNSUMMED))

    def _request(self, frame: Frame) -> None:
        if frame.kind != Kind.REQUEST or len(frame.payload) != REQUEST.size:
            raise ProtocolError(f"expected a range, got a frame {Kind(frame.kind).name}")
        if len(self._ranges) >= REQUESTS_LIMIT:
            raise ProtocolError(f"more than {REQUESTS_LIMIT} unanswered ranges were requested")
        (until,) = REQUEST.unpack(frame.payload)
        self._ranges.append((frame.sequence, until))
        self.core.touch(self)

    def _refuse(self, code: str, why: str) -> None:
        self.send(refused(code, why))
        self.close()
        self.core.timers.at(0.0, self._leave_in_time)

    def _leave_in_time(self, now: float) -> None:
        """Leave in time, even if the last word is not read."""
        if self.closing is Closing.FLUSH:
            self.arm(now + self.core.timing.leave_s, self._expired)

    def violated(self, error: ProtocolError, now: float) -> None:
        """Send the reason before hanging up."""
        self.complain_of(error, now)
        self.cause = str(error)
        self._stop()
        self._refuse("protocol", self.cause)

    def replaced(self, now: float) -> None:
        self._end(
            StreamReplaced(f"stream {self._history.stream!r} has ended, and was replaced by a new stream")
        )

    def output(self) -> list[Buffer]:
        """Return queued frames, then as much of the ranges as a write takes."""
        buffers = super().output()
        self.more = bool(buffers) and bool(self._ranges)
        if buffers or self._retained is None or self.closing is not Closing.OPEN:
            return buffers
        try:
            return self._messages()
        except NetChannelError as error:
            self._end(error)
            return super().output()

    def _end(self, error: NetChannelError) -> None:
        """A range cannot be read any further."""
        self._stop()
        self._refuse(code_of(error), str(error))

    def _messages(self) -> list[Buffer]:
        buffers: list[Buffer] = []
        size = 0
        while size < WRITE_LIMIT:
            if self._parts is not None and (part := next(self._parts, None)) is not None:
                buffers += part
                size += FRAME_LIMIT
                continue
            self._parts = None
            if self._cursor is None and not self._next_range():
                break
            assert self._cursor is not None
            if (record := self._cursor.take()) is not None:
                buffers += self._begin(record)
                size += record.size if self._parts is None else 0
            elif self._cursor.next >= self._cursor.until:
                buffers += self._schema()
                buffers.append(signal(Kind.END, sequence=self._cursor.until))
                self._cursor.close()
                self._cursor = None
            else:
                break  # it comes from the disk
        self.more = size >= WRITE_LIMIT
        return buffers

    def _next_range(self) -> bool:
        if not self._ranges:
            return False
        first, until = self._ranges.popleft()
        self._history.check_range(first, until)
        self._cursor = self._history.cursor(first, until, self._ready)
        return True

    def _ready(self) -> None:
        self.core.touch(self)

    def _schema(self) -> list[Buffer]:
        schema = self._history.schema
        if self._schema_sent or not schema:
            return []
        self._schema_sent = True
        return blob(Kind.SCHEMA, schema)

    def _begin(self, record: Record) -> list[Buffer]:
        """Return the part of ``record`` that is to be written first: all, if it does not go in parts."""
        if (
            self.client is not None
            and (feature := missing_feature(record, self.client.peer_features)) is not None
        ):
            raise NetChannelError(describe_missing(self.client.peer, feature))
        before = self._schema()
        if record.context is not self._context_sent and record.context != self._context_sent:
            before += blob(Kind.CONTEXT, record.context)
        self._context_sent = record.context
        frame = record.whole(summed=self._summed)
        self._parts = None if frame else record.parts(summed=self._summed)
        return [*before, *frame]

    def _stop(self) -> None:
        self._ranges.clear()
        self._parts = None
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None

    def _lost(self, reason: str, now: float) -> None:
        self._receiver.connections.gone(self)
        self._stop()
        if self._retained is not None:
            self._retained.lost(self)
