"""`CoordinatorConnections`: a member's connections to the coordinators that greet it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from nebuli.steps import control_sessions as channels
from nebuli.steps.control_sessions import control_session
from nebuli.steps.protocol.errors import MalformedMessage
from nebuli.steps.protocol.messages import encode, read_from_coordinator
from netchannel import BufferPolicy, EndOfChannel, FaultPolicy, NetChannelError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nebuli.steps.protocol.messages import FromCoordinator, FromMember
    from netchannel import ReceiverServer, SenderServer

    Told = Callable[[FromCoordinator, "CoordinatorConnection"], None]
    Serve = Callable[[str, str], Awaitable[None]]

_log = logging.getLogger("nebuli.steps.member")
_AWAY_S = 5.0
"""A coordinator that has been without a connection for so long is left; one that comes back greets again."""
_GRACE_S = 2.5
"""How long questions of a session are answered after its end; or a session lasts after the end of its questions."""
_BUFFER = BufferPolicy(max_bytes=1 << 22)


class CoordinatorConnection:
    """One session with one coordinator."""

    def __init__(self, greeting: channels.Greeting) -> None:
        self.address = greeting.address
        self.session = greeting.session
        self._said: asyncio.Queue[bytes] = asyncio.Queue()
        self._said.put_nowait(b"")  # it is there

    def say(self, message: FromMember) -> None:
        """Send a message; it is dropped if the session is over."""
        self._said.put_nowait(encode(message))

    async def run(
        self, circuit: str, member: int, sender: SenderServer, receiver: ReceiverServer, told: Told
    ) -> None:
        """Receive and send, until the coordinator is gone."""

        def heard(data: bytes) -> None:
            told(read_from_coordinator(data, self.address), self)

        try:
            async with control_session(
                sender,
                receiver,
                hears=channels.to_member(circuit, member, self.session),
                says=channels.to_coordinator(circuit, member, self.session),
                to=self.address,
                who="the member",
                buffer=_BUFFER,
                fault=FaultPolicy(retry=_AWAY_S),
            ) as session:
                await session.talk(self._said.get, heard)
        except NetChannelError:
            return
        except MalformedMessage as error:  # the coordinator that is followed has another session
            _log.warning(
                "the coordinator sent a message that this version does not know, and its connection is "
                "closed: %s",
                error,
            )


class CoordinatorConnections:
    """Receives greetings, and then the coordinator's messages, which go to ``told``.

    Several may be connected at once: the member's side of the protocol decides which one it follows. ``serve`` is
    called for each, with its session and its address, and answers its questions.
    """

    def __init__(
        self,
        circuit: str,
        member: int,
        sender: SenderServer,
        receiver: ReceiverServer,
        told: Told,
        *,
        serve: Serve,
    ) -> None:
        self._circuit = circuit
        self._member = member
        self._sender = sender
        self._receiver = receiver
        self._told = told
        self._serve = serve
        self._lines: dict[CoordinatorConnection, asyncio.Task[None]] = {}
        self._greeted = asyncio.Event()

    def say_to_all(self, message: FromMember) -> None:
        """Send a message to every coordinator that is connected."""
        for line in self._lines:
            line.say(message)

    async def left(self) -> None:
        """Wait until all that were connected have left, and have received their answers."""
        if self._lines:
            await asyncio.wait([*self._lines.values()])

    async def deserted(self, for_s: float) -> None:
        """Wait until no coordinator has been connected for so long."""
        while True:
            await self.left()
            self._greeted.clear()
            try:
                async with asyncio.timeout(for_s):
                    await self._greeted.wait()
            except TimeoutError:
                return

    async def run(self) -> None:
        """Receive, until it is cancelled. Raises what ``told`` raises."""
        failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        greeting = asyncio.create_task(self._hear_greetings(failure))
        try:
            await asyncio.wait([greeting, failure], return_when=asyncio.FIRST_COMPLETED)
            (failure if failure.done() else greeting).result()
        finally:
            tasks = [greeting, *self._lines.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            failure.cancel()

    async def _hear_greetings(self, failure: asyncio.Future[None]) -> None:
        while True:
            inbox = self._receiver.register_channel(
                channels.greetings(self._circuit, self._member), codec="bytes"
            )
            try:
                data = bytes(await inbox.recv())
                with suppress(EndOfChannel):
                    await inbox.recv()
                self._begin(channels.read_greeting(data, "a coordinator"), failure)
            except (NetChannelError, MalformedMessage) as error:
                _log.warning("a greeting was not understood: %s", error)
            finally:
                await inbox.close("the next greeting is received under a new registration")

    def _begin(self, greeting: channels.Greeting, failure: asyncio.Future[None]) -> None:
        self._greeted.set()
        line = CoordinatorConnection(greeting)
        task = asyncio.create_task(self._session(line))
        self._lines[line] = task

        def ended(task: asyncio.Task[None]) -> None:
            self._lines.pop(line, None)
            if not task.cancelled() and (error := task.exception()) is not None and not failure.done():
                failure.set_exception(error)

        task.add_done_callback(ended)

    async def _session(self, line: CoordinatorConnection) -> None:
        """Messages and questions end together: the coordinator greets again, and opens both again."""
        both = [
            asyncio.ensure_future(self._serve(line.session, line.address)),
            asyncio.ensure_future(
                line.run(self._circuit, self._member, self._sender, self._receiver, self._told)
            ),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait(both, return_when=asyncio.FIRST_EXCEPTION, timeout=_GRACE_S)
        finally:
            for each in both:
                each.cancel()
            outcomes = await asyncio.gather(*both, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
