"""A producer on a host: ``... COUNT,SIZE,RATE,CHANNEL,ADDRESS ...``, one argument for each of its channels.

COUNT 0 is endless, until standard input is readable; RATE 0 is as fast as the channel takes them. It prints a line of
JSON ten times in a second: the numbers of its channels, which are as `ChannelStatistics` has them, and
``round_trip_min_s`` of the receiver.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import sys

import uvloop

from netchannel import BufferPolicy, SenderChannel, SenderServer
from tests.hosts.messages import TIMING, body

BUFFER_BYTES = 4 << 20


async def send(outbox: SenderChannel, count: int, size: int, rate: float, stop: asyncio.Event) -> None:
    while not stop.is_set() and not 0 < count <= outbox.position:
        await outbox.send(body(outbox.position, size))
        if rate:
            await asyncio.sleep(1 / rate)
    await outbox.close()


async def report(sender: SenderServer, channels: dict[str, SenderChannel]) -> None:
    while True:
        say(sender, channels)
        await asyncio.sleep(0.1)


def say(sender: SenderServer, channels: dict[str, SenderChannel]) -> None:
    numbers = {id_: dataclasses.asdict(outbox.statistics()) for id_, outbox in channels.items()}
    for outbox_numbers in numbers.values():
        outbox_numbers["round_trip_min_s"] = next(
            (peer.round_trip_min_s for peer in sender.statistics().peers), None
        )
    sys.stdout.write(json.dumps(numbers) + "\n")
    sys.stdout.flush()


async def main(*arguments: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, stop.set)
    async with SenderServer(timing=TIMING) as sender, asyncio.TaskGroup() as group:
        channels: dict[str, SenderChannel] = {}
        sending = []
        reporting = group.create_task(report(sender, channels))
        for count, size, rate, id_, address in (argument.split(",") for argument in arguments):
            buffer = BufferPolicy(max_bytes=BUFFER_BYTES)
            channels[id_] = sender.register_channel(id_, to=address, codec="bytes", buffer=buffer)
            work = send(channels[id_], int(count), int(size), float(rate), stop)
            sending.append(group.create_task(work))
        await asyncio.gather(*sending)
        reporting.cancel()
        say(sender, channels)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    uvloop.run(main(*sys.argv[1:]))
