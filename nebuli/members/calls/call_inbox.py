"""The member's end of calls: pushes into its input log, each answered once it is durable, and reads of its logs."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.members.calls import call_messages as ask
from nebuli.members.calls.output_pieces import OutputPieces
from nebuli.members.inputs.feeding import room
from nebuli.storage.errors import SequenceGap, SequenceReused, SinceMismatch, StepOutOfRange, StorageError
from netchannel import NetChannelError

if TYPE_CHECKING:
    from nebuli.members.member import Member
    from netchannel import SenderChannel

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
        inbox = member.receiver.register_channel(
            ask.calls(self._circuit, member.number, session), codec="bytes"
        )
        outbox = member.sender.register_channel(
            ask.answers(self._circuit, member.number, session), to=answers_to, codec="bytes"
        )
        reading = None if member.outputs is None else OutputPieces(member.outputs)
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    number, asked = ask.read_asked(bytes(await inbox.recv()))
                    # Beside others: pushes are logged together, and some wait.
                    group.create_task(self._answer(outbox, number, asked, reading))
        except* NetChannelError as errors:
            _log.info("member %d is asked nothing any more: %s", member.number, errors.exceptions[0])
        finally:
            with suppress(NetChannelError):
                await outbox.close(0)
            await inbox.close("the member has left")

    async def _answer(
        self, outbox: SenderChannel, number: int, asked: ask.Asked, reading: OutputPieces | None
    ) -> None:
        answer: ask.Answer
        match asked:
            case ask.Push():
                answer = await self._log(asked)
            case ask.AskNext(handle, producer):
                answer = ask.Next(self._member.log.next_sequence(ask.log_name(handle, producer)))
            case ask.ReadOutput():
                answer = await _piece(asked, reading)
            case ask.AskOffsets(step):
                answer = await self._offsets(step)
            case ask.Publish():
                self.publishes = True
                answer = ask.Noted()
        await outbox.send(ask.encode_answer(number, answer))

    # -- rows in

    async def _log(self, push: ask.Push) -> ask.Answer:
        member = self._member
        log, name = member.log, ask.log_name(push.handle, push.producer)
        rows = pa.ipc.read_record_batch(pa.py_buffer(push.rows), log.schemas[push.handle])
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


async def _piece(asked: ask.ReadOutput, reading: OutputPieces | None) -> ask.Answer:
    if reading is None:
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
