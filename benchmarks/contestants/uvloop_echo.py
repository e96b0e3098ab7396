"""Protocols on uvloop and nothing else: no lengths, no acknowledgements. The bound that there is for round trips."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from benchmarks.trips import Echoes, Trips
from benchmarks.work import Result, Work


class _Echo(asyncio.Protocol):
    """Sends back what comes; one message is one read, as there is never more than one on the way."""

    def __init__(self, echoes: Echoes, done: asyncio.Event) -> None:
        self._echoes, self._done = echoes, done
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)
        self._echoes.count += 1

    def connection_lost(self, error: Exception | None) -> None:
        self._done.set()


class _Ask(asyncio.Protocol):
    """Sends the next when an answer has come."""

    def __init__(self, trips: Trips, done: asyncio.Future[None]) -> None:
        self._trips, self._done = trips, done
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._trips.begin())

    def data_received(self, data: bytes) -> None:
        try:
            message = self._trips.turn(data)
        except Exception as error:  # noqa: BLE001 - a loop would log it and go on: whoever waits is to hear of it
            self._done.set_exception(error)
            return
        if message is None:
            self._done.set_result(None)
        else:
            self._transport.write(message)


async def echo(work: Work, ready: Callable[[str], None]) -> Result:
    """Answer one connection."""
    echoes, done = Echoes(work), asyncio.Event()
    server = await asyncio.get_running_loop().create_server(lambda: _Echo(echoes, done), "127.0.0.1", 0)
    ready(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await done.wait()
    server.close()
    return echoes.result()


async def ask(work: Work, address: str) -> Result:
    """One message there and back, and then the next."""
    host, port = address.split(":")
    loop = asyncio.get_running_loop()
    trips, done = Trips(work), loop.create_future()
    transport, _ = await loop.create_connection(lambda: _Ask(trips, done), host, int(port))
    await done
    transport.close()
    return trips.result()
