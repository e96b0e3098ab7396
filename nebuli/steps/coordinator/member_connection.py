"""`MemberConnection`: a coordinator's connection to one member, made again as long as the coordinator lives."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from nebuli.steps import control_sessions as channels
from nebuli.steps.control_sessions import ControlSession, control_session
from nebuli.steps.protocol.errors import MalformedMessage
from nebuli.steps.protocol.events import Connected, Heard, Lost
from nebuli.steps.protocol.messages import encode, read_from_member
from netchannel import BufferPolicy, FaultPolicy, NetChannelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nebuli.steps.protocol.events import Event
    from nebuli.steps.protocol.messages import FromCoordinator
    from netchannel import ReceiverServer, SenderServer

AWAY_S = 3.0
"""A member that has been without a connection for so long is lost."""
_PAUSES_S = (0.0, 0.05, 0.2, 1.0)
_BUFFER = BufferPolicy(max_bytes=1 << 22)
_FAULT = FaultPolicy(retry=AWAY_S)


class SessionObserver(Protocol):
    """Other messages between a coordinator's process and a member during a session."""

    def reach(self, session: str, address: str) -> None:
        """There is one, with a process that listens there."""

    def drop(self) -> None:
        """It is lost."""


class MemberConnection:
    """Calls ``happen`` when the member can receive messages, for its messages, and when it is lost.

    ``address`` is where the member's receiver is reached; without one, it waits until `reach` gives it.
    ``answer_to`` is where the coordinator's is, if others reach it elsewhere than it listens. ``observer`` is notified
    of each session, and of its end unless the connection ends it.
    """

    def __init__(
        self,
        circuit: str,
        member: int,
        address: str | None,
        sender: SenderServer,
        receiver: ReceiverServer,
        *,
        answer_to: str | None = None,
        observer: SessionObserver | None = None,
    ) -> None:
        self.member = member
        self.address = address
        self._circuit = circuit
        self._sender = sender
        self._receiver = receiver
        self._answer_to = answer_to
        self._beside = observer
        self._changed = asyncio.Event()
        self._session: asyncio.Task[str] | None = None
        self._why = ""
        self._told: asyncio.Queue[bytes] | None = None

    def tell(self, message: FromCoordinator) -> None:
        """Send a message; it is dropped if the member is not connected."""
        if self._told is not None:
            self._told.put_nowait(encode(message))

    def reach(self, address: str) -> None:
        """A new process of the member listens there: greet that one."""
        self.address = address
        self.drop("another process takes its place")
        self._changed.set()

    def drop(self, why: str) -> None:
        """The member's process is known to be gone: do not wait for its connection's end."""
        if self._session is not None:
            self._why = why
            self._session.cancel()

    async def run(self, happen: Callable[[Event], None]) -> None:
        """Connect, and connect again, until it is cancelled; it may be run again then."""
        failures = 0
        self._session, self._told = None, None
        while True:
            while self.address is None:
                self._changed.clear()
                await (
                    self._changed.wait()
                )  # without a deadline: the code that starts the member reports when it is there
            self._session = asyncio.create_task(self._connect(self.address, happen))
            try:
                await asyncio.wait([self._session])
            finally:
                self._session.cancel()
                await asyncio.wait([self._session])
            why = self._why if self._session.cancelled() else self._session.result()
            connected = self._told is not None
            self._session, self._told = None, None
            if connected:
                failures = 0
                if self._beside is not None:
                    self._beside.drop()
                happen(Lost(self.member, why))
            await asyncio.sleep(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
            failures += 1

    async def _connect(self, address: str, happen: Callable[[Event], None]) -> str:
        """One session; why it is over."""
        session = secrets.token_hex(8)
        try:
            await self._greet(address, session)
            async with control_session(
                self._sender,
                self._receiver,
                hears=channels.to_coordinator(self._circuit, self.member, session),
                says=channels.to_member(self._circuit, self.member, session),
                to=address,
                who="the coordinator",
                buffer=_BUFFER,
                fault=_FAULT,
                grace_s=0,
            ) as found:
                await self._talk(session, address, found, happen)
            raise AssertionError("a session ends with an error")
        except (NetChannelError, MalformedMessage) as error:
            return str(error)
        except TimeoutError:
            return f"it was greeted at {address}, but does not answer"

    async def _greet(self, address: str, session: str) -> None:
        """Greet the member, and wait until it has received that: without a deadline, as it may come at any time."""
        hello = self._sender.register_channel(
            channels.greetings(self._circuit, self.member), to=address, codec="bytes"
        )
        try:
            answer_to = self._answer_to or self._receiver.address
            await hello.send(channels.encoded(channels.Greeting(session, answer_to)))
            await hello.close()
        finally:
            with suppress(NetChannelError):
                await hello.close(0)

    async def _talk(
        self, session: str, address: str, found: ControlSession, happen: Callable[[Event], None]
    ) -> None:
        sender = f"member {self.member} at {address}"
        async with asyncio.timeout(AWAY_S * 2):
            await found.inbox.recv()  # it is there
        self._told = asyncio.Queue()
        happen(Connected(self.member))
        if self._beside is not None:
            self._beside.reach(session, address)

        def heard(data: bytes) -> None:
            happen(Heard(self.member, read_from_member(data, sender)))

        await found.talk(self._told.get, heard)
