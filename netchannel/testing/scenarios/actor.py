"""An actor of a scenario, as a process: ``python actor.py SETTINGS``, which are JSON.

It is run by its file and imports netchannel alone, because a scenario starts many of them. It prints a line once it is
ready, ends when its work is done, leaves in order on SIGTERM, and ends when standard input does.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import uvloop

from netchannel import (
    BufferPolicy,
    ChannelClosed,
    EndOfChannel,
    Position,
    PositionLost,
    ReceiverServer,
    SenderServer,
    Timing,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from netchannel import ReceiverChannel, SenderChannel

LAST = b"last"
"""The note of a source's last message."""
_TIMING = Timing(backoff_limit_s=0.1)
_AHEAD = BufferPolicy(max_messages=50)
"""How far the sender is ahead of the reader, so that the midst of a stream is the midst for all of its actors."""


class InputLost(Exception):
    """What is to be forwarded next has been acknowledged, and nobody has it any more."""


def body_of(source: str, number: int, size: int) -> bytes:
    """What message ``number`` of a source holds: ``size`` bytes that no other message holds."""
    head = f"{source} {number} ".encode()
    return head + bytes((number + n) % 251 for n in range(size - len(head)))


async def attach(sender: SenderServer, channel: str, to: str) -> tuple[SenderChannel, int | None]:
    """A channel that goes on where its reader is, and that number; None if the stream has ended before."""
    outbox = sender.register_channel(
        channel, to=to, codec="bytes", stream=channel, replayable=True, buffer=_AHEAD
    )
    try:
        position, _ = await outbox.attached()
    except ChannelClosed:
        return outbox, None
    except asyncio.CancelledError:
        await outbox.detach()
        raise
    return outbox, position


async def produce(sender: SenderServer, settings: dict[str, Any], channel: str, to: str) -> None:
    """Send what is not there yet, and the end. A reader that has come back further behind is served from there."""
    count, rate = settings["count"], settings["rate"]
    while True:
        outbox, first = await attach(sender, channel, to)
        if first is None:
            return
        began = time.monotonic()
        try:
            for number in range(first, count):
                if rate is not None:
                    await asyncio.sleep(began + (number - first) / rate - time.monotonic())
                body = body_of(settings["name"], number, settings["size"])
                await outbox.send(body, note=LAST if number == count - 1 else b"")
            await outbox.close()
        except PositionLost:
            continue
        except asyncio.CancelledError:
            await outbox.detach()
            raise
        return


async def source(settings: dict[str, Any]) -> None:
    """Serve all readers of the source, each at its own pace."""
    async with SenderServer(timing=_TIMING) as sender, asyncio.TaskGroup() as group:
        ready()
        for channel, to in settings["outputs"].items():
            group.create_task(produce(sender, settings, channel, to))


async def bridge(settings: dict[str, Any]) -> None:
    """Forward until the end; its number in the output is a message's number in the input."""
    ((channel, to),) = settings["outputs"].items()
    (came_by,) = settings["inputs"].values()
    async with (
        ReceiverServer(settings["listen"], timing=_TIMING) as receiver,
        SenderServer(timing=_TIMING) as sender,
    ):
        ready()
        while True:
            outbox, first = await attach(sender, channel, to)
            # None: the output is whole. Then the input is to hear that, and nothing else.
            resume_from = None if first is None else Position(came_by, first)
            inbox = receiver.register_channel(
                came_by, codec="bytes", ack="explicit", resume_from=resume_from, buffer=_AHEAD
            )
            try:
                await forward(inbox, None if first is None else outbox)
            except PositionLost:  # the reader of the output has come back further behind: so does the input
                await inbox.detach()
                continue
            return


async def forward(inbox: ReceiverChannel, outbox: SenderChannel | None) -> None:
    """Hand on every message, then the end; acknowledge what is acknowledged further down."""
    received = asyncio.Event()
    acknowledging = asyncio.create_task(acknowledge(inbox, outbox, received))
    try:
        while True:
            try:
                message = await inbox.recv_message()
            except EndOfChannel:
                break
            except PositionLost as error:
                raise InputLost(str(error)) from error
            if outbox is not None:
                await outbox.send(bytes(message.batch), note=message.note)
            received.set()
        if outbox is not None:
            await outbox.close()
    except asyncio.CancelledError:
        if outbox is not None:
            await outbox.detach()
        await inbox.ack(handed_on(inbox, outbox))
        await inbox.detach()
        raise
    finally:
        acknowledging.cancel()
        with suppress(asyncio.CancelledError, PositionLost):
            await acknowledging
    await inbox.ack(handed_on(inbox, outbox))


async def acknowledge(inbox: ReceiverChannel, outbox: SenderChannel | None, received: asyncio.Event) -> None:
    """Acknowledge what has been received, once what was made of it is acknowledged."""
    while True:
        await received.wait()
        received.clear()
        upto = handed_on(inbox, outbox)
        if outbox is not None:
            await outbox.flush()
        await inbox.ack(upto)


def handed_on(inbox: ReceiverChannel, outbox: SenderChannel | None) -> int:
    """The number below which all has been. What is received tells nothing: the last may be on its way to `send`."""
    if outbox is not None:
        return outbox.position
    return 0 if inbox.position is None else inbox.position.sequence


async def sink(settings: dict[str, Any]) -> None:
    """Write down what comes, line by line, before it is acknowledged."""
    descriptor = os.open(settings["record"], os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o644)
    known = [line.split() for line in all_of(descriptor).decode().splitlines()]
    write = partial(os.write, descriptor)
    async with ReceiverServer(settings["listen"], timing=_TIMING) as receiver, asyncio.TaskGroup() as group:
        for upstream, channel in settings["inputs"].items():
            first = sum(line[0] == upstream and line[1] != "end" for line in known)
            position = Position(channel, first)
            inbox = receiver.register_channel(
                channel, codec="bytes", ack="explicit", resume_from=position, buffer=_AHEAD
            )
            has_ended = [upstream, "end"] in known
            group.create_task(write_down(inbox, upstream, write, has_ended=has_ended))
        ready()


def all_of(descriptor: int) -> bytes:
    """What is in a file."""
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


async def write_down(
    inbox: ReceiverChannel, upstream: str, write: Callable[[bytes], Any], *, has_ended: bool
) -> None:
    """Write "upstream number" for each message, or what is wrong with it, and "upstream end" with the last one.

    Not behind the last one: who is killed between its acknowledgement and the end never hears of the end.
    """
    while True:
        try:
            message = await inbox.recv_message()
        except EndOfChannel:
            break
        has_ended = message.note == LAST
        end = f"{upstream} end\n" if has_ended else ""
        write(f"{upstream} {number_in(bytes(message.batch))}\n{end}".encode())
        await inbox.ack(message.sequence + 1)
    if not has_ended:
        write(f"{upstream} end\n".encode())


def number_in(body: bytes) -> str:
    """The number of a message that is as its source made it."""
    parts = body.split(b" ", 2)
    if len(parts) == 3 and parts[1].isdigit():
        source, number = parts[0].decode(errors="replace"), int(parts[1])
        if body == body_of(source, number, len(body)):
            return str(number)
    return "changed"


def ready() -> None:
    """Tell whoever started this process that it can be reached."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()


async def until_terminated(work: Coroutine[Any, Any, None]) -> None:
    """Do ``work``, or leave it in order."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


def end_with_stdin() -> None:
    """End this process with whoever started it."""

    def drain() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        os._exit(1)

    threading.Thread(target=drain, name="stdin", daemon=True).start()


def main(settings: dict[str, Any]) -> None:
    """Run one actor."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    end_with_stdin()
    kinds = {"source": source, "bridge": bridge, "sink": sink}
    uvloop.run(until_terminated(kinds[settings["type"]](settings)))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
