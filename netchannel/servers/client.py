"""What a process asks receivers: one `Client` holds the connections of all that ask on an event loop."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Self

from netchannel.core.questions import ClientCore
from netchannel.errors import NetChannelError
from netchannel.policies import FaultPolicy, Timing
from netchannel.tls import Credentials, Tls
from netchannel.transports import schemes
from netchannel.transports.runner import Runner
from netchannel.transports.secured import TlsDialer
from netchannel.values import check_channel_id, check_kind

from .identity import encoded, node_name, wall_us
from .waiting import check_loop

if TYPE_CHECKING:
    import asyncio
    from types import TracebackType

    from netchannel.core.questions import ClientChannel
    from netchannel.wire.messages import Answer, Question


class Client:
    """The connections on which a process asks; an async context manager."""

    def __init__(
        self, *, secret: str | None = None, tls: Tls | None = None, timing: Timing | None = None
    ) -> None:
        check_kind("secret", secret, str)
        check_kind("tls", tls, Tls)
        check_kind("timing", timing, Timing)
        self._secret = secret
        self._dialer = None if tls is None else TlsDialer(Credentials(tls, "sender"))
        self._timing = timing or Timing()
        self.core: ClientCore
        self.runner: Runner | None = None

    async def __aenter__(self) -> Self:
        self.core = ClientCore(
            node_name("client"), self._timing, wall_us, secrets.token_bytes, encoded(self._secret)
        )
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
        for peer in list(self.core.peers.values()):
            for channel in list(peer.channels):
                channel.close(runner.clock())
        await runner.stop()

    def register(self, channel_id: str, to: str, fault: FaultPolicy | None) -> ClientChannel:
        """Begin to ask for a channel. Raises NetChannelError, ValueError for what cannot be one, or be dialed."""
        runner = self.running()
        check_loop(runner.loop)
        check_kind("to", to, str)
        check_kind("fault", fault, FaultPolicy)
        (self._dialer or schemes).check(to)
        return self.core.register(check_channel_id(channel_id), to, fault or FaultPolicy(), runner.clock())

    def running(self) -> Runner:
        """The client's runner. Raises NetChannelError outside its context."""
        if self.runner is None:
            raise NetChannelError("this client is not running: use it within 'async with'")
        return self.runner

    async def ask(self, channel: ClientChannel, kind: type[Question], **fields: Any) -> Any:
        """Ask, and wait for the answer. Raises what the receiver refuses with; a cancel leaves nothing behind."""
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

    def descriptors(self) -> list[int]:
        """File descriptors of all its sockets, e.g. to close them in a forked child."""
        return [] if self.runner is None else self.runner.descriptors()
