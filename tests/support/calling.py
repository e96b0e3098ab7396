"""Callers and services in a `World`, without a face: what was asked, and what came of it."""

from __future__ import annotations

from netchannel.core.calls.callees import Callee, IncomingCall
from netchannel.core.calls.caller_core import CallerControl, CallerCore, OutgoingCall
from netchannel.core.receiving.receiver_core import ReceiverCore
from netchannel.errors import NetChannelError

from .world import End, World


class Called:
    """A service that answers with what it got, or not before it is told to."""

    def __init__(self, core: ReceiverCore, service_id: str = "s", *, silent: bool = False) -> None:
        self.core = core
        self.silent = silent
        self.got: list[bytes] = []
        self.work: list[IncomingCall] = []
        self.most = 0
        self.stopped = 0
        self.taken = ""
        self.callee = Callee(service_id, self._begin)
        self.callee.on_taken = self._taken
        core.provide(self.callee)

    def _begin(self, call: IncomingCall) -> None:
        self.got.append(call.body)
        if not self.silent:
            call.answer(call.body)
            return
        call.stop = self._stop
        self.work.append(call)
        self.most = max(self.most, len(self.work))

    def _stop(self) -> None:
        self.stopped += 1

    def _taken(self, message: str) -> None:
        self.taken = message
        self.core.withdraw(self.callee)

    def answer_all(self) -> None:
        work, self.work = self.work, []
        for call in work:
            call.answer(call.body)


class Calling:
    """Somebody who calls services at ``r:1``."""

    def __init__(self, world: World, *, secret: bytes | None = None, address: str = "r:1") -> None:
        self.world = world
        self.address = address
        self.core = CallerCore("caller", world.timing, world.wall, world.random.randbytes, secret)
        world.cores.append(self.core)
        self.core.enter(address)
        self.over: list[OutgoingCall] = []

    def call(self, body: bytes = b"x", service_id: str = "s", *, deadline_s: float = 5.0) -> OutgoingCall:
        return self.core.call(
            self.address,
            service_id,
            body,
            deadline_s=deadline_s,
            done=self.over.append,
            now=self.world.now,
        )

    def answered(self, body: bytes = b"x", service_id: str = "s", *, deadline_s: float = 5.0) -> bytes:
        """Call, and wait. Raises what the call ends with."""
        call = self.call(body, service_id, deadline_s=deadline_s)
        self.world.run(lambda: call.over)
        if call.error is not None:
            raise call.error
        return call.answer

    def error(self, body: bytes = b"x", service_id: str = "s", *, deadline_s: float = 5.0) -> NetChannelError:
        """What a call ends with."""
        try:
            answer = self.answered(body, service_id, deadline_s=deadline_s)
        except NetChannelError as error:
            return error
        raise AssertionError(f"it was answered: {answer[:100]!r}")

    def ends(self) -> list[End]:
        """Its ends of all connections."""
        return [end for end in self.world.ends if end.link.core is self.core]

    @property
    def control(self) -> CallerControl:
        """Its end of the one connection."""
        (end,) = self.ends()
        assert isinstance(end.link, CallerControl)
        return end.link

    def hears(self, *said: bytes) -> None:
        """Bytes come from the other side, as if it had said them."""
        (end,) = self.ends()
        end.inbox += b"".join(said)
        self.world.settle()
