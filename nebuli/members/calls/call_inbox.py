"""The member's end of calls: pushes into its input log, each answered once it is durable, and reads of its logs."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.coordinator.errors import MalformedMessage
from nebuli.coordinator.lines.talking import talking
from nebuli.members.calls import call_messages as ask
from nebuli.members.calls.output_pieces import OutputPieces
from nebuli.members.inputs.feeding import room
from nebuli.storage.errors import SequenceGap, SequenceReused, SinceMismatch, StepOutOfRange, StorageError
from netchannel import NetChannelError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nebuli.members.member import Member

_log = logging.getLogger("nebuli.members")
WAITING_BYTES = 5 << 26
"""So many bytes of pushes wait for `room` at most: more than a service has wait, as callers who are gone count, too."""


class CallInbox:
    """Answers the sessions of coordinators' processes, from the logs of one member."""

    def __init__(self, member: Member, circuit: str, *, waiting_bytes: int = WAITING_BYTES) -> None:
        self._member = member
        self._circuit = circuit
        self._max_bytes = waiting_bytes
        self._waiting_bytes = 0
        self.publishes = False
        """Whether the sinks are to have their results when the member is stopped."""

    async def serve(self, session: str, answers_to: str) -> None:
        """Answer to a coordinator's process at this address, until it has left, or this is cancelled."""
        member = self._member
        reading = None if member.outputs is None else OutputPieces(member.outputs)
        answers: asyncio.Queue[bytes] = asyncio.Queue()
        sender = f"the coordinator's process at {answers_to}"
        try:
            async with (
                talking(
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
                    # Beside others: pushes are logged together, and some wait.
                    group.create_task(self._answer(answers, data, sender, reading))

                await found.talk(answers.get, heard)
        except* NetChannelError as errors:
            _log.info("member %d is asked nothing any more: %s", member.number, errors.exceptions[0])

    async def _answer(
        self, answers: asyncio.Queue[bytes], data: bytes, sender: str, reading: OutputPieces | None
    ) -> None:
        """What cannot be read is answered with that, if it has a number; nobody else's questions suffer from it."""
        try:
            number, asked = ask.read_asked(data, sender)
        except MalformedMessage as error:
            _log.warning("it cannot be answered: %s", error)
            return
        answers.put_nowait(ask.encode_answer(number, await self._answered(asked, reading)))

    async def _answered(
        self, asked: ask.Asked | MalformedMessage, reading: OutputPieces | None
    ) -> ask.Answer:
        match asked:
            case ask.Push():
                return await self._log(asked)
            case ask.AskNext(handle, producer):
                return ask.Next(self._member.log.next_sequence(ask.log_name(handle, producer)))
            case ask.ReadOutput():
                return await _piece(asked, reading)
            case ask.AskOffsets(step):
                return await self._offsets(step)
            case ask.Publish():
                self.publishes = True
                return ask.Noted()
            case MalformedMessage():
                return ask.CouldNot(str(asked))

    # -- rows in

    async def _log(self, push: ask.Push) -> ask.Answer:
        member = self._member
        log, name = member.log, ask.log_name(push.handle, push.producer)
        try:
            rows = _rows(push, log.schemas)
        except (ValueError, OSError) as error:
            return ask.CouldNot(str(error))
        if log.next_sequence(name) == push.sequence:  # what is known already needs no room
            refusal = await self._room(len(push.rows), push.within_s)
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

    async def _room(self, size: int, within_s: float) -> ask.Full | ask.Crowded | None:
        """Wait until the log takes more rows; why not, if it does not in time."""
        if self._waiting_bytes and self._waiting_bytes + size > self._max_bytes:
            return ask.Crowded(self._waiting_bytes, self._max_bytes)
        self._waiting_bytes += size
        try:
            async with asyncio.timeout(within_s):
                await room(self._member)
        except TimeoutError:
            return ask.Full(self._member.waiting_rows)
        finally:
            self._waiting_bytes -= size
        return None

    # -- rows out

    async def _offsets(self, step: int) -> ask.Answer:
        try:
            return ask.Ranges(await self._member.log.offsets(step))
        except StepOutOfRange as error:
            return ask.NoSuchStep(error.first, error.last)
        except StorageError as error:
            return ask.CouldNot(str(error))


def _rows(push: ask.Push, schemas: Mapping[str, pa.Schema]) -> pa.RecordBatch:
    """What is pushed. Raises ValueError, OSError."""
    if push.handle not in schemas:
        raise ValueError(f"there is no input {push.handle!r} here: there are {', '.join(schemas)}")
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
