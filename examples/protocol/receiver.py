"""The smallest receiver that keeps all rules of the protocol: ``python receiver.py HOST:PORT CHANNEL``.

It takes one stream on one channel, acknowledges at receipt, prints its messages line by line, and ends with it. It
has none of the features that a hello may name: what comes to it is at most 1 179 648 bytes, without a note.
"""

import asyncio
import os
import sys
import time

from wire import (
    ACK,
    ASK,
    ATTACH,
    ATTACHED,
    CONTROL,
    DATA,
    DATA_CONNECTION,
    END,
    FAIL,
    FINISHED,
    HANDSHAKE_S,
    REFUSED,
    BrokenRules,
    Control,
    Frame,
    frame,
    greeting,
    read_frame,
    unpack,
)  # fmt: skip

TOKEN_S, LEAVE_S = 10.0, 5.0
LOST = (OSError, EOFError, TimeoutError)


class Receiver:
    """One channel, and its owner."""

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self.ended = asyncio.Event()
        self._stream = ""
        self._next: int | None = None  # the number that is due, once there is a stream
        self._over: dict[str, tuple[int, str]] = {}  # how streams were over, by identity: a tombstone
        self._tokens: dict[bytes, tuple[Control, dict]] = {}
        self._holder: Control | None = None
        self._data: asyncio.StreamWriter | None = None  # of the holder
        self._lines: dict[bytes, Control] = {}

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection came in."""
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                said = await reader.readexactly(8)
            if said[:4] == b"NETC" and not said[4] <= 1 <= said[5]:
                writer.write(frame(REFUSED, b"version this receiver speaks version 1"))
            elif said == greeting(CONTROL):
                await self._control(Control(reader, writer, "receiver", "sender", None))
            elif said == greeting(DATA_CONNECTION):
                await self._attach(reader, writer)
        except LOST:
            pass
        except BrokenRules as error:
            print(f"a connection broke the rules: {error}", file=sys.stderr)
        finally:
            writer.close()

    async def _control(self, control: Control) -> None:
        beating = None
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await control.shake_hands()
            if control.line is not None:  # a sender that has dialed again has given up the previous one
                if (before := self._lines.get(control.line)) is not None:
                    self._lost(before)
                self._lines[control.line] = control
            beating = asyncio.create_task(control.beat())
            while True:
                asked = await control.read()
                if asked["t"] != "open":
                    raise BrokenRules(f"a message {asked['t']!r} of a sender")
                control.say(
                    channel=asked["channel"], request=asked["request"], **self._answer(control, asked)
                )
        except BrokenRules as error:
            control.say(t="error", message=str(error), permanent=False)
        finally:
            if beating is not None:
                beating.cancel()
            self._lost(control)

    def _lost(self, control: Control) -> None:
        """With a control connection go its tokens and its data connection."""
        control.writer.close()
        self._tokens = {token: given for token, given in self._tokens.items() if given[0] is not control}
        if self._holder is control:
            self._holder = None
            if self._data is not None:
                self._data.transport.abort()

    def _answer(self, control: Control, asked: dict) -> dict:
        """To an `open`, which changes nothing."""
        if (over := self._over.get(asked["stream"])) is not None:
            return {"t": "finished", "count": over[0], "reason": over[1], "message": f"it is over: {over[1]}"}
        if (code := self._against(control, asked)) is not None:
            return {"t": "deny", "code": code, "message": f"channel {asked['channel']!r}: {code}"}
        token = os.urandom(16)
        self._tokens = {token: given for token, given in self._tokens.items() if given[0] is not control}
        self._tokens[token] = (control, asked)
        asyncio.get_running_loop().call_later(TOKEN_S, self._tokens.pop, token, None)
        return {"t": "ok", "token": token, "port": None, "message_limit": 1_179_648}

    def _against(self, control: Control, asked: dict) -> str | None:
        if asked["channel"] != self.channel or self.ended.is_set():
            return "unregistered"
        if asked.get("into") is not None or asked["lossy"]:
            return "policy"
        if asked["codec"] != "bytes":
            return "codec"
        if self._holder not in (None, control):
            return "held"
        if self._next is not None and asked["stream"] != self._stream:
            return "replaced"
        return None

    async def _attach(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HANDSHAKE_S):
            first = await read_frame(reader)
        if first.kind != ATTACH or len(first.payload) not in (16, 24):
            raise BrokenRules("no ATTACH")
        control, asked = self._tokens.pop(first.payload[:16], (None, {}))
        if control is None or (code := self._against(control, asked)) is not None:
            code = "token" if control is None else code
            writer.write(frame(REFUSED, f"{code} the token is not good, or the channel is not free".encode()))
            return
        due = first.sequence if self._next is None else self._next
        head = int.from_bytes(first.payload[16:], "little") if first.payload[16:] else due
        if not first.sequence <= due <= head:
            writer.write(
                frame(REFUSED, f"position {due} is wanted, {first.sequence} to {head} are there".encode())
            )
            return
        if self._data is not None:
            self._data.transport.abort()
        self._stream, self._next, self._holder, self._data = asked["stream"], due, control, writer
        writer.write(frame(ATTACHED, sequence=due))
        try:
            while self._data is writer and not self.ended.is_set():
                frame_ = await read_frame(reader)
                control.heard = time.monotonic()
                if self._data is writer:  # else a later one is there
                    self._take(frame_, writer)
        except BrokenRules as error:
            writer.write(frame(REFUSED, f"protocol {error}".encode()))
        finally:
            if self._data is writer:
                self._data = None
        if self.ended.is_set():
            async with asyncio.timeout(LEAVE_S):  # it hangs up once it has received the end
                await reader.read()

    def _take(self, frame_: Frame, writer: asyncio.StreamWriter) -> None:
        assert self._next is not None
        if frame_.kind not in {DATA, END, FAIL, ASK} or frame_.sequence > self._next:
            raise BrokenRules(
                f"a frame of kind {frame_.kind}, number {frame_.sequence}, where {self._next} was due"
            )
        if frame_.kind == DATA:
            bodies = unpack(frame_.payload, frame_.count)
            for body in bodies[self._next - frame_.sequence :]:
                print(body.decode(), flush=True)
            self._next = max(self._next, frame_.sequence + frame_.count)
            writer.write(frame(ACK, sequence=self._next))
            return
        if frame_.kind == ASK:  # for an acknowledgement, and none waits here
            return
        if frame_.sequence != self._next:
            raise BrokenRules(f"the end at {frame_.sequence}, where {self._next} was due")
        self._over[self._stream] = (self._next, "end" if frame_.kind == END else "failed")
        writer.write(frame(ACK, sequence=self._next) + frame(FINISHED))
        self.ended.set()


async def main(address: str, channel: str) -> None:
    host, _, port = address.rpartition(":")
    receiver = Receiver(channel)
    server = await asyncio.start_server(receiver.accept, host, int(port))
    print(f"listening at port {server.sockets[0].getsockname()[1]}", file=sys.stderr, flush=True)
    await receiver.ended.wait()
    await asyncio.sleep(
        1
    )  # a sender that has lost the end asks once more, and gets the answer that it is over
    server.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
