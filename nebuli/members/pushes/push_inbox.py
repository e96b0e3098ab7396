"""The member's end of pushes: into its input log, each answered once it is durable."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.members.inputs.feeding import room
from nebuli.members.pushes import push_messages as ask
from nebuli.storage.errors import SequenceGap, SequenceReused, StorageError

if TYPE_CHECKING:
    from nebuli.members.member import Member
    from netchannel import SenderChannel


async def take_pushes(member: Member, circuit: str, answers_to: str) -> None:
    """Log what is pushed, and answer to a coordinator's process at this address, until it is cancelled.

    Raises NetChannelError where that one has left.
    """
    own = member.receiver.address
    inbox = member.receiver.register_channel(ask.pushes(circuit, member.number, own), codec="bytes")
    outbox = member.sender.register_channel(
        ask.answers(circuit, member.number, own), to=answers_to, codec="bytes"
    )
    async with asyncio.TaskGroup() as group:
        while True:
            number, asked = ask.read_asked(bytes(await inbox.recv()))
            group.create_task(
                _answer(member, outbox, number, asked)
            )  # beside others: they are logged together


async def _answer(member: Member, outbox: SenderChannel, number: int, asked: ask.Asked) -> None:
    match asked:
        case ask.Push():
            answer = await _log(member, asked)
        case ask.AskNext(handle, producer):
            answer = ask.Next(member.log.next_sequence(ask.log_name(handle, producer)))
    await outbox.send(ask.encode_answer(number, answer))


async def _log(member: Member, push: ask.Push) -> ask.Answer:
    log, name = member.log, ask.log_name(push.handle, push.producer)
    rows = pa.ipc.read_record_batch(pa.py_buffer(push.rows), log.schemas[push.handle])
    if log.next_sequence(name) == push.sequence:  # what is known already needs no room
        try:
            async with asyncio.timeout(push.within_s):
                await room(member)
        except TimeoutError:
            return ask.Full(member.waiting_rows)
    earliest = log.last
    is_new = log.next_sequence(name) == push.sequence
    try:
        await log.push(push.handle, rows, producer=name, sequence=push.sequence)
    except SequenceGap as error:
        return ask.Gap(error.expected)
    except SequenceReused as error:
        return ask.Reused(error.expected)
    except StorageError as error:
        return ask.NotLogged(str(error))
    if is_new and rows.num_rows:
        member.arrived(rows.num_rows)
    return ask.Logged(earliest)
