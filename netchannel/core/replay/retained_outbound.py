"""A stream that is kept where it is made: what its producer sends goes to a history, and from there to clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netchannel.core.sending.packer import Packer
from netchannel.errors import ChannelClosed
from netchannel.log_texts import encodable

from .retained_service import RetainedService

if TYPE_CHECKING:
    from netchannel.core.receiving.receiver_core import ReceiverCore
    from netchannel.policies import RetainPolicy
    from netchannel.wire.frames import Body

    from .history import History


class RetainedOutbound(RetainedService):
    """Messages are gathered in a packer until `seal` gives them to the history, once per turn of the loop."""

    history: History

    def __init__(
        self, core: ReceiverCore, channel_id: str, codec: str, policy: RetainPolicy, history: History
    ) -> None:
        super().__init__(core, channel_id, codec, policy)
        self.packer = Packer(core.frames)
        self.closing = history.ending is not None
        self.since = 0.0
        self.aborted = False
        self.bytes = 0
        self._rows: list[int] = []
        self._failure: str | None = None
        self._first = history.head  # of the messages in the packer
        self.history = history

    @property
    def position(self) -> int:
        """The number of the next message."""
        return self._first + len(self._rows)

    @property
    def over(self) -> bool:
        """True if the stream has ended, and all consumers know it: another one may take its place."""
        history = self.history
        if self.is_left:
            return True
        if history.ending is None or history.head < history.ending.count:
            return False
        return max(history.oldest, self.acknowledged) >= history.ending.count

    def make_way(self, now: float) -> None:
        if self.over:
            self.leave(now, discard=True)

    def begin(self, history: History, now: float) -> None:
        self.since = now
        super().begin(history, now)

    def check_open(self) -> None:
        """Raise the reason why nothing more can be sent."""
        if self.broken is not None:
            raise type(self.broken)(*self.broken.args)
        if self.closing or self.is_left:
            raise ChannelClosed(
                f"channel {self.id!r} was closed by this side after {self.position} messages: to begin a new "
                f"stream, register the channel again once its consumers have acknowledged this stream"
            )

    def room(self, size: int) -> bool:
        """True if a message of ``size`` bytes may be taken."""
        waiting = self.packer.size
        return self.history.room(waiting + size) if waiting else self.history.room(size)

    def append(self, body: Body, note: bytes, context: bytes, rows: int, now: float) -> None:
        """Take a message: it has number ``position`` now."""
        packer, size = self.packer, len(body) + len(note)
        if packer.bodies and not packer.fits(size, context):
            self.seal(now)
        if not packer.bodies:
            packer.since = max(0, self.core.wall())  # of a clock that has not been set yet
            packer.context = context
        packer.add(body, note, size)
        self._rows.append(rows)
        self.bytes += size

    def seal(self, now: float) -> None:
        """Hand pending messages to the history, and the end after the last of them."""
        packer, first = self.packer, self._first
        if packer.bodies:
            rows = self._rows
            for record in packer.records(first):
                mine = rows[record.first - first : record.end - first]
                self.history.keep(record, sum(mine), record.size)
            self._first += len(rows)
            self._rows = []
            packer.clear()
        if self.closing:
            self.history.finish(self._failure)
        if self.history.error is not None:
            self.fail(self.history.error, now)
        self.kept(now)

    def finish(self, failure: str | None, now: float) -> None:
        """The end, or the producer's failure, after everything sent."""
        if not self.closing:
            self.closing = True
            self.aborted = failure is not None
            self._failure = None if failure is None else encodable(failure)
            self.seal(now)
