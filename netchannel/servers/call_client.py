"""`Caller` asks services of receivers, each question with a deadline."""

from __future__ import annotations

import math
import secrets
from typing import TYPE_CHECKING, Self

from netchannel.core.calls.caller_core import CallerCore
from netchannel.errors import ChannelClosed, MessageTooLarge, NetChannelError
from netchannel.values import check_channel_id, check_given
from netchannel.wire.messages import CALL_LIMIT

from .client import ClientConnections
from .identity import node_name, shown, wall_us
from .waiter import Waiter, check_loop

if TYPE_CHECKING:
    from types import TracebackType

    from netchannel.core.calls.caller_core import OutgoingCall
    from netchannel.policies import Timing
    from netchannel.tls import Tls
    from netchannel.transports.runner import Runner


class CallClient(ClientConnections[CallerCore]):
    """The connections on which a process calls."""

    def _make_core(self) -> CallerCore:
        return CallerCore(node_name("caller"), self._timing, wall_us, secrets.token_bytes, self._secret)

    def _leave(self, now: float) -> None:
        for peer in list(self.core.peers.values()):
            for call in list(peer.calls):
                self.core.give_up(call, _closed(call.home))


class Caller:
    """The client of a node's services; an async context manager.

    ``address`` is that of a `ReceiverServer`, which may start later. The caller also finds the services of other
    processes of the node. ``secret`` and ``tls`` must match the server's. All calls share a connection, which is
    restored when it is lost.
    """

    def __init__(
        self,
        address: str,
        *,
        secret: str | None = None,
        tls: Tls | None = None,
        timing: Timing | None = None,
    ) -> None:
        self._client = CallClient(secret=secret, tls=tls, timing=timing)
        self._own_client = True
        self.address = address
        self._calls: dict[OutgoingCall, None] = {}
        self._runner: Runner | None = None
        self._closed = False

    @classmethod
    def from_client(cls, client: CallClient, address: str) -> Caller:
        """One that calls by the connections of ``client``, which it does not close."""
        caller = cls(address)
        caller._client, caller._own_client = client, False
        return caller

    def __repr__(self) -> str:
        state = "closed" if self._closed else "not entered" if self._runner is None else "calling"
        return shown(self, repr(self.address), state)

    async def __aenter__(self) -> Self:
        if self._runner is not None or self._closed:
            raise NetChannelError(f"this caller of {self.address} was already entered: make a new one")
        self._client.check_address(self.address)
        if self._own_client:
            await self._client.__aenter__()
        self._runner = self._client.running()
        self._client.core.enter(self.address)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the caller: waiting calls raise `ChannelClosed`."""
        runner, self._runner = self._runner, None
        self._closed = True
        if runner is None or self._client.runner is None:
            return
        check_loop(runner.loop)
        core = self._client.core
        for call in list(self._calls):
            core.give_up(call, _closed(self.address))
        core.leave(self.address, runner.clock())
        if self._own_client:
            await self._client.__aexit__(None, None, None)

    async def call(self, service_id: str, body: bytes, *, deadline_s: float) -> bytes:
        """Return the answer of a service to ``body``, at most 64 MiB each, within ``deadline_s`` seconds.

        A call whose connection is lost is sent again, so that the service **may execute it twice**. A call to a
        service that is not registered yet waits for the service. A cancelled call may have been executed.

        Raises:
            CallFailed: the service raised an error, which is ``said``, or was closed meanwhile.
            CallTimedOut: there was no answer in time; ``state`` is the reason. The call may have been executed.
            MessageTooLarge: the body, or the answer, has more than 64 MiB.
            HandshakeError: the other side has a different secret, no TLS, or another version.
            ChannelClosed: the caller was closed.
        """
        runner = self._runner
        if runner is None:
            raise self._not_open()
        check_loop(runner.loop)
        check_channel_id(service_id)
        check_given("body", body, bytes)
        if len(body) > CALL_LIMIT:
            raise MessageTooLarge(
                f"the body of a call of service {service_id!r} at {self.address} has {len(body)} bytes: the limit is "
                f"{CALL_LIMIT}"
            )
        if not 0 < deadline_s < math.inf:
            raise ValueError(f"deadline_s is {deadline_s}: expected seconds, more than 0")
        core, waiter = self._client.core, Waiter(runner.loop)

        def done(call: OutgoingCall) -> None:
            if not waiter.done():
                waiter.end(core.visit)

        call = core.call(self.address, service_id, body, deadline_s=deadline_s, done=done, now=runner.clock())
        self._calls[call] = None
        try:
            await waiter
        finally:
            del self._calls[call]
            if not call.over:  # it is cancelled here
                core.give_up(call, _closed(self.address))
        if call.error is not None:
            raise call.error
        return call.answer

    def _not_open(self) -> NetChannelError:
        if self._closed:
            return _closed(self.address)
        return ChannelClosed(f"this caller of {self.address} is not entered: use 'async with'")


def _closed(address: str) -> ChannelClosed:
    return ChannelClosed(f"the caller of {address} was closed by this side")
