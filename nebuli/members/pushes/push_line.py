"""`PushLine`: a coordinator's connection to the input log of a member, whose processes come and go."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from nebuli.members.pushes import push_messages as ask
from netchannel import NetChannelError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from netchannel import ReceiverChannel, ReceiverServer, SenderChannel, SenderServer

_log = logging.getLogger("nebuli.members")


class _Question:
    """What is asked, until it is answered; ``made`` says it as it is at the time when it is sent."""

    __slots__ = ("answer", "made")

    def __init__(self, made: Callable[[], ask.Asked]) -> None:
        self.made = made
        self.answer: asyncio.Future[ask.Answer] = asyncio.get_running_loop().create_future()


class PushLine:
    """Asks whichever process the member has; what the last one left without an answer is asked of the next one again.

    `reach` says that there is a process, and where; `drop` that it has ended.
    """

    def __init__(self, circuit: str, member: int, sender: SenderServer, receiver: ReceiverServer) -> None:
        self._circuit = circuit
        self._member = member
        self._sender = sender
        self._receiver = receiver
        self._questions: dict[int, _Question] = {}
        self._number = 0
        self._to_send: asyncio.Queue[int] | None = None
        self._session: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session = self._session
        self.drop()
        if session is not None:
            await asyncio.wait([session])

    def reach(self, address: str) -> None:
        """A process of the member listens there."""
        before = self._session
        self.drop()
        self._session = asyncio.create_task(self._talk(address, before))

    def drop(self) -> None:
        """The process has ended."""
        if self._session is not None:
            self._session.cancel()
            self._session = None
        self._to_send = None

    async def push(
        self, handle: str, producer: str, sequence: int, rows: bytes, within_s: float
    ) -> ask.Answer:
        """Have rows logged, or learn why they are not; waits for a process as long as there is none.

        After a cancel it has happened or not. Asked again, it happens once.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        return await self._ask(
            lambda: ask.Push(handle, producer, sequence, max(until - loop.time(), 0.0), rows)
        )

    async def next_sequence(self, handle: str, producer: str) -> int:
        """The number that a producer sends next to an input."""
        answer = await self._ask(lambda: ask.AskNext(handle, producer))
        assert isinstance(answer, ask.Next)
        return answer.sequence

    async def _ask(self, made: Callable[[], ask.Asked]) -> ask.Answer:
        number = self._number
        self._number += 1
        question = self._questions[number] = _Question(made)
        if self._to_send is not None:
            self._to_send.put_nowait(number)
        try:
            return await question.answer
        finally:
            del self._questions[number]

    async def _talk(self, address: str, before: asyncio.Task[None] | None) -> None:
        """One process, to its end."""
        if before is not None:
            await asyncio.wait([before])
        inbox = self._receiver.register_channel(
            ask.answers(self._circuit, self._member, address), codec="bytes"
        )
        outbox = self._sender.register_channel(
            ask.pushes(self._circuit, self._member, address), to=address, codec="bytes"
        )
        self._to_send = asyncio.Queue()
        for number in self._questions:
            self._to_send.put_nowait(number)
        work = [self._send_all(outbox, self._to_send), self._hear_all(inbox)]
        tasks = [asyncio.create_task(each) for each in work]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(NetChannelError):
                await outbox.close(0)
            await inbox.close("the coordinator has left")
        for outcome in outcomes:
            if isinstance(outcome, NetChannelError):
                _log.info("member %d at %s takes no pushes any more: %s", self._member, address, outcome)
            elif isinstance(outcome, Exception):
                raise outcome

    async def _send_all(self, outbox: SenderChannel, to_send: asyncio.Queue[int]) -> None:
        while True:
            number = await to_send.get()
            question = self._questions.get(number)
            if question is not None:
                await outbox.send(ask.encode_asked(number, question.made()))

    async def _hear_all(self, inbox: ReceiverChannel) -> None:
        while True:
            number, answer = ask.read_answer(bytes(await inbox.recv()))
            question = self._questions.get(number)
            if question is not None and not question.answer.done():
                question.answer.set_result(answer)
