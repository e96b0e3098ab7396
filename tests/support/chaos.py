"""A TCP proxy that resets connections at random bytes, from a seed."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_LINGER_0 = struct.pack("ii", 1, 0)
_CHUNK_BYTES = 1 << 16


class ChaosProxy:
    """Forwards to ``target``; each connection lives for a random number of bytes, both directions counted.

    The numbers are exponentially distributed around ``mean_bytes`` and drawn from ``seed`` in the order of
    the connections. After ``max_resets`` it forwards faithfully. ``resets`` counts them.
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
        self._target = _split(target)
        self._listen = _split(listen)
        self._random = random.Random(seed)
        self._mean_bytes = mean_bytes
        self._max_resets = max_resets
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.resets = 0
        self.address = listen

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
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Drawn here, in the order in which connections come.
        budget = _Budget(self._draw())
        connection = asyncio.create_task(self._forward(reader, writer, budget))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    def _draw(self) -> float:
        if self._max_resets is not None and self.resets >= self._max_resets:
            return float("inf")
        return 1 + int(self._random.expovariate(1 / self._mean_bytes))

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, budget: _Budget
    ) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            _reset(writer)
            return
        pipes = {
            asyncio.create_task(_pipe(reader, far_writer, budget)),
            asyncio.create_task(_pipe(far_reader, writer, budget)),
        }
        try:
            await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
            if not budget.spent:
                await asyncio.wait(pipes)
        finally:
            for pipe in pipes:
                pipe.cancel()
            await asyncio.gather(*pipes, return_exceptions=True)
            if budget.spent:
                self.resets += 1
            for end in (writer, far_writer):
                (_reset if budget.spent else _close)(end)


class _Budget:
    def __init__(self, left: float) -> None:
        self._left = left

    @property
    def spent(self) -> bool:
        return self._left <= 0

    def take(self, wanted: int) -> int:
        granted = int(min(wanted, self._left))
        self._left -= granted
        return granted


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, budget: _Budget) -> None:
    """Forward until the end of the stream or of the budget, to the byte."""
    with suppress(ConnectionError):
        while not budget.spent and (chunk := await reader.read(_CHUNK_BYTES)):
            writer.write(chunk[: budget.take(len(chunk))])
            await writer.drain()
        if not budget.spent and writer.can_write_eof():
            writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_0)
    writer.transport.abort()


def _close(writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        writer.close()


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
