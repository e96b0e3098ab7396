"""A way to a server that fails: questions are lost, answers are late, lost or said to be errors, by a seed."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

_CHUNK = 1 << 16
_REFUSED = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Faults:
    """How likely it is, of each piece that somebody sends, what becomes of it.

    It does not reach the server, and the connection is cut (``lost``); it does, and the connection is cut where the
    answer would come (``unclear``), or HTTP's error 500 comes instead (``refused``); the answer takes a while
    (``slow``). ``after`` pieces of a connection come and go in any case.
    """

    lost: float = 0.0
    unclear: float = 0.0
    refused: float = 0.0
    slow: float = 0.0
    slow_s: float = 0.2
    after: int = 0


@dataclass
class Way:
    """A port of loopback through which the server is reached. ``seen`` counts what has happened."""

    target: int
    faults: Faults
    draw: random.Random
    loop: asyncio.AbstractEventLoop
    port: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    going: asyncio.Event = field(default_factory=asyncio.Event)

    def stand_still(self) -> None:
        """Nothing comes or goes any more, and no connection is cut."""
        self.going.clear()

    def go_on(self) -> None:
        """All goes on; from any thread."""
        self.loop.call_soon_threadsafe(self.going.set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            theirs, ours = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        fate: list[str] = []
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._ask(reader, ours, fate))
                group.create_task(self._answer(theirs, writer, fate))
        except* (_Cut, ConnectionError):
            pass
        finally:
            for each in (writer, ours):
                each.transport.abort()

    async def _ask(self, reader: asyncio.StreamReader, ours: asyncio.StreamWriter, fate: list[str]) -> None:
        pieces = 0
        while data := await reader.read(_CHUNK):
            await self.going.wait()
            what = self._fate() if pieces >= self.faults.after else ""
            pieces += 1
            if what:
                self.seen[what] += 1
                if what == "lost":
                    raise _Cut
                fate.append(what)
            ours.write(data)
            await ours.drain()
        raise _Cut

    async def _answer(
        self, theirs: asyncio.StreamReader, writer: asyncio.StreamWriter, fate: list[str]
    ) -> None:
        while data := await theirs.read(_CHUNK):
            await self.going.wait()
            what = fate.pop() if fate else ""
            if what == "unclear":
                raise _Cut
            if what == "refused":
                writer.write(_REFUSED)
                await writer.drain()
                writer.close()
                raise _Cut
            if what == "slow":
                await asyncio.sleep(self.faults.slow_s)
            writer.write(data)
            await writer.drain()
        raise _Cut

    def _fate(self) -> str:
        drawn = self.draw.random()
        for name in ("lost", "unclear", "refused", "slow"):
            drawn -= getattr(self.faults, name)
            if drawn < 0:
                return name
        return ""


class _Cut(Exception):
    """The connection ends here."""


@contextmanager
def unsteady(target: int, faults: Faults, seed: int) -> Iterator[Way]:
    """One that is there for a while, on a thread of its own."""
    loop = asyncio.new_event_loop()
    way = Way(target, faults, random.Random(seed), loop)
    way.going.set()
    ready = threading.Event()
    stop = asyncio.Event()

    async def run() -> None:
        server = await asyncio.start_server(way.serve, "127.0.0.1", 0)
        way.port = server.sockets[0].getsockname()[1]
        ready.set()
        await stop.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await server.wait_closed()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    ready.wait()
    try:
        yield way
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
