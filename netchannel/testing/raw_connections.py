"""Connections one by one, without channels: what `netchannel.transports.Transport` asks for."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest

from netchannel.transports import schemes

from .deadlines import eventually
from .suite import Suite

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

HIGH, LOW = 1 << 16, 1 << 14
MANY = 100
BETWEEN = 64 << 20
"""More than a machine may hold between a paused writer and a reader that does not read."""


class Endpoint(asyncio.BufferedProtocol):
    """Keeps what happens to it; ``wrong`` lists what must not. Reads ``buffer_size`` bytes at a time."""

    def __init__(
        self,
        buffer_size: int = 1 << 16,
        *,
        pause_after_reading: bool = False,
        on_made: Callable[[], object] = lambda: None,
    ) -> None:
        self.transport: asyncio.Transport
        self.received = bytearray()
        self.made = self.lost = 0
        self.writable = True
        self.wrong: list[str] = []
        self._buffer = memoryview(bytearray(buffer_size))
        self._pause_after_reading = pause_after_reading
        self._on_made = on_made
        self._calling = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._happens("connection_made")
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=HIGH, low=LOW)
        self.made += 1
        self._on_made()

    def connection_lost(self, exc: Exception | None) -> None:
        self._happens("connection_lost")
        if self._calling:
            self.wrong.append("connection_lost was called before the call that caused it had returned")
        self.lost += 1

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._happens("buffer_updated")
        if not 0 < nbytes <= len(self._buffer):
            self.wrong.append(f"{nbytes} bytes were read into a buffer of {len(self._buffer)}")
        self.received += self._buffer[:nbytes]
        if self._pause_after_reading:
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        self._happens("pause_writing")
        if not self.writable:
            self.wrong.append("pause_writing was called twice")
        self.writable = False

    def resume_writing(self) -> None:
        self._happens("resume_writing")
        if self.writable:
            self.wrong.append("resume_writing was called without pause_writing")
        self.writable = True

    def _happens(self, what: str) -> None:
        if what != "connection_made" and not self.made:
            self.wrong.append(f"{what} was called before connection_made")
        if self.lost:
            self.wrong.append(f"{what} was called after connection_lost")

    def end(self, *, abort: bool = False) -> None:
        """Close or abort from this side."""
        self._calling = True
        if abort:
            self.transport.abort()
        else:
            self.transport.close()
        self._calling = False

    async def got(self, size: int) -> None:
        """Wait for that many bytes."""
        await eventually(lambda: len(self.received) >= size)

    async def over(self) -> None:
        """Wait until the connection is lost."""
        await eventually(lambda: self.lost)

    async def fill(self) -> int:
        """Write until paused; returns how many bytes."""
        body, written = bytes(1 << 16), 0
        while self.writable and written < BETWEEN:
            self.transport.write(body)
            written += len(body)
            await asyncio.sleep(0)
        return written


@asynccontextmanager
async def connected(address: str, there: Endpoint | None = None) -> AsyncIterator[tuple[Endpoint, Endpoint]]:
    """Both ends of a connection, this side's first; afterwards both are over, and nothing was wrong."""
    here, there = Endpoint(), there or Endpoint()
    waiting = [there]
    listener = await schemes.listen(address, lambda: waiting.pop() if waiting else Endpoint())
    try:
        await schemes.connect(listener.address, lambda: here)
        await eventually(lambda: there.made)
        yield here, there
        for end in (here, there):
            if not end.lost:
                end.end(abort=True)
            await end.over()
    finally:
        listener.close()
        await listener.stop()
    for end in (here, there):
        assert (end.wrong, end.made, end.lost) == ([], 1, 1)


class RawConnections(Suite):
    """Bytes, pauses and ends of single connections."""

    async def test_bytes_arrive_in_order_both_ways(self, address: str) -> None:
        """Bytes are not lost, duplicated, changed or reordered, whatever their type and sizes."""
        draw = random.Random(5)  # noqa: S311 - not for secrets
        kinds: list[Any] = [bytes, bytearray, memoryview]
        async with connected(address) as ends:
            written = [bytearray(), bytearray()]
            for _ in range(300):
                for end, sent in zip(ends, written, strict=True):
                    pieces = [draw.randbytes(draw.choice([0, 1, 10, 3000, 20_000])) for _ in range(3)]
                    end.transport.writelines([draw.choice(kinds)(piece) for piece in pieces])
                    end.transport.write(b"|")
                    sent.extend(b"".join(pieces) + b"|")
                if draw.random() < 0.5:
                    await asyncio.sleep(0)
            for end, sent in zip(reversed(ends), written, strict=True):
                await end.got(len(sent))
                assert end.received == sent

    async def test_who_accepts_may_speak_first(self, address: str) -> None:
        """The accepting side may write as soon as it has the connection; the other gets that once it has it too."""

        def speak() -> None:
            there.transport.write(b"welcome")

        there = Endpoint(on_made=speak)
        async with connected(address, there) as (here, _):
            await here.got(7)
            assert here.received == b"welcome"

    async def test_small_buffers_are_respected(self, address: str) -> None:
        """The transport reads no more at a time than the protocol's buffer takes."""
        async with connected(address, Endpoint(7)) as (here, there):
            body = bytes(range(256)) * 20
            here.transport.write(body)
            await there.got(len(body))
            assert there.received == body

    async def test_a_reader_that_pauses_gets_nothing(self, address: str) -> None:
        """A paused reader gets nothing while the other direction is busy, and all of it afterwards."""
        async with connected(address) as (here, there):
            there.transport.pause_reading()
            here.transport.write(b"held")
            for number in range(1, 51):
                there.transport.write(b"x")
                await here.got(number)
            assert there.received == b""
            there.transport.resume_reading()
            await there.got(4)

    async def test_a_reader_can_pause_as_it_reads(self, address: str) -> None:
        """Nothing comes after `pause_reading` was called in `buffer_updated`."""
        async with connected(address, Endpoint(10, pause_after_reading=True)) as (here, there):
            here.transport.write(bytes(100))
            for size in range(10, 101, 10):
                await there.got(size)
                assert len(there.received) == size
                there.transport.write(b"x")
                await here.got(size // 10)
                assert len(there.received) == size
                there.transport.resume_reading()

    async def test_a_full_connection_pauses_its_writer(self, address: str) -> None:
        """A reader that does not read soon stops the writer; reading again resumes it."""
        async with connected(address) as (here, there):
            there.transport.pause_reading()
            written = await here.fill()
            assert written < BETWEEN, f"{written} bytes were accepted without a pause, although none was read"
            assert here.transport.get_write_buffer_size() > HIGH
            there.transport.resume_reading()
            await there.got(written)
            await eventually(lambda: here.writable)
            assert len(there.received) == written

    async def test_closing_sends_what_was_written_first(self, address: str) -> None:
        """The peer gets all of it, then the end."""
        async with connected(address) as (here, there):
            there.transport.pause_reading()
            written = await here.fill()
            here.end()
            assert here.transport.is_closing()
            there.transport.resume_reading()
            await here.over()
            await there.over()
            assert len(there.received) == written

    @pytest.mark.parametrize("full", [False, True], ids=["idle", "full"])
    async def test_aborting_ends_both_sides(self, address: str, full: bool) -> None:
        """An abort ends this side at once, even where the peer reads nothing, and the other as soon as it reads."""
        async with connected(address) as (here, there):
            if full:
                there.transport.pause_reading()
                await here.fill()
            here.end(abort=True)
            assert here.transport.is_closing()
            await here.over()
            if full:
                there.transport.resume_reading()
            await there.over()

    @pytest.mark.parametrize("abort", [False, True], ids=["close", "abort"])
    async def test_ending_twice_ends_once(self, address: str, abort: bool) -> None:
        """Either side may end it once more, whichever was first."""
        async with connected(address) as (here, there):
            for end in (here, there, here):
                end.end(abort=abort)
            await here.over()
            await there.over()

    async def test_nobody_listens(self, vacant: str) -> None:
        """Dialing raises OSError, also if there was a listener before; checking the address needs no listener."""
        schemes.check(vacant)
        with pytest.raises(OSError, match=r"."):
            await schemes.connect(vacant, Endpoint)

    async def test_an_address_in_use_is_refused(self, vacant: str) -> None:
        """The second listener gets an OSError that names the address, the first continues, and then it is free."""
        async with connected(vacant) as (here, there):
            with pytest.raises(OSError, match=re.escape(vacant)):
                await schemes.listen(vacant, Endpoint)
            here.transport.write(b"still here")
            await there.got(10)
        async with connected(vacant):
            pass

    async def test_a_cancelled_connect_leaves_no_connection(self, address: str) -> None:
        """A cancel at any point leaves no connection; a protocol that was given one is notified of its end."""
        accepted: list[Endpoint] = []

        def accept() -> Endpoint:
            accepted.append(Endpoint())
            return accepted[-1]

        async def connect_and_cancel(turns: int | None) -> None:
            here = Endpoint(on_made=lambda: loop.call_soon(dialing.cancel) if turns is None else None)
            dialing = asyncio.ensure_future(schemes.connect(listener.address, lambda: here))
            if turns is not None:
                for _ in range(turns):
                    await asyncio.sleep(0)
                dialing.cancel()
            await asyncio.wait([dialing])
            if here.made:
                if not dialing.cancelled():  # it was done before, or could not be held up any more
                    here.end(abort=True)
                await here.over()
            assert here.wrong == []

        loop = asyncio.get_running_loop()
        listener = await schemes.listen(address, accept)
        for turns in (None, *range(20)):
            await connect_and_cancel(turns)
        await eventually(lambda: all(there.lost for there in accepted if there.made))
        listener.close()
        await listener.stop()

    async def test_many_come_at_once(self, address: str) -> None:
        """Each gets a connection of its own, and gets the answers to its own bytes only."""
        accepted: list[Endpoint] = []

        def accept() -> Endpoint:
            accepted.append(Endpoint())
            return accepted[-1]

        async def come(number: int) -> Endpoint:
            here = Endpoint()
            await schemes.connect(listener.address, lambda: here)
            here.transport.write(b"%03d" % number)
            return here

        listener = await schemes.listen(address, accept)
        ends = await asyncio.gather(*(come(number) for number in range(MANY)))
        await eventually(lambda: sum(len(there.received) for there in accepted) == 3 * MANY)
        for there in accepted:
            there.transport.write(there.received)
        for number, here in enumerate(ends):
            await here.got(3)
            assert here.received == b"%03d" % number
            here.end()
        for end in (*ends, *accepted):
            await end.over()
            assert (end.wrong, end.made, end.lost) == ([], 1, 1)
        listener.close()
        await listener.stop()

    @pytest.mark.parametrize("turns", [0, 1, 2, 5])
    async def test_a_listener_may_close_while_they_come(self, address: str, turns: int) -> None:
        """Earlier peers are refused, or have a connection that ends; once it has stopped, no other is accepted."""
        accepted: list[Endpoint] = []
        ends = [Endpoint() for _ in range(MANY)]

        def accept() -> Endpoint:
            accepted.append(Endpoint())
            return accepted[-1]

        async def come(here: Endpoint) -> None:
            with contextlib.suppress(OSError):
                await schemes.connect(listener.address, lambda: here)

        listener = await schemes.listen(address, accept)
        coming = asyncio.gather(*map(come, ends))
        for _ in range(turns):
            await asyncio.sleep(0)
        listener.close()
        await listener.stop()
        await coming
        await eventually(lambda: all(there.made for there in accepted))
        for there in accepted:
            there.end(abort=True)
        for end in (*accepted, *(here for here in ends if here.made)):
            await end.over()
            assert (end.wrong, end.made, end.lost) == ([], 1, 1)
        async with connected(address):
            pass
