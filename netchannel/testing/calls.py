"""Calls of services: answered each with its own answer, over connections that hold and that do not."""

from __future__ import annotations

import asyncio
import random
from itertools import count
from typing import TYPE_CHECKING

import pytest

from netchannel import Caller, CallFailed, CallTimedOut, ReceiverServer

from .deadlines import eventually
from .faults import FaultyTransport
from .suite import QUICK, Suite

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGE = 48 << 20
MANY = 300
CUTS = 50
LONG_S = 60.0


class Calls(Suite):
    """Services of ``register_service``, and their callers."""

    async def test_calls_are_answered_each_with_its_own(self, receiver: ReceiverServer) -> None:
        """At once, or later, in whatever order; a service's exception reaches the caller, and the service continues."""

        async def later(body: bytes) -> bytes:
            await asyncio.sleep(random.random() / 100)  # noqa: S311 - any order will do
            return body * 2

        def never(body: bytes) -> bytes:
            raise KeyError(body)

        async with (
            Caller(receiver.address, timing=QUICK) as caller,
            receiver.register_service("at once", bytes.upper),
            receiver.register_service("later", later),
            receiver.register_service("never", never),
        ):
            for name, times in (("at once", 1), ("later", 2)):
                bodies = [b"%d" % number for number in range(MANY)]
                answers = await asyncio.gather(
                    *(caller.call(name, body, deadline_s=LONG_S) for body in bodies)
                )
                assert answers == [body * times for body in bodies]
            with pytest.raises(CallFailed, match=r"service 'never' .*KeyError: b'key'") as failure:
                await caller.call("never", b"key", deadline_s=LONG_S)
            assert failure.value.said == "KeyError: b'key'"
            assert await caller.call("at once", b"x", deadline_s=LONG_S) == b"X"

    async def test_a_large_body_does_not_hold_up_small_ones(self, receiver: ReceiverServer) -> None:
        """Both ways: while it is under way, others are made and answered."""
        body = random.randbytes(LARGE)  # noqa: S311 - any bytes will do
        async with (
            Caller(receiver.address, timing=QUICK) as caller,
            receiver.register_service("echo", lambda body: body),
        ):
            await caller.call("echo", b"x", deadline_s=LONG_S)
            large = asyncio.create_task(caller.call("echo", body, deadline_s=LONG_S))
            answered = 0
            while not large.done():
                await caller.call("echo", b"x", deadline_s=LONG_S)
                answered += 1
            assert await large == body
            assert (
                answered > 6
            )  # of the hundreds of pieces, buffers have a part; after all of them it would be 3

    async def test_calls_wait_for_a_service_and_no_longer_than_they_may(self, address: str) -> None:
        """For the server to be there, and for the service to be registered."""
        async with ReceiverServer(address, timing=QUICK) as receiver, Caller(receiver.address) as caller:
            early = asyncio.create_task(caller.call("s", b"x", deadline_s=LONG_S))
            while True:  # a busy machine may not have got the denial by then
                with pytest.raises(CallTimedOut) as failure:
                    await caller.call("s", b"x", deadline_s=0.2)
                if failure.value.state == "unregistered":
                    break
            assert "register_service" in str(failure.value)
            async with receiver.register_service("s", bytes.upper):
                assert await early == b"X"

    async def test_work_that_nobody_waits_for_is_stopped(self, receiver: ReceiverServer) -> None:
        """For a cancelled call, one that took too long, and those of a closed service."""
        begun = stopped = 0

        async def work(body: bytes) -> bytes:
            nonlocal begun, stopped
            begun += 1
            try:
                await asyncio.Event().wait()
            finally:
                stopped += 1
            return body

        async with Caller(receiver.address, timing=QUICK) as caller:
            service = receiver.register_service("s", work)
            while not begun:  # a busy machine may not have made the call by then
                with pytest.raises(CallTimedOut) as failure:
                    await caller.call("s", b"x", deadline_s=0.2)
            assert failure.value.state == "unanswered"
            await eventually(lambda: stopped == begun)
            late = begun
            calling = asyncio.create_task(caller.call("s", b"x", deadline_s=LONG_S))
            await eventually(lambda: begun == late + 1)
            calling.cancel()
            await eventually(lambda: stopped == late + 1)
            calling = asyncio.create_task(caller.call("s", b"x", deadline_s=LONG_S))
            await eventually(lambda: begun == late + 2)
            await service.close()
            with pytest.raises(CallFailed, match="service 's' was closed before it had answered"):
                await calling
            assert (begun, stopped) == (late + 2, late + 2)

    async def test_calling_through_cuts_at_random_bytes(self, address: str) -> None:
        """Every call gets its own answer."""
        draw = random.Random(5)  # noqa: S311 - faults that can be repeated
        lives: Iterator[int] = (1 + int(draw.expovariate(1 / 30_000)) for _ in count())
        async with (
            FaultyTransport(lives=lives) as network,
            ReceiverServer(network.at(address), timing=QUICK) as receiver,
            receiver.register_service("reversed", lambda body: body[::-1]),
            Caller(receiver.address, timing=QUICK) as caller,
        ):

            async def call() -> None:
                while network.cuts < CUTS:
                    body = draw.randbytes(draw.choice((10, 100, 3000)))
                    assert await caller.call("reversed", body, deadline_s=LONG_S) == body[::-1]

            await asyncio.gather(*(call() for _ in range(10)))
            network.calm()

    async def test_calls_are_answered_by_a_server_that_comes_back(self, address: str) -> None:
        """Those that were under way, too: they are made again, and so may be done twice."""
        begun = 0

        async def work(body: bytes) -> bytes:
            nonlocal begun
            begun += 1
            await asyncio.Event().wait()
            return body

        server = ReceiverServer(address, timing=QUICK)
        await server.__aenter__()
        server.register_service("s", work)
        async with Caller(server.address, timing=QUICK) as caller:
            calls = [asyncio.create_task(caller.call("s", b"x", deadline_s=LONG_S)) for _ in range(10)]
            await eventually(lambda: begun == 10)
            there = server.address
            await server.__aexit__(None, None, None)
            async with ReceiverServer(there, timing=QUICK) as again:
                again.register_service("s", bytes.upper)
                assert await asyncio.gather(*calls) == [b"X"] * 10
