"""The member's end of calls: pushes into its input log, each answered once it is durable, and reads of its logs."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.steps.control_sessions import control_session
from nebuli.steps.member.calls import call_messages as ask
from nebuli.steps.member.calls.call_messages import LookUp, LookUpPinned
from nebuli.steps.member.calls.member_figures import inspected
from nebuli.steps.member.calls.output_pieces import OutputPieces
from nebuli.steps.member.calls.pinned_rows import pinned
from nebuli.steps.member.calls.staged_pushes import StagedPushes
from nebuli.steps.member.calls.view_keys import looked_up
from nebuli.steps.member.scaling.handover_sender import HandoverSender, NotBetweenSteps
from nebuli.steps.member.scaling.layout import Layout
from nebuli.steps.protocol.errors import MalformedMessage
from nebuli.store.errors import SequenceGap, SequenceReused, SinceMismatch, StepOutOfRange, StorageError
from netchannel import NetChannelError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from nebuli.steps.member.member import Member

_log = logging.getLogger("nebuli.steps.member")
WAITING_BYTES = 5 << 26
"""So many bytes of pushes wait for `room` at most.

More than a service lets wait, as disconnected callers count, too.
"""


class CallInbox:
    """Answers the sessions of coordinators' processes, from the logs of one member."""

    def __init__(self, member: Member, circuit: str, *, waiting_bytes: int = WAITING_BYTES) -> None:
        self._member = member
        self._circuit = circuit
        self._max_bytes = waiting_bytes
        self._waiting_bytes = 0
        self._giving = HandoverSender(member)
        self._gives_for = ""
        """The session that has begun it: another one may end late, when its successor has others take over."""
        self._staged = StagedPushes(member, self._has_room)
        self.publishes = False
        """True if the sinks are to have their results when the member is stopped."""
        self.before_handover: Callable[[int], Awaitable[None]] = _nothing
        """Called for the outputs below a step before the member hands over its state."""
        self.after_handover: Callable[[], Awaitable[None]] = _nothing
        """Called if the member is asked to continue after all."""

    async def serve(self, session: str, answers_to: str) -> None:
        """Answer to a coordinator's process at this address, until it has left, or this is cancelled."""
        member = self._member
        reading = None if member.outputs is None else OutputPieces(member.outputs)
        answers: asyncio.Queue[bytes] = asyncio.Queue()
        sender = f"the coordinator's process at {answers_to}"
        try:
            async with (
                control_session(
                    member.sender,
                    member.receiver,
                    hears=ask.calls(self._circuit, member.number, session),
                    says=ask.answers(self._circuit, member.number, session),
                    to=answers_to,
                    who="the member",
                ) as found,
                asyncio.TaskGroup() as group,
            ):

                def heard(data: bytes) -> None:
                    # Concurrently: pushes are logged together, and some wait.
                    group.create_task(self._answer(session, answers, data, sender, reading))

                await found.talk(answers.get, heard)
        except* NetChannelError as errors:
            _log.info("member %d gets no more requests: %s", member.number, errors.exceptions[0])
        finally:
            await self._take_back(session)

    async def _answer(
        self,
        session: str,
        answers: asyncio.Queue[bytes],
        data: bytes,
        sender: str,
        reading: OutputPieces | None,
    ) -> None:
        """A question that cannot be read, or fails, is answered with the error, if it has a number.

        Other questions continue.
        """
        try:
            number, asked = ask.read_asked(data, sender)
        except MalformedMessage as error:
            _log.warning("a request cannot be answered: %s", error)
            return
        try:
            answer = ask.encode_answer(number, await self._answered(session, asked, reading))
        except Exception as error:  # noqa: BLE001 - any error: all others have their answers
            _log.exception("member %d cannot answer %s", self._member.number, type(asked).__name__)
            answer = ask.encode_answer(number, ask.CouldNot(f"{type(error).__name__}: {error}"))
        answers.put_nowait(answer)

    async def _answered(  # noqa: PLR0911 - one per kind
        self, session: str, asked: ask.Asked | MalformedMessage, reading: OutputPieces | None
    ) -> ask.Answer:
        match asked:
            case ask.Push():
                return await self._log(asked)
            case ask.Stage() | ask.PushStaged() | ask.DropStaged():
                return await self._staged.answered(asked)
            case ask.AskNext(handle, producer):
                return ask.Next(self._member.log.next_sequence(ask.log_name(handle, producer)))
            case ask.ReadOutput():
                return await _piece(asked, reading)
            case ask.AskOffsets(step):
                return await self._offsets(step)
            case ask.Pin() | ask.ReadPinned() | ask.Unpin():
                return await pinned(self._member.pins, asked)
            case LookUp() | LookUpPinned():
                return await looked_up(self._member, asked)
            case ask.Hold() | ask.LetGo() | ask.AskFigures() | ask.AskProfile():
                return await inspected(self._member, asked)
            case MalformedMessage():
                return ask.CouldNot(str(asked))
            case _:
                return await self._told(session, asked)

    # -- rows in

    async def _log(self, push: ask.Push) -> ask.Answer:
        member = self._member
        log, name = member.log, ask.log_name(push.handle, push.producer)
        try:
            rows = _rows(push, log.schemas)
        except (ValueError, OSError) as error:
            return ask.CouldNot(str(error))
        if log.next_sequence(name) == push.sequence:  # what is known already needs no room
            refusal = await self._room(push)
            if refusal is not None:
                return refusal
        earliest = log.last
        is_new = log.next_sequence(name) == push.sequence
        try:
            await log.push(push.handle, rows, producer=name, sequence=push.sequence)
        except SequenceGap as error:
            return ask.Gap(error.expected)
        except SequenceReused as error:
            return ask.Reused(error.expected)
        except StorageError as error:
            return ask.CouldNot(str(error))
        if is_new and rows.num_rows:
            member.arrived(rows.num_rows)
        return ask.Logged(earliest)

    async def _room(self, push: ask.Push) -> ask.Full | ask.Crowded | None:
        """Wait with a push in memory until the log takes more rows; why not, if it does not in time."""
        size = len(push.rows)
        if self._waiting_bytes and self._waiting_bytes + size > self._max_bytes:
            return ask.Crowded(self._waiting_bytes, self._max_bytes)
        self._waiting_bytes += size
        try:
            return await self._has_room(push.handle, push.within_s)
        finally:
            self._waiting_bytes -= size

    async def _has_room(self, handle: str, within_s: float) -> ask.Full | None:
        try:
            async with asyncio.timeout(within_s):
                await self._member.step_inputs.room(handle)
        except TimeoutError:
            return ask.Full(self._member.waiting_rows)
        return None

    # -- what it is to do

    async def _told(
        self, session: str, told: ask.Publish | ask.GiveAhead | ask.HandOver | ask.TakeBack
    ) -> ask.Answer:
        match told:
            case ask.Publish():
                self.publishes = True
            case ask.TakeBack():
                if await self._take_back(session):
                    await self.after_handover()
            case _:
                self._gives_for = session
                return await self._give(told)
        return ask.Noted()

    async def _take_back(self, session: str) -> bool:
        """Continue as if nothing had been given for a session; returns true if it may have been."""
        if self._gives_for != session:
            return False
        await self._giving.take_back()
        return True

    async def _give(self, asked: ask.GiveAhead | ask.HandOver) -> ask.Answer:
        try:
            layout = Layout.model_validate_json(asked.layout)
            if isinstance(asked, ask.HandOver):
                return ask.HandedOver(await self._hand_over(layout, asked.addresses))
            await self._giving.give_ahead(layout, asked.addresses)
        except (ValueError, NotBetweenSteps, StorageError, NetChannelError) as error:
            return ask.CouldNot(str(error))
        return ask.Noted()

    async def _hand_over(self, layout: Layout, addresses: Sequence[str]) -> int:
        """The next step. If it raises, no member takes over: earlier work is undone."""
        self._giving.check_between_steps()
        try:
            await self.before_handover(self._member.step)
            return await self._giving.give(layout, addresses)
        except (NotBetweenSteps, StorageError, NetChannelError):
            await self.after_handover()
            raise

    # -- rows out

    async def _offsets(self, step: int) -> ask.Answer:
        try:
            return ask.Ranges(await self._member.log.offsets(step))
        except StepOutOfRange as error:
            return ask.NoSuchStep(error.first, error.last)
        except StorageError as error:
            return ask.CouldNot(str(error))


async def _nothing(*_: int) -> None:
    """Do nothing: no other member delivers its outputs."""


def _rows(push: ask.Push, schemas: Mapping[str, pa.Schema]) -> pa.RecordBatch:
    """Return the pushed rows. Raises ValueError, OSError."""
    if push.handle not in schemas:
        raise ValueError(f"there is no input {push.handle!r} here: the inputs are {', '.join(schemas)}")
    rows = pa.ipc.read_record_batch(pa.py_buffer(push.rows), schemas[push.handle])
    rows.validate()
    return rows


async def _piece(asked: ask.ReadOutput, reading: OutputPieces | None) -> ask.Answer:
    if reading is None or asked.output not in reading.outputs:
        return ask.CouldNot(f"output {asked.output} is at another member")
    try:
        async with asyncio.timeout(asked.within_s):
            return await reading.piece(asked.output, asked.step, asked.piece)
    except TimeoutError:
        return ask.NothingYet(asked.step)
    except SinceMismatch as error:
        return ask.Forgotten(error.since)
    except StorageError as error:
        return ask.CouldNot(str(error))
