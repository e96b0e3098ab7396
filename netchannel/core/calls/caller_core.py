"""The calling side without I/O: a connection per process that is called, and calls until each is over.

A call whose connection is lost is made again on the next one, until its deadline: so it may be done twice.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Literal

from netchannel.core.control_connection import FOR_REQUESTS
from netchannel.core.dialer import DialedControl, Peer
from netchannel.core.link import Core
from netchannel.core.retries import Episode
from netchannel.errors import (
    CallFailed,
    CallTimedOut,
    HandshakeError,
    MessageTooLarge,
    NetChannelError,
    ProtocolError,
)
from netchannel.log_texts import log, printable
from netchannel.wire import messages
from netchannel.wire.envelope import encode

from .bodies import SMALL, PieceQueue, Reassembly, large
from .callees import BODIES_LIMIT, CALLS_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable

    from netchannel.core.timers import Timer
    from netchannel.policies import Timing
    from netchannel.wire.declarations import Message
    from netchannel.wire.frames import Buffer

    State = Literal["unreached", "unregistered", "unanswered"]

FOR_GOOD = ("raised", "closed", "large")
"""Codes of refusals that end a call; with any other it is made again."""


class OutgoingCall:
    """A call, until it is over; then ``done`` is called, and either ``answer`` or ``error`` is there."""

    __slots__ = (
        *("answer", "body", "control", "deadline_s", "done", "error", "home", "over", "peer", "reassembly"),
        *("refusal", "request", "service", "timer"),
    )

    def __init__(
        self, home: str, service: str, body: bytes, deadline_s: float, done: Callable[[OutgoingCall], None]
    ) -> None:
        self.home = home
        self.service = service
        self.body = body
        self.deadline_s = deadline_s
        self.done = done
        self.over = False
        self.answer: bytes = b""
        self.error: NetChannelError | None = None
        self.peer: CallerPeer
        self.control: CallerControl | None = None  # on which it is not answered
        self.request = 0
        self.reassembly: Reassembly | None = None
        self.refusal: tuple[State, str] | None = None  # why it waits, although the server was there
        self.timer: Timer


class CallerCore(Core):
    """All that a process calls."""

    def __init__(
        self,
        name: str,
        timing: Timing,
        wall: Callable[[], int],
        random: Callable[[int], bytes],
        secret: bytes | None = None,
    ) -> None:
        super().__init__(name, timing, wall, random, secret)
        self.peers: dict[tuple[str, str], CallerPeer] = {}  # by what is dialed, and on whose word
        self.users: dict[str, int] = {}
        """How many want to call at an address, and should not have to wait for a connection."""
        self.routes: dict[tuple[str, str], CallerPeer] = {}
        """Where calls go that were sent on, by the address of the node and the service."""
        self._requests = 0

    def enter(self, address: str) -> None:
        """Connect to ``address``, and stay connected until `leave`."""
        self.users[address] = self.users.get(address, 0) + 1
        self.peer(address, address).reach()

    def leave(self, address: str, now: float) -> None:
        """One less wants to call there; after the last one the connections are closed a little later."""
        self.users[address] -= 1
        if self.users[address]:
            return
        del self.users[address]
        for peer in [peer for peer in self.peers.values() if peer.node == address]:
            peer.forget_routes()
            peer.idle(now)

    def peer(self, address: str, node: str) -> CallerPeer:
        """The process at ``address``, as ``node`` named it."""
        found = self.peers.get((address, node))
        if found is None:
            found = self.peers[address, node] = CallerPeer(self, address, node)
        return found

    def call(
        self,
        address: str,
        service: str,
        body: bytes,
        *,
        deadline_s: float,
        done: Callable[[OutgoingCall], None],
        now: float,
    ) -> OutgoingCall:
        """Call ``service`` at the node of ``address``; ``done`` is called once, also from within."""
        call = OutgoingCall(address, service, body, deadline_s, done)
        call.timer = self.timers.at(now + deadline_s, partial(self._expired, call))
        (self.routes.get((address, service)) or self.peer(address, address)).ask(call)
        return call

    def next_request(self) -> int:
        """A number that no call had before on any connection."""
        self._requests += 1
        return self._requests

    def _expired(self, call: OutgoingCall, now: float) -> None:
        state, why = call.peer.why_waits(call)
        text = (
            f"service {call.service!r} at {call.home} gave no answer to a call of {len(call.body)} bytes within "
            f"{call.deadline_s} s: {why}"
        )
        self.give_up(call, CallTimedOut(text, state))

    def give_up(self, call: OutgoingCall, error: NetChannelError) -> None:
        """End ``call`` with ``error``, and notify the service if it may be working on it."""
        if not call.over:
            call.peer.withdraw(call)
            call.error = error
            _end(call)


def _end(call: OutgoingCall) -> None:
    call.over = True
    call.timer.cancel()
    call.peer.calls.pop(call, None)
    call.done(call)


class CallerPeer(Peer["CallerControl"]):
    """A process that is called: the connection to it, and the calls that are not over."""

    core: CallerCore

    def __init__(self, core: CallerCore, address: str, node: str) -> None:
        super().__init__(core, address, node)
        self.calls: dict[OutgoingCall, None] = {}
        self.routed: set[str] = set()
        """Services whose calls come here at once, as the node has sent one on."""
        self._large: OrderedDict[OutgoingCall, None] = (
            OrderedDict()
        )  # those that wait for a connection, or room on it
        self._small: OrderedDict[OutgoingCall, None] = OrderedDict()  # likewise, with small bodies
        self._refused: dict[str, dict[OutgoingCall, None]] = {}  # for now, by service
        self._open = False  # whether calls can be made
        self._has_refused = False  # to talk at all
        self._failure = "it has not answered yet"
        self._episode = Episode()

    @property
    def wanted(self) -> bool:
        if self.calls or self.routed:
            return True
        return self.address in self.core.users and not self.is_member and not self._has_refused

    def _make_control(self) -> CallerControl:
        return CallerControl(self)

    def _forget(self) -> None:
        if self.core.peers.get((self.address, self.node)) is self:
            del self.core.peers[self.address, self.node]

    # -- calls

    def ask(self, call: OutgoingCall) -> None:
        """Make ``call``, as soon as there is a connection with room for it."""
        call.peer = self
        self.calls[call] = None
        control, waiting = self.control, self._line(call)
        if self._open and not waiting and control is not None and control.has_room(call):
            control.ask(call)
            return
        waiting[call] = None
        self.reach()

    def _line(self, call: OutgoingCall) -> OrderedDict[OutgoingCall, None]:
        """Return the queue of a call: small bodies do not wait for large ones, which have less room."""
        return self._large if large(len(call.body)) else self._small

    def make_more(self) -> None:
        """Make calls that wait, as far as there is room."""
        control = self.control
        if control is None or not self._open:
            return
        for waiting in (self._large, self._small):
            while waiting and control.has_room(call := next(iter(waiting))):
                waiting.popitem(last=False)
                control.ask(call)

    def withdraw(self, call: OutgoingCall) -> None:
        """The caller no longer waits for the answer."""
        self._line(call).pop(call, None)
        if (refused := self._refused.get(call.service)) is not None:
            refused.pop(call, None)
        if call.control is not None:
            call.control.cancel(call)

    def why_waits(self, call: OutgoingCall) -> tuple[State, str]:
        """Why there is no answer yet."""
        if call.control is not None:
            return (
                "unanswered",
                f"the service at {self.address} is working on the call, or the answer is in transit",
            )
        if call.refusal is not None:
            return call.refusal
        if self.control is None or not self.control.greeted:
            return "unreached", f"no process answers at {self.address}: {self._failure}"
        if not self._open:
            return "unregistered", f"{self.control.peer} does not support calls: start a newer version of it"
        text = f"{self.control.unanswered} earlier calls to services at {self.address} are not answered"
        return "unanswered", text

    def answered(self, call: OutgoingCall, body: bytes) -> None:
        """Here is the answer."""
        self._backoff.reset()
        self._episode.over()
        if not call.over:
            call.answer = body
            _end(call)

    def denied(self, call: OutgoingCall, code: str, text: str, now: float) -> None:
        """The call is refused."""
        if call.over:
            return
        if code in FOR_GOOD:
            call.error = _error(call, code, text)
            _end(call)
            return
        state: State = "unregistered" if code in ("unregistered", "elsewhere") else "unanswered"
        call.refusal = (state, f"{self.address} refused the call: {text}")
        if state == "unregistered" and self.is_member:
            self._send_back([call], now)
        else:
            self._ask_later(call, now)

    def _ask_later(self, call: OutgoingCall, now: float) -> None:
        if call.service not in self._refused:  # one for all that were refused: each would ask all again
            wait = self.core.timing.backoff_limit_s * self.core.jitter()
            self.core.timers.at(now + wait, lambda now: self.available(call.service))
        self._refused.setdefault(call.service, {})[call] = None

    def available(self, service: str) -> None:
        """The service is registered now, or it is time to ask again."""
        for call in self._refused.pop(service, ()):
            self.ask(call)

    def sent_on(self, call: OutgoingCall, port: int, now: float) -> None:
        """Another process of the node has the service."""
        if call.over:
            return
        if (address := self.elsewhere(port)) is None:
            call.refusal = (
                "unregistered",
                f"{self.address} redirected the call to port {port}, but this redirect cannot be followed",
            )
            if self.is_member:
                self._send_back([call], now)
            else:
                self._ask_later(call, now)
            return
        member = self.core.peer(address, self.node)
        if self.node in self.core.users:
            self.core.routes[self.node, call.service] = member
            member.routed.add(call.service)
        del self.calls[call]
        member.ask(call)

    def _send_back(self, calls: list[OutgoingCall], now: float) -> None:
        """Make calls where they were made first, a little later."""
        for call in calls:
            self._forget_route(call.service)

        def go_back(now: float) -> None:
            home = self.core.peer(self.node, self.node)
            for call in calls:
                if call in self.calls:  # and not over, or gone back already
                    del self.calls[call]
                    home.ask(call)
            self.idle(now)

        self.core.timers.at(now + self.core.timing.backoff_s * self.core.jitter(), go_back)

    def forget_routes(self) -> None:
        """Calls come here no more unless the node sends them on."""
        for service in list(self.routed):
            self._forget_route(service)

    def _forget_route(self, service: str) -> None:
        self.routed.discard(service)
        if self.core.routes.get((self.node, service)) is self:
            del self.core.routes[self.node, service]

    # -- the connection

    def established(self, now: float) -> None:
        self._backoff.established(now)
        assert self.control is not None
        self._open = messages.CALLS in self.control.peer_features
        self.make_more()

    def lost(self, reason: str, now: float) -> None:
        control = self.control
        super().lost(reason, now)
        self._open = False
        if self._backoff.lasted(now):
            self._episode.over()
        self._failure = reason
        self._refused.clear()
        self._large.clear()
        self._small.clear()
        for call in self.calls:
            call.control = call.reassembly = call.refusal = None
            if not self.is_member:
                self._line(call)[call] = None
        if self.is_member and self.calls:
            for call in self.calls:
                call.refusal = ("unreached", f"the connection to {self.address} failed: {reason}")
            self._send_back(list(self.calls), now)
        self.forget_routes()
        if self.calls and (failing_s := self._episode.failed(now)) is not None:
            log.warning(
                "%s: %s has not been reached for %.0f s: %s; %d calls wait; still trying",
                self.core.name, self.address, failing_s, printable(reason), len(self.calls),
            )  # fmt: skip
        if control is not None:
            control.pieces = PieceQueue()
        self.redial(now)

    def refused(self, error: HandshakeError, now: float) -> None:
        self._has_refused = True
        for call in list(self.calls):
            self.core.give_up(call, HandshakeError(f"service {call.service!r}: {error}"))


def _error(call: OutgoingCall, code: str, text: str) -> NetChannelError:
    if code == "large":
        return MessageTooLarge(text)
    if code == "closed":
        return CallFailed(f"service {call.service!r} at {call.home}: {text}")
    return CallFailed(f"service {call.service!r} at {call.home} failed: {text}", text)


class CallerControl(DialedControl):
    """The calling end of a connection."""

    role, other_role = b"client", b"receiver"
    purpose = FOR_REQUESTS
    features = frozenset((messages.ELSEWHERE,))
    up = "%s: connection with %s is up"
    core: CallerCore

    def __init__(self, peer: CallerPeer) -> None:
        super().__init__(peer, peer.address, peer.node)
        self.pieces = PieceQueue()
        self._owner = peer
        # Also abandoned calls: they take room there.
        self._unanswered: dict[int, OutgoingCall] = {}
        self._bytes = 0  # of their large bodies

    @property
    def unanswered(self) -> int:
        """How many calls there are."""
        return len(self._unanswered)

    def has_room(self, call: OutgoingCall) -> bool:
        """True if the other side has room for one more."""
        size = large(len(call.body))
        return len(self._unanswered) < CALLS_LIMIT and (not size or self._bytes + size <= BODIES_LIMIT)

    def ask(self, call: OutgoingCall) -> None:
        """Make a call."""
        body, size = call.body, len(call.body)
        call.control, call.refusal = self, None
        request = call.request = self.core.next_request()
        self._unanswered[request] = call
        self._bytes += large(size)
        if size > SMALL:
            first = partial(messages.Call, service=call.service, request=request, size=size)
            self.pieces.add(request, lambda piece: first(body=piece), body)
            self.core.touch(self)
            return
        said = encode(messages.Call(service=call.service, request=request, size=size, body=body))
        if len(self._unanswered) == 1:
            self.send_now(said)
        else:  # of many it is better that they go together
            self.send(said)

    def cancel(self, call: OutgoingCall) -> None:
        """The caller stops waiting: the answer comes all the same, or a refusal."""
        if self.pieces.drop(call.request) == 0:
            self._close(call.request)
        elif call.request in self._unanswered:
            self.say(messages.Cancel(request=call.request))

    def output(self) -> list[Buffer]:
        """Return queued messages, then some pieces of large bodies."""
        buffers = super().output()
        if self.pieces:
            buffers += self.pieces.next()
        self.more = bool(self.pieces)
        return buffers

    def told(self, message: Message, now: float) -> None:
        match message:
            case messages.Returned():
                self._returned(message)
            case messages.CallPiece():
                self._add(message)
            case messages.Deny():
                if (call := self._close(message.request)) is not None:
                    self._owner.denied(call, message.code, printable(message.message), now)
            case messages.Elsewhere():
                if (call := self._close(message.request)) is not None:
                    self._owner.sent_on(call, message.port, now)
            case messages.Available():
                self._owner.available(message.service)
            case _:
                raise ProtocolError(
                    f"{self.peer} sent {message.kind!r}, which a receiver does not send to a caller"
                )

    def _received(self, n: int, now: float) -> None:
        super()._received(n, now)
        self._owner.make_more()

    def _returned(self, message: messages.Returned) -> None:
        call = self._unanswered.get(message.request)
        if call is None:
            return  # it was not requested, or it was answered before
        if call.reassembly is not None:
            raise ProtocolError(f"{self.peer} began to answer call {message.request} twice")
        if len(message.body) == message.size:
            self._close(message.request)
            self._owner.answered(call, message.body)
        else:
            call.reassembly = Reassembly(message.size, message.body)

    def _add(self, message: messages.CallPiece) -> None:
        call = self._unanswered.get(message.request)
        if call is None:
            return
        if call.reassembly is None:
            raise ProtocolError(
                f"{self.peer} sent more bytes of an answer to call {message.request} than announced"
            )
        call.reassembly.add(message.body)
        if (body := call.reassembly.whole()) is not None:
            self._close(message.request)
            self._owner.answered(call, body)

    def _close(self, request: int) -> OutgoingCall | None:
        """Close the call of this number, which takes no room any more; None if there is none."""
        call = self._unanswered.pop(request, None)
        if call is not None:
            self._bytes -= large(len(call.body))
            self.pieces.drop(request)
            call.control = call.reassembly = None
        return call
