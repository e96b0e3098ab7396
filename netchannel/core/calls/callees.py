"""The services of a process, and the calls that a client's connection brings them.

Each call is answered once, be it refused, or cancelled by its client: so both sides count the same calls as not
answered, and the client knows how many more it may ask.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING

from netchannel.core.waitlist import Waitlist
from netchannel.errors import ProtocolError
from netchannel.log_texts import encodable
from netchannel.wire import messages
from netchannel.wire.envelope import encode

from .bodies import SMALL, PieceQueue, Reassembly, large

if TYPE_CHECKING:
    from collections.abc import Callable

    from netchannel.core.control_connection import ControlLink
    from netchannel.wire.declarations import Message

CALLS_LIMIT = 1024
"""The most calls of one connection that are not answered."""
BODIES_LIMIT = messages.CALL_LIMIT
"""The most bytes of their bodies, together: of those that are large, so that these keep out none that are small."""
UNSENT_LIMIT = 4 * messages.CALL_LIMIT
"""The most bytes of answers that wait to be sent while another call is begun."""


class Callee:
    """A service of this process. ``begin`` has it work on a call: which is answered then, or later, or refused.

    ``on_taken`` is called when it turns out that another process of the node has it.
    """

    def __init__(self, service_id: str, begin: Callable[[IncomingCall], None]) -> None:
        self.id = service_id
        self.begin = begin
        self.on_taken: Callable[[str], None] = lambda message: None
        self.calls: dict[IncomingCall, None] = {}
        """Those that it has not answered, and that wait for their turn."""


class Callees:
    """The services of this process by id, and the clients that want one that is not registered.

    ``member`` gives the port of the process of this node that has a service.
    """

    def __init__(self) -> None:
        self.registered: dict[str, Callee] = {}
        self.member_port: Callable[[str], int | None] = lambda service_id: None
        self.waitlist = Waitlist(lambda service_id: messages.Available(service=service_id))


class IncomingCall:
    """One call, from when its first piece is there until it is answered. ``stop`` ends the work on it early."""

    __slots__ = (
        "_calls",
        "body",
        "callee",
        "over",
        "reassembly",
        "request",
        "size",
        "stop",
        "stopped_by",
        "working",
    )

    def __init__(self, calls: IncomingCalls, callee: Callee, request: int, size: int) -> None:
        self._calls = calls
        self.callee = callee
        self.request = request
        self.size = size
        self.reassembly: Reassembly | None = None
        self.body = b""
        self.working = False
        self.over = False
        self.stop: Callable[[], object] = lambda: None
        self.stopped_by: tuple[str, str] | None = None

    def answer(self, body: bytes) -> None:
        """Give its answer."""
        if len(body) > messages.CALL_LIMIT:
            text = f"the answer of service {self.callee.id!r} has {len(body)} bytes: the limit is {messages.CALL_LIMIT}"
            self.refuse("large", text)
        elif not self.over:
            self._calls.answer(self, body)

    def refuse(self, code: str, text: str) -> None:
        """Answer with the reason why there is no answer."""
        if not self.over:
            self._calls.refuse(self, code, text)

    def cancel(self, code: str, text: str) -> None:
        """Have it refused: at once, or where it is worked on, once that has stopped."""
        if not self.working:
            self.refuse(code, text)
        elif self.stopped_by is None:
            self.stopped_by = (code, text)
            self.stop()


class IncomingCalls:
    """The calls of one connection."""

    def __init__(self, link: ControlLink, callees: Callees) -> None:
        self._link = link
        self._callees = callees
        self.waiting: set[str] = set()
        self.pieces = PieceQueue()
        self.collecting = False
        """True while answers are written together at once by the caller that has this taken."""
        self._unanswered: dict[int, IncomingCall] = {}
        self._bytes = 0  # of their large bodies
        self._turns: OrderedDict[IncomingCall, None] = OrderedDict()

    @property
    def unanswered(self) -> int:
        """How many calls there are."""
        return len(self._unanswered)

    @property
    def has_turns(self) -> bool:
        """True if a waiting call can begin."""
        return bool(self._turns) and self.pieces.bytes <= UNSENT_LIMIT

    def say(self, message: Message) -> None:
        """Send one message."""
        self._link.say(message)

    def told(self, message: messages.Call | messages.CallPiece | messages.Cancel) -> None:
        """The client calls, or sends more of a call that it has made. Raises ProtocolError."""
        match message:
            case messages.Call():
                self._asked(message)
            case messages.CallPiece():
                self._add(message)
            case messages.Cancel():
                call = self._unanswered.get(message.request)
                if call is not None:  # else the answer is on its way
                    call.cancel("cancelled", "the client no longer needs the answer")

    def _asked(self, message: messages.Call) -> None:
        request, size = message.request, message.size
        if request in self._unanswered:
            raise ProtocolError(
                f"{self._link.peer} sent a new call with the number {request} of an unanswered call"
            )
        callee = self._callees.registered.get(message.service)
        if callee is None:
            self._absent(message)
            return
        count = len(self._unanswered)
        if count >= CALLS_LIMIT or self._bytes + large(size) > BODIES_LIMIT:
            text = (
                f"{self._link.peer} has {count} unanswered calls, with {self._bytes} bytes of large bodies, and sent "
                f"another call of {size} bytes: the limits are {CALLS_LIMIT} calls and {BODIES_LIMIT} bytes"
            )
            self._deny(message.service, request, "busy", text)
            return
        call = self._unanswered[request] = IncomingCall(self, callee, request, size)
        callee.calls[call] = None
        self._bytes += large(size)
        if len(message.body) == size:
            call.body = message.body
            self._complete(call)
        else:
            call.reassembly = Reassembly(size, message.body)

    def _add(self, message: messages.CallPiece) -> None:
        call = self._unanswered.get(message.request)
        if call is None:
            return  # it was refused before all of it had come
        if call.reassembly is None:
            raise ProtocolError(
                f"{self._link.peer} sent more bytes for call {message.request} than the announced {call.size}"
            )
        call.reassembly.add(message.body)
        body = call.reassembly.whole()
        if body is not None:
            call.reassembly, call.body = None, body
            self._complete(call)

    def _complete(self, call: IncomingCall) -> None:
        self._turns[call] = None
        self.take_turns()

    def take_turns(self) -> None:
        """Begin what can be begun."""
        turns = self._turns
        while turns and self.pieces.bytes <= UNSENT_LIMIT:
            call, _ = turns.popitem(last=False)
            call.working = True
            call.callee.begin(call)

    def _absent(self, message: messages.Call) -> None:
        service_id, request = message.service, message.request
        if (port := self._callees.member_port(service_id)) is None:
            text = f"service {service_id!r} is not registered there with register_service(...)"
            self._deny(service_id, request, "unregistered", text)
        elif messages.ELSEWHERE in self._link.peer_features:
            self.say(messages.Elsewhere(channel=service_id, request=request, port=port))
        else:
            self._deny(service_id, request, "elsewhere", at_port(f"service {service_id!r}", port))

    def _deny(self, service_id: str, request: int, code: str, text: str) -> None:
        if code == "unregistered":
            self._callees.waitlist.wait(self, service_id)
        message = encodable(text[:1000])
        self._tell(messages.Deny(channel=service_id, request=request, code=code, message=message))

    def answer(self, call: IncomingCall, body: bytes) -> None:
        """Send the answer to ``call``; a large one in pieces."""
        first = partial(messages.Returned, request=call.request, size=len(body))
        if len(body) <= SMALL:
            self._end(call)
            self._tell(first(body=body))
            return
        call.working = False
        call.body = b""
        call.callee.calls.pop(call, None)
        self.pieces.add(call.request, lambda piece: first(body=piece), body, lambda: self._end(call))
        self._link.core.touch(self._link)

    def refuse(self, call: IncomingCall, code: str, text: str) -> None:
        """Answer that there is no answer to ``call``, or no more of it."""
        self._end(call)
        self.pieces.drop(call.request)
        self._deny(call.callee.id, call.request, code, text)

    def _tell(self, message: Message) -> None:
        """Send it: with others that are being collected, or at once, if it is the last that is waited for."""
        if self.collecting:
            self._link.send_later(encode(message))
        elif self._unanswered:
            self._link.say(message)
        else:
            self._link.send_now(encode(message))

    def _end(self, call: IncomingCall) -> None:
        call.over = True
        call.callee.calls.pop(call, None)
        self._turns.pop(call, None)
        if self._unanswered.pop(call.request, None) is not None:
            self._bytes -= large(call.size)

    def lost(self) -> None:
        """The connection is lost: no client waits for an answer, and each client repeats its call."""
        self._callees.waitlist.leave(self)
        calls, self._unanswered = self._unanswered, {}
        self.pieces = PieceQueue()
        self._turns.clear()
        for call in calls.values():
            self._end(call)
            call.stop()


def at_port(what: str, port: int) -> str:
    """Return the answer for a client that does not go to another process of the node automatically."""
    return f"{what} is in another process of this node: call port {port}"
