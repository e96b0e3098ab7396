"""A channel that keeps its stream, as its clients see it: heads, ranges, consumers."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from netchannel.core.link import Link
from netchannel.core.receiving.requests import ChannelService
from netchannel.errors import (
    ChannelBroken,
    ChannelInUse,
    ConsumerFenced,
    LogBroken,
    NetChannelError,
    PositionLost,
    StreamReplaced,
)
from netchannel.log_texts import log, printable
from netchannel.values import Heads
from netchannel.wire import messages

from .consumers import Consumers

if TYPE_CHECKING:
    from collections.abc import Callable

    from netchannel.core.receiving.receiver_core import ReceiverCore
    from netchannel.core.receiving.requests import RequestControl
    from netchannel.core.timers import Timer
    from netchannel.policies import RetainPolicy
    from netchannel.values import Located

    from .history import History

PUSH_S = 0.01
"""Seconds between pushes of the heads to a watching client, at least."""
RETRY_S = 0.1
"""Seconds until a push to a client that does not read is retried."""
ABSENT_S = 1.0
"""How long a channel is full at least before an absent consumer is reported as the reason; or for its lease."""

CODES: tuple[tuple[type[NetChannelError], str], ...] = (
    (PositionLost, "position"),
    (StreamReplaced, "replaced"),
    (ChannelInUse, "held"),
    (ConsumerFenced, "fenced"),
    (ChannelBroken, "failed"),
)


def code_of(error: NetChannelError) -> str:
    """Return the code of a refusal for ``error``; a temporary error has one with which the client asks again."""
    if isinstance(error, LogBroken) and error.no_descriptors:
        return "descriptors"
    return next((code for kind, code in CODES if isinstance(error, kind)), "policy")


class _Watch:
    """A client that is notified when the heads change."""

    __slots__ = ("message", "schema_of", "told")

    def __init__(self, message: messages.Watch) -> None:
        self.message = message
        self.told: Heads | None = None
        self.schema_of = ""  # the stream whose schema it was sent


class ReadLink(Link):
    """A connection on which ``client`` reads."""

    client: RequestControl | None = None

    @abstractmethod
    def replaced(self, now: float) -> None:
        """Another stream is kept from now on."""


class RetainedService(ChannelService):
    """The history of a channel, and its readers. Subclasses, or their owners, fill it.

    ``history`` is None until there is a stream. ``on_change`` is called when consumers or the history have
    advanced.
    """

    def __init__(self, core: ReceiverCore, channel_id: str, codec: str, policy: RetainPolicy) -> None:
        self.core = core
        self.id = channel_id
        self.codec = codec
        self.policy = policy
        self.history: History | None = None
        self.consumers = Consumers(policy.lease_s)
        self.is_left = False
        self.settled = False  # it is left, and its files are closed
        self.on_change: Callable[[], None] = lambda: None
        self._watching: dict[
            tuple[RequestControl, int], _Watch
        ] = {}  # by connection, and number of the question
        self._links: dict[ReadLink, None] = {}
        self._push: Timer | None = None
        self._full: Timer | None = None
        self._told_full = False
        self._wanted = 0  # bytes, of the message that there is no room for
        self._pushed_at = 0.0

    @property
    def heads(self) -> Heads:
        """How far it goes."""
        history = self.history
        failure = None if self.broken is None else str(self.broken)
        if history is None:
            return Heads("", 0, 0, 0, 0, failure is not None, failure)
        ending = history.ending
        if ending is not None:
            failure = ending.failure
        index = history.index
        ended = (ending is not None and ending.count == history.head) or failure is not None
        return Heads(
            history.stream,
            history.oldest,
            history.head,
            index.rows,
            index.size,
            ended,
            failure if ended else None,
        )

    @property
    def acknowledged(self) -> int:
        """The number below which all known consumers have acknowledged everything; 0 if there are none."""
        lowest = self.consumers.lowest
        return 0 if lowest is None else lowest

    @property
    def done(self) -> bool:
        """True if the stream is over, and all known consumers have acknowledged it."""
        history = self.history
        if history is None or history.ending is None or history.head < history.ending.count:
            return False
        lowest = self.consumers.lowest
        return lowest is None or lowest >= history.ending.count

    def begin(self, history: History, now: float) -> None:
        """Keep another stream from now on; readers of the previous one are notified."""
        before, self.history = self.history, history
        history.on_kept = self.kept
        history.positions = self.consumers.positions
        if not len(self.consumers):
            self.consumers.restore(history.remembered, now)
        for name in self.policy.consumers:
            self.consumers.expect(name, history.oldest)
        if before is not None and before is not history:
            self.consumers.start_over(history.oldest)
            history.settle(lambda error, now: None, now)
            for link in list(self._links):
                link.replaced(now)
        if (lowest := self.consumers.lowest) is not None:
            history.release(min(lowest, history.head))
        self.core.announce(self.id)
        self.kept(now)

    def kept(self, now: float) -> None:
        """The history has changed."""
        if self.history is not None and self.history.error is not None and self.broken is None:
            self._break(self.history.error)
        self.push(now)
        self.on_change()

    def fail(self, error: NetChannelError, now: float) -> None:
        """Keep no more; what is there can be read."""
        if self.broken is None:
            self._break(error)
            self.kept(now)

    def _break(self, error: NetChannelError) -> None:
        self.broken = error
        if isinstance(error, ChannelBroken):  # the retaining process may never look
            log.warning("channel %s retains no more messages: %s", self.id, printable(str(error)))

    def push(self, now: float) -> None:
        """Notify the watching clients, once per turn of the loop at most."""
        if self._push is None and self._watching:
            when = max(now, self._pushed_at + PUSH_S)
            self._push = self.core.timers.at(when, self._push_now)

    def push_now(self, now: float) -> None:
        """Notify the watching clients, as nothing may follow."""
        if self._push is not None:
            self._push.cancel()
        self._push_now(now)

    def _push_now(self, now: float) -> None:
        self._push = None
        self._pushed_at = now
        heads = self.heads
        late = False
        for (client, _), watch in self._watching.items():
            if client.writable:
                self._tell(client, watch, heads)
            else:
                late = True
        if late and self._push is None:
            self._push = self.core.timers.at(now + RETRY_S, self._push_now)

    def _tell(self, client: RequestControl, watch: _Watch, heads: Heads) -> None:
        schema = None if self.history is None else self.history.schema
        news = schema is not None and watch.schema_of != heads.stream
        if heads == watch.told and not news:
            return
        watch.told = heads
        if news:
            watch.schema_of = heads.stream
        if schema is not None and len(schema) > messages.SCHEMA_LIMIT:
            schema = None
        fields = heads._asdict()
        if heads.failure is not None:
            fields["failure"] = heads.failure[:1000]
        client.answer(watch.message, codec=self.codec, schema=schema if news else None, **fields)

    # -- questions

    def asked(self, client: RequestControl, message: messages.Question, now: float) -> bool:
        try:
            match message:
                case messages.Watch():
                    self._watch(client, message)
                case messages.Unwatch():
                    self._unwatch(client, message.request)
                case messages.Yield():
                    self.consumers.release(message.consumer, message.holder, client, now)
                case messages.Hold():
                    self._hold(client, message, now)
                case messages.Forget():
                    self._forget(client, message, now)
                case messages.Locate() | messages.When() | messages.Read() | messages.Acknowledge():
                    self._of_stream(client, message, now)
                case _:
                    return False
        except NetChannelError as error:
            client.deny(message, code_of(error), str(error))
        return True

    def _watch(self, client: RequestControl, message: messages.Watch) -> None:
        client.hold((self.id, message.request))
        watch = self._watching[client, message.request] = _Watch(message)
        self._tell(client, watch, self.heads)

    def _unwatch(self, client: RequestControl, number: int) -> None:
        if self._watching.pop((client, number), None) is not None:
            client.let_go((self.id, number))

    def _no_stream(self, client: RequestControl, message: messages.Question) -> None:
        """The client asks again when there is one. Raises ChannelBroken if there will be none."""
        if self.broken is not None:
            raise ChannelBroken(f"channel {self.id!r} has no stream: {self.broken}")
        self.core.services.wait(client, self.id)
        client.deny(message, "empty", f"channel {self.id!r} has no stream yet")

    def _of_stream(
        self,
        client: RequestControl,
        message: messages.Locate | messages.When | messages.Read | messages.Acknowledge,
        now: float,
    ) -> None:
        history = self.history
        if history is None:
            self._no_stream(client, message)
            return
        if message.stream != history.stream:
            raise StreamReplaced(
                f"channel {self.id!r} keeps stream {history.stream!r}, from number {history.oldest} to {history.head}; "
                f"stream {message.stream!r} was requested"
            )
        match message:
            case messages.Locate():
                self._locate(history, client, message, now)
            case messages.When():
                since, before = history.index.moment(message.at)
                client.answer(message, since=max(since, history.oldest), before=max(before, history.oldest))
            case messages.Read():
                client.answer(message, token=self.core.services.token(self, client, now))
            case messages.Acknowledge():
                self._acknowledge(history, client, message, now)

    def _locate(self, history: History, client: RequestControl, message: messages.Locate, now: float) -> None:
        first = message.first
        history.check_range(first, max(first, history.oldest))

        def answer(found: Located | NetChannelError, now: float) -> None:
            if isinstance(found, NetChannelError):
                client.deny(message, code_of(found), str(found))
            else:
                client.answer(message, **found._asdict())

        history.locate(first, message.max_rows, message.max_bytes, answer, now)

    def _hold(self, client: RequestControl, message: messages.Hold, now: float) -> None:
        history = self.history
        if history is None and self.policy.directory is not None:
            self._no_stream(client, message)  # there is nowhere to remember it yet
            return
        consumer = self.consumers.hold(
            message.consumer,
            message.holder,
            client,
            f" at {client.peer}",
            now,
            oldest=0 if history is None else history.oldest,
            renew=message.renew,
            fresh=message.fresh,
        )
        stream = "" if history is None else history.stream
        self._settled(client, message, now, stream=stream, position=consumer.position)

    def _acknowledge(
        self, history: History, client: RequestControl, message: messages.Acknowledge, now: float
    ) -> None:
        upto = message.upto
        if upto > history.head:
            raise NetChannelError(
                f"channel {self.id!r}: all messages below {upto} were acknowledged, but the stream has only "
                f"{history.head} messages"
            )
        consumer = self.consumers.acknowledge(message.consumer, message.holder, upto)
        self._settled(client, message, now, position=consumer.position)

    def _forget(self, client: RequestControl, message: messages.Forget, now: float) -> None:
        self.consumers.forget(message.consumer)
        self._settled(client, message, now)

    def _settled(
        self, client: RequestControl, message: messages.Question, now: float, **fields: object
    ) -> None:
        """Answer once the consumers' positions are durable, if they are kept, and free messages that are not wanted."""

        def settled(error: NetChannelError | None, now: float) -> None:
            if error is not None:
                client.deny(message, "failed", str(error))
                return
            client.answer(message, **fields)
            self._release(now)

        if self.history is None:
            settled(None, now)
        else:
            self.history.settle(settled, now)

    def _release(self, now: float) -> None:
        history, lowest = self.history, self.consumers.lowest
        if history is not None and lowest is not None and lowest > history.oldest:
            history.release(lowest)
            self._not_full()
            self.kept(now)
        else:
            self.on_change()

    def full(self, size: int, now: float) -> None:
        """There is no room for ``size`` bytes.

        If an absent consumer is the reason, this is reported, once until there is room.
        """
        self._wanted = size
        if self._full is None and not self._told_full and not self.is_left:
            self._full = self.core.timers.at(now + max(self.policy.lease_s, ABSENT_S), self._still_full)

    def _still_full(self, now: float) -> None:
        self._full = None
        if self.history is None or self.history.room(self._wanted):
            return
        slowest = self.consumers.slowest
        if slowest is None:
            why = "no consumer has connected yet, and messages are freed only after consumers have acknowledged them"
        elif slowest[1].connection is None:
            why = (
                f"consumer {slowest[0]!r} has acknowledged everything below {slowest[1].position} of "
                f"{self.history.head} and is not connected. If it will not return, forget its name: "
                f"ChannelReader.forget({slowest[0]!r})"
            )
        else:
            self.full(self._wanted, now)  # it may go
            return
        self._told_full = True
        log.warning(
            "channel %s is full with %d bytes, and its producer waits: %s",
            self.id,
            self.history.kept_bytes,
            why,
        )

    def _not_full(self) -> None:
        self._told_full = False
        if self._full is not None:
            self._full.cancel()
            self._full = None

    def left(self, client: RequestControl, now: float) -> None:
        for each, number in list(self._watching):
            if each is client:
                self._unwatch(client, number)
        self.consumers.left(client, now)
        for link in [link for link in self._links if link.client is client]:
            link.abort()

    # -- connections that read

    def attached(self, link: ReadLink) -> None:
        """A connection reads the history that is there now."""
        self._links[link] = None

    def lost(self, link: ReadLink) -> None:
        """A connection reads no more."""
        self._links.pop(link, None)

    def leave(self, now: float, *, discard: bool) -> None:
        """The channel is over: no client is served any more, and files are closed, or removed."""
        if self.is_left:
            return
        self.is_left = True
        self._not_full()
        for (client, number), watch in list(self._watching.items()):
            self._unwatch(client, number)
            self.core.services.wait(client, self.id)
            client.deny(
                watch.message, "unregistered", f"channel {self.id!r} is not registered there any more"
            )
        if self._push is not None:
            self._push.cancel()
            self._push = None
        for link in list(self._links):
            link.abort()
        services = self.core.services
        if services.offered.get(self.id) is self:
            del services.offered[self.id]
        services.retire(self)
        if self.history is not None:
            self.history.leave(discard=discard, then=self._closed, now=now)
        else:
            self._closed(now)

    def _closed(self, now: float) -> None:
        self.settled = True
        self.on_change()
