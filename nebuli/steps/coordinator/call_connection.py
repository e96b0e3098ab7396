"""`CallConnection`: a coordinator's way to the logs of a member, whose processes come and go."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from nebuli.steps.control_sessions import control_session
from nebuli.steps.member.calls import call_messages as ask
from nebuli.steps.member.calls.call_messages import LookedUp, LookUp, LookUpPinned, TooMuch, log_name, owner
from nebuli.steps.member.calls.pinned_rows import PIECE_BYTES
from nebuli.steps.protocol.errors import MalformedMessage
from nebuli.store.errors import SinceMismatch, StepOutOfRange, StorageError
from nebuli.store.shards.shard import Span
from netchannel import NetChannelError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from netchannel import ReceiverServer, SenderServer


_log = logging.getLogger("nebuli.steps.member")
_POLL_S = 5.0
"""How long a member waits for what an output does not have yet, before it is asked again: readers may be gone."""
_LEAVE_S = 1.0
_AHEAD = 8
"""So many pieces of a table are asked for at once."""
_Answer = TypeVar("_Answer")


class Unpinned(Exception):
    """The pin is gone: pin again."""


class TooManyPieces(Exception):
    """A table is larger than it may be; the message names it."""


class _Question:
    """A question, until it is answered."""

    __slots__ = ("_asked", "_since", "answer", "number")

    def __init__(self, number: int, asked: ask.Asked) -> None:
        loop = asyncio.get_running_loop()
        self.number = number
        self.answer: asyncio.Future[ask.Answer] = loop.create_future()
        self._asked = asked
        self._since = loop.time()

    def encoded(self) -> bytes:
        """The message that asks it now: a push that has waited for a process waits less for room."""
        asked = self._asked
        if isinstance(asked, ask.Push | ask.PushStaged):
            waited_s = asyncio.get_running_loop().time() - self._since
            asked = replace(asked, within_s=max(asked.within_s - waited_s, 0.0))
        return ask.encode_asked(self.number, asked)


class CallConnection:
    """Asks whichever process the member has; what the last one left without an answer is asked of the next one again.

    `reach` reports a session with a process, and its address; `drop` reports the end of the session.
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
        self._to_send: asyncio.Queue[_Question] | None = None
        self._session: asyncio.Task[None] | None = None
        self._left = False
        self._held: set[str] = set()

    async def aclose(self) -> None:
        """End the session, and answer what is open, and what is asked later, with `ask.CouldNot`."""
        session = self._session
        self._left = True
        self.drop()
        for question in self._questions.values():
            if not question.answer.done():
                question.answer.set_result(self._gone())
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
        """Have rows logged, or raise why they are not; waits for a process as long as there is none.

        After a cancel it has happened or not. Asked again, it happens once.
        """
        return await self._ask(ask.Push(handle, producer, sequence, within_s, rows))

    async def stage(self, handle: str, producer: str, sequence: int, rows: bytes) -> ask.Answer:
        """Have rows kept for a push that comes later. After a cancel they are kept, or not, for a while."""
        return await self._ask(ask.Stage(handle, producer, sequence, rows))

    async def push_staged(
        self, handle: str, producer: str, sequence: int, pieces: Sequence[str], within_s: float
    ) -> ask.Answer:
        """As `push`, of what is staged."""
        return await self._ask(ask.PushStaged(handle, producer, sequence, within_s, tuple(pieces)))

    async def drop_staged(self, handle: str, producer: str, pieces: Sequence[str]) -> None:
        """Have pieces forgotten. Raises StorageError."""
        _expected(ask.Noted, await self._ask(ask.DropStaged(handle, producer, tuple(pieces))))

    async def next_sequence(self, handle: str, producer: str) -> int:
        """The number that a producer sends next to an input."""
        answer = await self._ask(ask.AskNext(handle, producer))
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
        """Return the steps of an output from one on.

        None if there are none for a while, or they came from several processes.
        """
        updates: list[tuple[int, pa.RecordBatch]] = []
        upper, count, piece = 0, 1, 0
        while piece < count:
            answer = await self._ask(ask.ReadOutput(output, first, piece, _POLL_S))
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
        """Return what counts for a step, as `Remap.offsets`. Raises StepOutOfRange, StorageError."""
        answer = await self._ask(ask.AskOffsets(step))
        if isinstance(answer, ask.NoSuchStep):
            raise StepOutOfRange(f"the log of member {self._member}", step, answer.first, answer.last)
        return _expected(ask.Ranges, answer).ranges

    async def pin(self, name: str, tables: Sequence[str], step: int, within_s: float) -> int:
        """Have tables held under a name: the first step before which they are, this one or a later one.

        Raises Unpinned, StorageError.
        """
        return _still(ask.Pinned, await self._ask(ask.Pin(name, tuple(tables), step, within_s))).step

    async def pinned(
        self, name: str, step: int, table: str, columns: Sequence[str], max_bytes: int
    ) -> list[pa.RecordBatch] | None:
        """A table of a pin before a step, as a Z-set in batches; None: it is not kept.

        Raises Unpinned, StorageError, TooManyPieces.
        """

        async def piece(number: int) -> ask.Answer:
            return await self._ask(ask.ReadPinned(name, step, table, tuple(columns), number))

        first = await piece(0)
        if isinstance(first, ask.NotKept):
            return None
        found = [_still(ask.PinnedRows, first)]
        if found[0].pieces * PIECE_BYTES > max_bytes:
            raise TooManyPieces(
                f"table {table} has more bytes at member {self._member} than the limit of {max_bytes}"
            )
        for start in range(1, found[0].pieces, _AHEAD):
            numbers = range(start, min(start + _AHEAD, found[0].pieces))
            found += [_still(ask.PinnedRows, each) for each in await asyncio.gather(*map(piece, numbers))]
        return [batch for each in found if each.rows for batch in pa.ipc.open_stream(each.rows)]

    async def look_up(self, view: str, keys: bytes, name: str, step: int, within_s: float) -> LookedUp:
        """Return the rows of keys of a view, before this step or a later one.

        With a name they are held from there, as by `pin`.

        Raises Unpinned, StorageError, TooManyPieces.
        """
        return self._looked_up(view, await self._ask(LookUp(view, keys, name, step, within_s)))

    async def look_up_pinned(self, view: str, keys: bytes, name: str, step: int) -> LookedUp:
        """The same before a step, of a view that is held. Raises as `look_up`."""
        return self._looked_up(view, await self._ask(LookUpPinned(view, keys, name, step)))

    def _looked_up(self, view: str, answer: ask.Answer) -> LookedUp:
        if isinstance(answer, TooMuch):
            raise TooManyPieces(
                f"these keys have {answer.size} bytes of rows in view {view} at member {self._member}, and "
                f"the limit of one read is {answer.most}"
            )
        return _still(LookedUp, answer)

    async def unpin(self, name: str) -> None:
        """Let it go."""
        _expected(ask.Noted, await self._ask(ask.Unpin(name)))

    async def hold(self, handle: str) -> None:
        """Have no more rows taken for an input, by this process of the member and by those after it."""
        self._held.add(handle)
        _expected(ask.Noted, await self._ask(ask.Hold(handle)))

    @property
    def held(self) -> frozenset[str]:
        """The inputs for which no rows are taken."""
        return frozenset(self._held)

    def hold_from_the_first(self, handles: frozenset[str]) -> None:
        """Have no rows taken for inputs by any process of the member. It is not reached yet."""
        self._held |= handles

    async def let_go(self, handle: str) -> None:
        """Have rows taken for an input again."""
        self._held.discard(handle)
        _expected(ask.Noted, await self._ask(ask.LetGo(handle)))

    async def figures(self) -> dict[str, Any]:
        """How the member is. Raises StorageError."""
        found: dict[str, Any] = json.loads(_expected(ask.Figures, await self._ask(ask.AskFigures())).json)
        return found

    async def profile(self, kind: str, for_s: float) -> bytes:
        """Its process, as it is for so long: its ``heap`` or its ``calls``. Raises StorageError."""
        return _expected(ask.Profile, await self._ask(ask.AskProfile(kind, for_s))).data

    async def publish(self) -> None:
        """Have the sinks have their results when the member is stopped next."""
        _expected(ask.Noted, await self._ask(ask.Publish()))

    async def give_ahead(self, layout: bytes, addresses: tuple[str, ...]) -> None:
        """Have the member give its immutable state to the members of a layout, while steps continue.

        Raises StorageError.

        They have it durably then. `hand_over`, to the same, is brief after it; without it, that gives all.
        """
        _expected(ask.Noted, await self._ask(ask.GiveAhead(layout, addresses)))

    async def hand_over(self, layout: bytes, addresses: tuple[str, ...]) -> int:
        """Have the member, which is paused, give all it has to those of a layout; the next step. Raises StorageError.

        Nothing is logged after it until `take_back`.
        """
        return _expected(ask.HandedOver, await self._ask(ask.HandOver(layout, addresses))).step

    async def take_back(self) -> None:
        """Have the member continue with the state that it has handed over."""
        _expected(ask.Noted, await self._ask(ask.TakeBack()))

    def _gone(self) -> ask.CouldNot:
        return ask.CouldNot(f"the connection to member {self._member} is closed: ask again")

    async def _ask(self, asked: ask.Asked) -> ask.Answer:
        if self._left:
            return self._gone()
        question = self._question(asked)
        self._questions[question.number] = question
        if self._to_send is not None:
            self._to_send.put_nowait(question)
        try:
            return await question.answer
        finally:
            del self._questions[question.number]

    def _question(self, asked: ask.Asked) -> _Question:
        self._number += 1
        return _Question(self._number, asked)

    # -- one session

    async def _talk(self, session: str, address: str, before: asyncio.Task[None] | None) -> None:
        """One session, to its end."""
        if before is not None:
            await asyncio.wait([before])
        self._to_send = asyncio.Queue()
        # Holds come before rows that wait already, and their answers are not waited for.
        holds = [self._question(ask.Hold(handle)) for handle in sorted(self._held)]
        for question in (*holds, *self._questions.values()):
            self._to_send.put_nowait(question)
        sender = f"member {self._member} at {address}"
        try:
            async with control_session(
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
            _log.info("%s gets no more requests: %s", sender, error)

    async def _next(self, to_send: asyncio.Queue[_Question]) -> bytes:
        """The next question that is not answered, or given up, before it is sent."""
        while (question := await to_send.get()).answer.done():
            pass
        return question.encoded()

    def _heard(self, sender: str, data: bytes) -> None:
        """An answer. An unreadable one is reported to the caller, if it names its question."""
        try:
            number, answer = ask.read_answer(data, sender)
        except MalformedMessage as error:
            _log.warning("an answer is ignored: %s", error)
            return
        if isinstance(answer, MalformedMessage):
            answer = ask.CouldNot(str(answer))
        question = self._questions.get(number)
        if question is not None and not question.answer.done():
            question.answer.set_result(answer)


def _still(kind: type[_Answer], answer: ask.Answer) -> _Answer:
    """As `_expected`, of what is pinned. Raises Unpinned, too."""
    if isinstance(answer, ask.NotPinned):
        raise Unpinned("the member has begun a new epoch since, or no longer holds the pinned rows")
    return _expected(kind, answer)


def _expected(kind: type[_Answer], answer: ask.Answer) -> _Answer:
    """The answer, of this kind. Raises StorageError where the member could not do it."""
    if isinstance(answer, ask.CouldNot):
        raise StorageError(answer.why)
    if not isinstance(answer, kind):
        raise StorageError(f"the member answered {answer}, which does not match the request")
    return answer


class CallRoutes:
    """Lead to the members that there are, none at first."""

    def __init__(self, lines: Sequence[CallConnection] = ()) -> None:
        self._lines = tuple(lines)
        self._inside = 0
        self._open, self._left = asyncio.Event(), asyncio.Event()
        self._open.set()
        self.closed = False
        """True if pushes are refused, as the circuit is shut down."""
        self.seen = 0
        """A client has seen the results of all steps below this one: later answers include them."""

    def has_seen(self, step: int) -> None:
        """A client has seen the results of all steps below this one."""
        self.seen = max(self.seen, step)

    def __iter__(self) -> Iterator[CallConnection]:
        return iter(self._lines)

    def __getitem__(self, member: int) -> CallConnection:
        return self._lines[member]

    def lead(self, lines: Sequence[CallConnection]) -> None:
        """Lead to these members from now on; `held`, if there were others.

        Inputs that were held there are held here.
        """
        for line in lines:
            line.hold_from_the_first(frozenset().union(*(each.held for each in self._lines)))
        self._lines = tuple(lines)

    @asynccontextmanager
    async def to(self, handle: str, producer: str, within_s: float) -> AsyncIterator[CallConnection]:
        """The way to the member that has all of a producer's rows for an input, as long as the context is.

        Raises TimeoutError where they are held for so long.
        """
        if not self._open.is_set():
            async with asyncio.timeout(within_s):
                await self._open.wait()
        self._inside += 1
        try:
            yield self._lines[owner(log_name(handle, producer), len(self._lines))]
        finally:
            self._inside -= 1
            self._left.set()

    @asynccontextmanager
    async def held(self, within_s: float) -> AsyncIterator[None]:
        """No call is on its way to a member within the context. Raises TimeoutError: one was for too long."""
        self._open.clear()
        try:
            async with asyncio.timeout(within_s):
                await self._empty()
            yield
        finally:
            self._open.set()

    def close(self) -> None:
        """Have pushes refused from now on."""
        self.closed = True

    async def emptied(self, within_s: float) -> None:
        """Wait until no call is on its way to a member, for so long at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._empty()

    async def _empty(self) -> None:
        while self._inside:
            self._left.clear()
            await self._left.wait()
