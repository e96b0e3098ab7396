"""What TLS makes of what is written: records that are full, in segments that are; and a reader of any habits."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import cast

import pytest

from netchannel import Tls
from netchannel.tls import Credentials
from netchannel.transports import schemes
from netchannel.transports.tls_connection import RECORD
from netchannel.transports.tls_transport import TlsDialer, tls_protocol_factory
from tests.support import sizes
from tests.support.chaos import UP, Proxy, Wire
from tests.support.waiting import until_async

_DATA_SEGMENTS = struct.Struct("156xI")
"""``tcpi_data_segs_out`` in Linux's ``struct tcp_info``."""
_HEADER = struct.Struct(">BHH")
APPLICATION_DATA = 23


class Reader(asyncio.BufferedProtocol):
    """Reads into buffers of any size, and rests at times; ``random`` draws both."""

    def __init__(self, random: Random | None = None) -> None:
        self.received = bytearray()
        self._random = random
        self._buffer = memoryview(bytearray(1 << 16))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[: self._random.choice([1, 100, 5000, 1 << 16]) if self._random else None]

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]
        if self._random is not None and self._random.random() < 0.2:
            self.transport.pause_reading()
            loop = asyncio.get_running_loop()
            loop.call_later(self._random.choice([0, 0, 0.002]), self.transport.resume_reading)


class Recorded(Wire):
    """Keeps what went up."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = bytearray()

    def changed(self, direction: str, chunk: bytes) -> bytes:
        if direction == UP:
            self.seen += chunk
        return chunk

    def records(self) -> list[int]:
        """The lengths of the records of data so far."""
        lengths, place = [], 0
        while place + _HEADER.size <= len(self.seen):
            kind, _, length = _HEADER.unpack_from(self.seen, place)
            place += _HEADER.size + length
            if kind == APPLICATION_DATA:
                lengths.append(length)
        return lengths


class Slow(Wire):
    """Each direction takes as long as the seed draws it."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        for direction in self.latency_s:
            self.latency_s[direction] = random.choice([0.0, 0.001, 0.01])


@asynccontextmanager
async def connected(
    tls: Tls, here: Reader, there: Reader, make_wire: Callable[[int], Wire]
) -> AsyncIterator[None]:
    """Two ends with their TLS, and a proxy between them."""
    listener = await schemes.listen(
        "127.0.0.1:0", tls_protocol_factory(Credentials(tls, "receiver"), lambda: there)
    )
    try:
        async with Proxy(listener.address, make_wire) as proxy:
            await TlsDialer(Credentials(tls, "sender")).connect(proxy.address, lambda: here)
            try:
                yield
            finally:
                here.transport.abort()
                there.transport.abort()
    finally:
        listener.close()
        await listener.stop()


async def until(condition: Callable[[], bool], what: str) -> None:
    async def now() -> bool:
        return condition()

    await until_async(now, what, 20.0)


def _segments(sock: socket.socket) -> int:
    return int(_DATA_SEGMENTS.unpack_from(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232))[0])


@pytest.mark.parametrize(
    ("pieces", "full", "rest"),
    [
        ([100] * 1000, 6, 1696),
        ([RECORD - 1, 2, RECORD, 5], 2, 6),
        ([200_000], 12, 3392),
        ([40_000, 40_000], 4, 14_464),
        ([7], 0, 7),
    ],
)
async def test_what_is_written_at_once_fills_records(
    pieces: list[int], full: int, rest: int, tls: Tls
) -> None:
    """As RFC 8446, 5.1 lets them be, whatever the pieces; a record has 17 bytes beside what it holds."""
    wire, here, there = Recorded(), Reader(), Reader()
    async with connected(tls, here, there, lambda _: wire):
        here.transport.write(b"!")
        await until(lambda: there.received == b"!", "the handshake is over")
        before = len(wire.records())
        here.transport.writelines([bytes([n % 251]) * size for n, size in enumerate(pieces)])
        await until(lambda: len(there.received) == 1 + sum(pieces), "all came")
        assert wire.records()[before:] == [RECORD + 17] * full + [rest + 17]
        assert there.received == b"!" + b"".join(bytes([n % 251]) * size for n, size in enumerate(pieces))


async def test_records_share_segments_and_none_waits(tls: Tls) -> None:
    """By TCP_CORK, which is off again as the write returns: what is left would be held back for 0.2 s."""
    here, there = Reader(), Reader()
    async with connected(tls, here, there, lambda _: Wire()):
        sock = here.transport.get_extra_info("socket")
        for size in (1000, 3 * RECORD + 5, 1 << 20, 1 << 20):
            before, due = _segments(sock), len(there.received) + size
            here.transport.write(bytes(size))
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CORK) == 0
            await until(lambda due=due: len(there.received) == due, "all came")  # type: ignore[misc]
            assert _segments(sock) - before <= 1 + -(-size // RECORD) // 2


@pytest.mark.parametrize("seed", sizes.some(range(4)))
async def test_any_reader_gets_what_was_written(seed: int, tls: Tls) -> None:
    """Both ways at once, in pieces of any size, to readers that rest in the middle of records."""
    random = Random(seed)
    ends = Reader(Random(f"{seed} here")), Reader(Random(f"{seed} there"))
    written = [bytearray(), bytearray()]
    async with connected(tls, *ends, lambda _: Slow(random)):
        for _ in range(60):
            side = random.randrange(2)
            pieces = [
                random.randbytes(random.choice([1, 200, 5000, 40_000]))
                for _ in range(random.choice([1, 1, 8]))
            ]
            ends[side].transport.writelines(pieces)
            written[side] += b"".join(pieces)
            if random.random() < 0.5:
                await asyncio.sleep(0)
        await until(
            lambda: all(len(ends[1 - side].received) == len(written[side]) for side in range(2)), "all came"
        )
    assert ends[1].received == written[0]
    assert ends[0].received == written[1]
