"""Reports of a task to the coordinator's process, on a channel of its member.

The channel's id has the driver in it: words of tasks of an earlier driver find no channel of that name. Those of one
driver have tasks with rising numbers, and of these only the highest is believed.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from nebuli.steps.member.member_run import Said
from netchannel import FaultPolicy, NetChannelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from netchannel import ReceiverServer, SenderServer

_log = logging.getLogger("nebuli.steps.member")
_SAY_S = 30.0
_SILENT_S = 2.0
"""A warning is logged for a channel that is not requested for 5 s; here that is usual, and so it is registered again
before."""


class TaskWord(BaseModel):
    """A report of the task with this number (Spark's task attempt id, which only rises).

    ``said`` and ``address`` are those of `member_service.Said`; None: it fails, and ``why``. ``process`` is its process
    on the executor's machine.
    """

    model_config = ConfigDict(frozen=True)

    task: int
    process: int
    said: Said | None = None
    address: str = ""
    why: str = ""


def channel(circuit: str, driver: str, member: int) -> str:
    """The id of the channel on which the tasks of a member speak."""
    return f"{circuit}/stages/{driver}/{member}"


async def say(sender: SenderServer, to: str, channel_id: str, word: TaskWord) -> None:
    """Report it, unless nothing listens for a long time. Raises NetChannelError, TimeoutError."""
    outbox = sender.register_channel(channel_id, to=to, codec="bytes")
    try:
        async with asyncio.timeout(_SAY_S):
            await outbox.send(word.model_dump_json().encode())
            await outbox.close()
    finally:
        with suppress(NetChannelError):
            await outbox.close(0)


async def hear(receiver: ReceiverServer, channel_id: str, heard: Callable[[TaskWord], None]) -> None:
    """Pass the reports of tasks to ``heard``, of the newest one only, until it is cancelled."""
    newest = -1
    while True:
        inbox = receiver.register_channel(channel_id, codec="bytes", fault=FaultPolicy(retry=_SILENT_S))
        try:
            word = TaskWord.model_validate_json(bytes(await inbox.recv()))
            if word.task >= newest:
                newest = word.task
                heard(word)
            with suppress(NetChannelError):
                await inbox.recv()  # its end
        except NetChannelError:
            pass  # no task has reported, or the reporting one died
        except ValidationError as error:
            _log.warning("a task's message on %s was not understood: %s", channel_id, error)
        finally:
            await inbox.close("the next message is received under a new registration")
