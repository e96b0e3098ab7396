"""The smallest sender that keeps all rules of the protocol: ``python sender.py HOST:PORT CHANNEL COUNT``.

It sends ``COUNT`` messages of one stream and its end. Over any number of connections that are lost, each arrives once
and in order, as long as the process lives.
"""

import asyncio
import os
import random
import struct
import sys
import time

from wire import (
    ACK,
    ATTACH,
    ATTACHED,
    CLOSED,
    CONTROL,
    DATA,
    DATA_CONNECTION,
    END,
    FINISHED,
    HANDSHAKE_S,
    RECEIPT,
    REFUSED,
    STARVED,
    BrokenRules,
    Control,
    Frame,
    frame,
    greeting,
    pack,
    read_frame,
)  # fmt: skip

ASK_S, ASK_LIMIT_S = 0.05, 2.0
LOST = (OSError, EOFError, BrokenRules)
GIVES_UP = {"codec", "schema", "policy", "unreadable"}
LINE = os.urandom(16)


class Over(Exception):
    """Nothing more can be sent: the stream has ended, or is not wanted."""


class Stream:
    """All messages of a stream, and how many of them are acknowledged."""

    def __init__(self, channel: str, bodies: list[bytes]) -> None:
        self.channel = channel
        self.identity = os.urandom(16).hex()
        self.bodies = bodies
        self.acknowledged = 0

    async def send(self, host: str, port: int) -> str:
        """Until it is over; how it was."""
        wait = ASK_S
        try:
            while True:
                before = self.acknowledged
                try:
                    await self._by_one_connection(host, port)
                except LOST as error:
                    print(f"lost at {self.acknowledged}: {error!r}", file=sys.stderr)
                wait = ASK_S if self.acknowledged > before else min(2 * wait, ASK_LIMIT_S)
                await asyncio.sleep(wait * random.uniform(0.5, 1))  # noqa: S311 - so that many do not come together
        except Over as over:
            return str(over)

    async def _by_one_connection(self, host: str, port: int) -> None:
        """As long as the control connection lives."""
        async with asyncio.timeout(HANDSHAKE_S):
            reader, writer = await asyncio.open_connection(host, port)
        control = Control(reader, writer, "sender", "receiver", LINE)
        tasks = []
        try:
            writer.write(greeting(CONTROL))
            async with asyncio.timeout(HANDSHAKE_S):
                await control.shake_hands()
            answers: asyncio.Queue[dict] = asyncio.Queue()
            work = (control.beat(), self._listen(control, answers), self._ask(control, answers, host, port))
            tasks = [asyncio.create_task(each) for each in work]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            writer.transport.abort()

    async def _listen(self, control: Control, answers: asyncio.Queue) -> None:
        while True:
            answers.put_nowait(await control.read())

    async def _ask(self, control: Control, answers: asyncio.Queue, host: str, port: int) -> None:
        """Ask for the channel, and again whenever it is denied, or its data connection is lost."""
        request, wait = 0, ASK_S
        while True:
            request += 1
            control.say(
                t="open",
                channel=self.channel,
                request=request,
                stream=self.identity,
                codec="bytes",
                lossy=False,
            )
            while (answer := await answers.get()).get("request") != request:
                pass  # to an earlier one, or `ready`
            before = self.acknowledged
            match answer["t"]:
                case "finished":
                    raise Over(answer["reason"])
                case "deny" if answer["code"] in GIVES_UP:
                    raise Over(answer["message"])
                case "ok":
                    try:
                        await self._attach(control, host, port, answer)
                    except LOST as error:
                        print(f"data lost at {self.acknowledged}: {error!r}", file=sys.stderr)
            wait = ASK_S if self.acknowledged > before else min(2 * wait, ASK_LIMIT_S)
            await asyncio.sleep(wait * random.uniform(0.5, 1))  # noqa: S311 - so that many do not come together

    async def _attach(self, control: Control, host: str, port: int, answer: dict) -> None:
        """Come with the token, and send what is not acknowledged, and the end."""
        if max(map(len, self.bodies), default=0) > answer["message_limit"]:
            raise Over(f"the receiver takes messages of {answer['message_limit']} bytes")
        async with asyncio.timeout(HANDSHAKE_S):
            reader, writer = await asyncio.open_connection(host, port)
        writing = None
        try:
            presented = answer["token"] + struct.pack("<Q", len(self.bodies))
            writer.write(greeting(DATA_CONNECTION) + frame(ATTACH, presented, sequence=self.acknowledged))
            while True:
                async with asyncio.timeout(None if writing else HANDSHAKE_S):
                    said = await read_frame(reader)
                control.heard = time.monotonic()
                if said.kind == ATTACHED and writing is None:
                    if not self.acknowledged <= said.sequence <= len(self.bodies):
                        raise Over(f"number {said.sequence} is wanted, of another stream")
                    writing = asyncio.create_task(self._write(writer, said.sequence))
                else:
                    self._take(said, attached=writing is not None)
        finally:
            if writing is not None:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)
            writer.transport.abort()

    def _take(self, said: Frame, *, attached: bool) -> None:
        match said.kind:
            case kind if kind == ACK and attached:
                self.acknowledged = max(self.acknowledged, said.sequence)
            case kind if kind in {RECEIPT, STARVED} and attached:
                pass
            case kind if kind in {FINISHED, CLOSED}:
                raise Over("end" if kind == FINISHED else "closed")
            case kind if kind == REFUSED:
                code, _, why = said.payload.decode(errors="replace").partition(" ")
                raise Over(why) if code in GIVES_UP else ConnectionRefusedError(why)
            case kind:
                raise BrokenRules(f"a frame of kind {kind}")

    async def _write(self, writer: asyncio.StreamWriter, first: int) -> None:
        for number in range(first, len(self.bodies)):
            writer.write(frame(DATA, pack([self.bodies[number]]), count=1, sequence=number))
            await writer.drain()
        writer.write(frame(END, sequence=len(self.bodies)))


async def main(address: str, channel: str, count: str) -> None:
    host, _, port = address.rpartition(":")
    stream = Stream(channel, [b"message %d" % number for number in range(int(count))])
    print(await stream.send(host, int(port)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
