"""What a task tells the coordinator's process, on a channel of its member's.

The channel's id has the driver in it: words of tasks of an earlier driver find no channel of that name. Those of one
driver have tasks with rising numbers, and of these only the highest is believed.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from nebuli.steps.member.member_service import Said
from netchannel import FaultPolicy, NetChannelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from netchannel import ReceiverServer, SenderServer

_log = logging.getLogger("nebuli.steps.member")
_SAY_S = 30.0
_SILENT_S = 2.0
"""A channel that nobody asks for is complained of after 5 s; here it is usual, and so it is registered anew before."""


class TaskWord(BaseModel):
    """What the task of this number (Spark's task attempt id, which only rises) says.

    ``said`` and ``address`` are as of `member_service.Said`; None: it fails, and ``why``. ``process`` is its process on
    the executor's machine.
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
    """Tell it, unless nobody listens for a long time. Raises NetChannelError, TimeoutError."""
    outbox = sender.register_channel(channel_id, to=to, codec="bytes")
    try:
        async with asyncio.timeout(_SAY_S):
            await outbox.send(word.model_dump_json().encode())
            await outbox.close()
    finally:
        with suppress(NetChannelError):
            await outbox.close(0)


async def hear(receiver: ReceiverServer, channel_id: str, heard: Callable[[TaskWord], None]) -> None:
    """Have ``heard`` hear what the tasks say, the newest one only, until it is cancelled."""
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
            pass  # nobody spoke, or a task died that did
        except ValidationError as error:
            _log.warning("what a task said on %s was not understood: %s", channel_id, error)
        finally:
            await inbox.close("the next word is heard under a new registration")
