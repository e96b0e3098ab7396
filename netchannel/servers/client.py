"""The connections on which a process asks receivers, and calls their services: of all that do on an event loop."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from netchannel.core.client_core import ClientCore
from netchannel.core.link import Core
from netchannel.errors import NetChannelError
from netchannel.policies import FaultPolicy, Timing
from netchannel.tls import Credentials, Tls
from netchannel.transports import schemes
from netchannel.transports.runner import Runner
from netchannel.transports.tls_transport import TlsDialer
from netchannel.values import check_channel_id, check_given, check_kind

from .identity import encoded, node_name, wall_us
from .waiter import check_loop

if TYPE_CHECKING:
    import asyncio
    from types import TracebackType

    from netchannel.core.client_core import ClientChannel
    from netchannel.wire.messages import Answer, Question


AnyCore = TypeVar("AnyCore", bound=Core)


class ClientConnections(ABC, Generic[AnyCore]):
    """Connections that a core dials, with what the other sides must know, or show; an async context manager."""

    def __init__(
        self, *, secret: str | None = None, tls: Tls | None = None, timing: Timing | None = None
    ) -> None:
        check_kind("secret", secret, str)
        check_kind("tls", tls, Tls)
        check_kind("timing", timing, Timing)
        self._secret = encoded(secret)
        self._dialer = None if tls is None else TlsDialer(Credentials(tls, "sender"))
        self._timing = timing or Timing()
        self.core: AnyCore
        self.runner: Runner | None = None

    @abstractmethod
    def _make_core(self) -> AnyCore:
        """The core that dials."""

    @abstractmethod
    def _leave(self, now: float) -> None:
        """End what is still to be answered."""

    async def __aenter__(self) -> Self:
        self.core = self._make_core()
        self.runner = Runner(self.core, "cubic", (self._dialer or schemes).connect)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        runner = self.runner
        if runner is None:
            return
        check_loop(runner.loop)
        self.runner = None
        self._leave(runner.clock())
        await runner.stop()

    def check_address(self, to: str) -> None:
        """Raise TypeError or ValueError for what cannot be dialed."""
        check_given("to", to, str)
        (self._dialer or schemes).check(to)

    def running(self) -> Runner:
        """Its runner. Raises NetChannelError outside its context."""
        if self.runner is None:
            raise NetChannelError("this client is not running: use it within 'async with'")
        return self.runner

    def descriptors(self) -> list[int]:
        """File descriptors of all its sockets, e.g. to close them in a forked child."""
        return [] if self.runner is None else self.runner.descriptors()


class Client(ClientConnections[ClientCore]):
    """The connections on which a process asks."""

    def _make_core(self) -> ClientCore:
        return ClientCore(node_name("client"), self._timing, wall_us, secrets.token_bytes, self._secret)

    def _leave(self, now: float) -> None:
        for peer in list(self.core.peers.values()):
            for channel in list(peer.channels):
                channel.close(now)

    def register(self, channel_id: str, to: str, fault: FaultPolicy | None) -> ClientChannel:
        """Begin to ask for a channel. Raises NetChannelError, ValueError for what cannot be one, or be dialed."""
        runner = self.running()
        check_loop(runner.loop)
        check_kind("fault", fault, FaultPolicy)
        self.check_address(to)
        return self.core.register(check_channel_id(channel_id), to, fault or FaultPolicy(), runner.clock())

    async def ask(self, channel: ClientChannel, kind: type[Question], **fields: Any) -> Any:
        """Ask, and wait for the answer. Raises the receiver's refusal; a cancel leaves no trace."""
        runner = self.running()
        check_loop(runner.loop)
        future: asyncio.Future[Answer] = runner.loop.create_future()

        def answered(answer: Answer, now: float) -> None:
            if not future.done():
                future.set_result(answer)

        def failed(error: NetChannelError, now: float) -> None:
            if not future.done():
                future.set_exception(error)

        question = channel.ask(kind, answered, failed, runner.clock(), **fields)
        try:
            return await future
        finally:
            channel.forget(question)
