"""`CallLine`: a coordinator's way to the logs of a member, whose processes come and go."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from nebuli.coordinator.errors import MalformedMessage
from nebuli.coordinator.lines.talking import talking
from nebuli.members.calls import call_messages as ask
from nebuli.storage.errors import SinceMismatch, StepOutOfRange, StorageError
from nebuli.storage.shards.shard import Span
from netchannel import NetChannelError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import TracebackType
    from typing import Self

    from netchannel import ReceiverServer, SenderServer

_log = logging.getLogger("nebuli.members")
_POLL_S = 5.0
"""How long a member waits for what an output does not have yet, before it is asked again: readers may be gone."""
_LEAVE_S = 1.0
_Answer = TypeVar("_Answer")


class _Question:
    """What is asked, until it is answered; ``made`` says it as it is at the time when it is sent."""

    __slots__ = ("answer", "made")

    def __init__(self, made: Callable[[], ask.Asked]) -> None:
        self.made = made
        self.answer: asyncio.Future[ask.Answer] = asyncio.get_running_loop().create_future()


class CallLine:
    """Asks whichever process the member has; what the last one left without an answer is asked of the next one again.

    `reach` says that there is a session with a process, and where that is; `drop` that the session is over.
    """

    def __init__(
        self,
        circuit: str,
        member: int,
        sender: SenderServer,
        receiver: ReceiverServer,
    ) -> None:
        self._circuit = circuit
        self._member = member
        self._sender = sender
        self._receiver = receiver
        self._questions: dict[int, _Question] = {}
        self._number = 0
        self._to_send: asyncio.Queue[int] | None = None
        self._session: asyncio.Task[None] | None = None
        self._left = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session = self._session
        self._left = True
        self.drop()
        if session is not None:
            await asyncio.wait([session])

    def reach(self, session: str, address: str) -> None:
        """A process of the member listens there, under this session."""
        before = self._session
        self.drop()
        self._session = asyncio.create_task(self._talk(session, address, before))

    def drop(self) -> None:
        """The session is over."""
        if self._session is not None:
            self._session.cancel()
            self._session = None
        self._to_send = None

    # -- what is asked

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
        return _expected(ask.Next, answer).sequence

    async def follow(self, output: str, first: int, schema: pa.Schema) -> AsyncIterator[Span]:
        """An output from a step on, as `OutputLog.follow`. Raises SinceMismatch, StorageError."""
        at = first
        while True:
            span = await self._span(output, at, schema)
            if span is not None:
                yield span
                at = span.upper

    async def _span(self, output: str, first: int, schema: pa.Schema) -> Span | None:
        """What an output has from a step on; None if that is nothing for a while, or was not all of one process'."""
        updates: list[tuple[int, pa.RecordBatch]] = []
        upper, count, piece = 0, 1, 0
        while piece < count:
            answer = await self._ask(partial(ask.ReadOutput, output, first, piece, _POLL_S))
            match answer:
                case ask.NothingYet():
                    return None
                case ask.Forgotten(since):
                    raise SinceMismatch(f"output {output}", first, since)
            found = _expected(ask.Piece, answer)
            if piece and (found.upper, found.pieces) != (upper, count):
                return None  # another process has other pieces
            upper, count = found.upper, found.pieces
            updates += [
                (step, pa.ipc.read_record_batch(pa.py_buffer(rows), schema)) for step, rows in found.updates
            ]
            piece += 1
        return Span(first, upper, updates)

    async def offsets(self, step: int) -> dict[str, tuple[int, int]]:
        """What counts for a step, as `Remap.offsets`. Raises StepOutOfRange, StorageError."""
        answer = await self._ask(lambda: ask.AskOffsets(step))
        if isinstance(answer, ask.NoSuchStep):
            raise StepOutOfRange(f"the log of member {self._member}", step, answer.first, answer.last)
        return _expected(ask.Ranges, answer).ranges

    async def publish(self) -> None:
        """Have the sinks have their results when the member is stopped next."""
        _expected(ask.Noted, await self._ask(ask.Publish))

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

    # -- one session

    async def _talk(self, session: str, address: str, before: asyncio.Task[None] | None) -> None:
        """One session, to its end."""
        if before is not None:
            await asyncio.wait([before])
        self._to_send = asyncio.Queue()
        for number in self._questions:
            self._to_send.put_nowait(number)
        sender = f"member {self._member} at {address}"
        try:
            async with talking(
                self._sender,
                self._receiver,
                hears=ask.answers(self._circuit, self._member, session),
                says=ask.calls(self._circuit, self._member, session),
                to=address,
                who="the coordinator",
            ) as found:
                try:
                    await found.talk(partial(self._next, self._to_send), partial(self._heard, sender))
                finally:
                    found.leave_s = _LEAVE_S if self._left else 0.0
        except NetChannelError as error:
            _log.info("%s is asked nothing any more: %s", sender, error)

    async def _next(self, to_send: asyncio.Queue[int]) -> bytes:
        """The next question that somebody still waits for."""
        while True:
            number = await to_send.get()
            question = self._questions.get(number)
            if question is not None:
                return ask.encode_asked(number, question.made())

    def _heard(self, sender: str, data: bytes) -> None:
        """An answer. One that cannot be read is told to whoever asked, if it says to what it is one."""
        try:
            number, answer = ask.read_answer(data, sender)
        except MalformedMessage as error:
            _log.warning("what it answers is not known: %s", error)
            return
        if isinstance(answer, MalformedMessage):
            answer = ask.CouldNot(str(answer))
        question = self._questions.get(number)
        if question is not None and not question.answer.done():
            question.answer.set_result(answer)


def _expected(kind: type[_Answer], answer: ask.Answer) -> _Answer:
    """The answer, of this kind. Raises StorageError where the member could not do it."""
    if isinstance(answer, ask.CouldNot):
        raise StorageError(answer.why)
    if not isinstance(answer, kind):
        raise StorageError(f"the member answered {answer}, which is none to what it was asked")
    return answer
