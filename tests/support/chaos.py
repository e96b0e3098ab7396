"""TCP proxies that do to connections what networks do: cut them, delay, change and swallow what they carry."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from types import TracebackType
    from typing import Self

_LINGER_0 = struct.pack("ii", 1, 0)
_CHUNK_BYTES = 1 << 16
_CHUNKS_ON_THE_WAY = 256

UP, DOWN = "up", "down"
"""Directions: from who dialed, and to it."""


class Wire:
    """A connection through a proxy: forwards faithfully, unless it is cut or swallows.

    ``passed`` counts the bytes of each direction that were forwarded. ``resets`` says how it is cut: by a reset, or by
    the end of the stream. ``latency_s`` is how long each direction takes. ``over`` is set once neither end is open.
    """

    def __init__(self, *, resets: bool = True) -> None:
        self.passed = {UP: 0, DOWN: 0}
        self.resets = resets
        self.swallows = False
        self.is_cut = False
        self.over = asyncio.Event()
        self.left = asyncio.Event()
        self.latency_s = {UP: 0.0, DOWN: 0.0}

    def cut(self) -> None:
        """End both ends, whatever is on its way."""
        self.is_cut = True
        self.over.set()

    def hang_up(self) -> None:
        """End the end of who dialed; what is on its way from there arrives when it would have, and then the close."""
        self.is_cut = True
        self.left.set()

    def forward(self, direction: str, chunk: bytes) -> bytes:
        """What goes on of ``chunk``; nothing, and not the end of the stream either, while the wire swallows."""
        if self.swallows or self.over.is_set():
            return b""
        chunk = self.changed(direction, chunk)
        self.passed[direction] += len(chunk)
        return chunk

    def changed(self, direction: str, chunk: bytes) -> bytes:
        """What becomes of ``chunk``; for kinds of wires that change something."""
        return chunk


class CutAfter(Wire):
    """Is cut when exactly so many bytes of one direction have passed."""

    def __init__(self, direction: str, length: int, *, resets: bool = True) -> None:
        super().__init__(resets=resets)
        self._direction = direction
        self._length = length
        if not length:
            self.cut()

    def changed(self, direction: str, chunk: bytes) -> bytes:
        if direction == self._direction:
            chunk = chunk[: self._length - self.passed[direction]]
            if self.passed[direction] + len(chunk) == self._length:
                self.cut()
        return chunk


class Flip(Wire):
    """Changes one bit at an offset in one direction."""

    def __init__(self, direction: str, offset: int, bit: int) -> None:
        super().__init__()
        self._direction = direction
        self._offset = offset
        self._bit = bit
        self.flipped = False

    def changed(self, direction: str, chunk: bytes) -> bytes:
        place = self._offset - self.passed[direction]
        if direction == self._direction and 0 <= place < len(chunk):
            changed = bytearray(chunk)
            changed[place] ^= 1 << self._bit
            chunk = bytes(changed)
            self.flipped = True
        return chunk


class _Budget(Wire):
    """Is cut after so many bytes, both directions counted."""

    def __init__(self, length: float) -> None:
        super().__init__()
        self._left = length

    def changed(self, direction: str, chunk: bytes) -> bytes:
        chunk = chunk[: int(min(len(chunk), self._left))]
        self._left -= len(chunk)
        if self._left <= 0:
            self.cut()
        return chunk


class Proxy:
    """Forwards to ``target``. ``make_wire`` says by its number what kind of wire each connection becomes."""

    def __init__(
        self, target: str, make_wire: Callable[[int], Wire] = lambda _: Wire(), *, listen: str = "127.0.0.1:0"
    ) -> None:
        self._target = _split(target)
        self._listen = _split(listen)
        self._make_wire = make_wire
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.wires: list[Wire] = []
        self.address = listen

    @property
    def resets(self) -> int:
        """How many connections were cut."""
        return sum(wire.is_cut for wire in self.wires)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, *self._listen)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for wire in self.wires:
            wire.over.set()
        await asyncio.gather(*self._connections)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Made here, in the order in which connections come.
        wire = self._make_wire(len(self.wires))
        self.wires.append(wire)
        connection = asyncio.create_task(self._forward(reader, writer, wire))
        connection.add_done_callback(lambda _: wire.over.set())
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wire: Wire) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            await _end(writer, by_reset=True)
            return
        up = asyncio.create_task(_pipe(reader, far_writer, wire, UP))
        down = asyncio.create_task(_pipe(far_reader, writer, wire, DOWN))
        both = asyncio.gather(up, down, return_exceptions=True)
        told = [asyncio.create_task(event.wait()) for event in (wire.over, wire.left)]
        await asyncio.wait({both, *told}, return_when=asyncio.FIRST_COMPLETED)
        if wire.left.is_set() and not wire.over.is_set():
            down.cancel()
            await asyncio.wait({down})
            await _end(writer, by_reset=wire.resets)
            await asyncio.wait({up, told[0]}, return_when=asyncio.FIRST_COMPLETED)
        by_reset = wire.over.is_set() and wire.resets
        for task in (both, *told):
            task.cancel()
        await asyncio.gather(both, *told, return_exceptions=True)
        await asyncio.gather(_end(writer, by_reset=by_reset), _end(far_writer, by_reset=by_reset))


class ChaosProxy(Proxy):
    """Each connection lives for a random number of bytes, both directions counted, until ``max_resets`` were cut.

    The numbers are exponentially distributed around ``mean_bytes`` and drawn from ``seed`` in the order of the
    connections.
    """

    def __init__(
        self,
        target: str,
        *,
        seed: int,
        mean_bytes: int,
        max_resets: int | None = None,
        listen: str = "127.0.0.1:0",
    ) -> None:
        super().__init__(target, self._draw, listen=listen)
        self._random = random.Random(seed)
        self._mean_bytes = mean_bytes
        self._max_resets = max_resets

    def _draw(self, number: int) -> Wire:
        if self._max_resets is not None and self.resets >= self._max_resets:
            return Wire()
        return _Budget(1 + int(self._random.expovariate(1 / self._mean_bytes)))


async def _pipe(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wire: Wire, direction: str
) -> None:
    """Forward what the wire lets pass, to the byte, and the end of the stream, or a reset."""
    try:
        async with aclosing(_arriving(reader, wire.latency_s[direction])) as chunks:
            async for chunk in chunks:
                if wire.over.is_set():
                    return
                writer.write(wire.forward(direction, chunk))
                await writer.drain()
        if not wire.over.is_set() and not wire.swallows and writer.can_write_eof():
            writer.write_eof()
    except ConnectionError:
        if not wire.swallows:
            wire.over.set()


async def _arriving(reader: asyncio.StreamReader, latency_s: float) -> AsyncGenerator[bytes]:
    """What is read, each chunk so long after it was; as the reader ends, so does this, as late."""
    if not latency_s:
        while chunk := await reader.read(_CHUNK_BYTES):
            yield chunk
        return
    clock = asyncio.get_running_loop().time
    on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_CHUNKS_ON_THE_WAY)

    async def take() -> None:
        try:
            while chunk := await reader.read(_CHUNK_BYTES):
                await on_the_way.put((clock() + latency_s, chunk))
        except ConnectionError:
            await on_the_way.put((clock() + latency_s, b""))
            raise
        await on_the_way.put((clock() + latency_s, b""))

    taking = asyncio.create_task(take())
    try:
        while True:
            due, chunk = await on_the_way.get()
            await asyncio.sleep(due - clock())
            if not chunk:
                await taking
                return
            yield chunk
    finally:
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)


async def _end(writer: asyncio.StreamWriter, *, by_reset: bool) -> None:
    with suppress(OSError):
        if by_reset:
            connection = writer.get_extra_info("socket")
            if connection is not None and connection.fileno() >= 0:  # uvloop has none for one that is closed
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_0)
            writer.transport.abort()
        writer.close()
        await writer.wait_closed()


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
