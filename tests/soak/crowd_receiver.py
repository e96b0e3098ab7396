"""The receiver of a crowd, in a process of its own, which may be killed: how far it has come is in a file.

Lines on stdin tell it what to do; it answers each with a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
import mmap
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path

import uvloop

from netchannel import EndOfChannel, Position, ReceiverServer

from .messages import Violation
from .resources import measure

PLACE = struct.Struct("<QB55s")
"""Of each channel: the number that is due, and the stream; a kill falls before or behind a word that is written."""
NUMBER = struct.Struct("<Q")
BODY = struct.Struct("<QQ")


def channel_id(index: int) -> str:
    """The channel with this number."""
    return f"crowd/{index}"


class Places:
    """How far each channel was taken, in a file that outlives the process, and that others may look into."""

    def __init__(self, path: Path, channels: int) -> None:
        self._count = channels
        with path.open("r+b") as file:
            self._file = mmap.mmap(file.fileno(), channels * PLACE.size)

    def __getitem__(self, index: int) -> Position | None:
        due, length, stream = PLACE.unpack_from(self._file, index * PLACE.size)
        return Position(stream[:length].decode(), due) if length else None

    def begin(self, index: int, stream: str) -> None:
        """The channel has a stream, of which nothing was taken."""
        PLACE.pack_into(self._file, index * PLACE.size, 0, len(stream), stream.encode())

    def take(self, index: int, due: int) -> None:
        """Everything below ``due`` was taken."""
        NUMBER.pack_into(self._file, index * PLACE.size, due)

    def all_due(self) -> list[int]:
        """The number that is due on each channel."""
        return [place[0] for place in PLACE.iter_unpack(self._file)]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


async def consume(receiver: ReceiverServer, index: int, places: Places) -> None:
    """Check every message of a channel, note that it was taken, then acknowledge it. Raises Violation."""
    known = places[index]
    inbox = receiver.register_channel(channel_id(index), codec="bytes", ack="explicit", resume_from=known)
    due = 0 if known is None else known.sequence
    with suppress(EndOfChannel):
        while True:
            message = await inbox.recv_message()
            if message.sequence != due or message.batch != BODY.pack(index, due):
                raise Violation(
                    f"channel {inbox.id}: {bytes(message.batch)!r} came as {message.sequence}, {due} was due"
                )
            due += 1
            if due == 1:
                assert inbox.stream is not None
                places.begin(index, inbox.stream)
            places.take(index, due)
            await inbox.ack(due)


def cut_all() -> int:
    """End all connections of this process in one moment, as a network would; how many there were."""
    cut = 0
    for entry in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError, ValueError):
            sock = socket.socket(fileno=int(entry.name))
            try:
                if sock.family == socket.AF_INET and not sock.getsockopt(
                    socket.SOL_SOCKET, socket.SO_ACCEPTCONN
                ):
                    sock.shutdown(socket.SHUT_RDWR)
                    cut += 1
            finally:
                sock.detach()
    return cut


async def receive(address: str, path: str, channels: str) -> None:
    """All channels, to their ends or until it is killed."""
    stdin = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    places = Places(Path(path), int(channels))
    async with ReceiverServer(address) as receiver, asyncio.TaskGroup() as group:
        consuming = [group.create_task(consume(receiver, n, places)) for n in range(int(channels))]
        await asyncio.sleep(0)  # all are registered
        say({"address": receiver.address, **measure()._asdict()})
        while what := (await stdin.readline()).decode().strip():
            match what:
                case "cut":
                    say({"cut": cut_all()})
                case "report":
                    counted = receiver.statistics()
                    say({"connections": counted.connections, **measure()._asdict()})
                case "end":
                    await asyncio.gather(*consuming)
                    say({"ended": len(consuming)})
        for task in consuming:
            task.cancel()
    places.close()


def say(what: dict[str, object]) -> None:
    """One line to whoever started this process."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    logging.getLogger("netchannel").setLevel(logging.ERROR)
    uvloop.run(receive(*sys.argv[1:4]))
