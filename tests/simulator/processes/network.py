"""A network of sockets as a kernel has them, which the seed makes slow, narrow, deaf and broken.

Bytes of one connection arrive in order, each way after a latency of its own, and are read in pieces of any size. A
socket takes as much as its way and its peer have room for. When an end is closed, the peer hears of that behind what is
under way: by the end of the stream, or by a reset if it was closed over bytes that it had not read.
"""

from __future__ import annotations

import asyncio
import errno
import os
import selectors
import socket
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from netchannel import Timing
from netchannel.transports.sockets import connect_with, listen_on

from .loop import TURN_S, Pollable, ProcessLoop, Room
from .plugs import Plug

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from netchannel.address import TcpAddress
    from netchannel.transports import Listener, MakeProtocol


def _error(code: int) -> OSError:
    return OSError(code, os.strerror(code))


class Socket(Pollable):
    """One end of a connection, as much of a `socket.socket` as asyncio asks for."""

    family, type, proto = socket.AF_UNIX, socket.SOCK_STREAM, 0

    def __init__(self, network: Network, loop: ProcessLoop, name: str) -> None:
        self.network = network
        self.loop = loop
        self.name = name
        self.descriptor = next(network.room.descriptors)
        self.closed = False
        self.peer: Socket | None = None  # None before there is a connection
        self.latency_s = 0.0  # of what is sent here
        self.room = 0  # bytes that can be sent now
        self.inbox = bytearray()
        self.at_end = False
        self.error: OSError | None = None
        self.deaf = False  # nothing arrives here any more, and nobody is told
        self.spoilt: tuple[float, int] | None = (
            None  # where what arrives next is changed: its part, and the bit
        )
        self._last_due = 0.0  # when the last of what was sent arrives
        loop.open[self.descriptor] = self

    def __repr__(self) -> str:
        return f"<{self.descriptor} of {self.loop.name} to {self.name}>"

    # -- what asyncio asks

    def fileno(self) -> int:
        return -1 if self.closed else self.descriptor

    def setblocking(self, flag: bool) -> None:
        """It never blocks."""

    def getsockname(self) -> str:
        return ""

    def getpeername(self) -> str:
        return self.name

    def shutdown(self, how: int) -> None:
        """The end of what is said here; the peer may go on."""
        if self.peer is not None and self.error is None:
            self.carry(self.peer.hear_end)

    def ready(self) -> int:
        if self.error is not None:
            return selectors.EVENT_READ | selectors.EVENT_WRITE
        readable = selectors.EVENT_READ if self.inbox or self.at_end else 0
        return readable | (selectors.EVENT_WRITE if self.room > 0 else 0)

    def recv_into(self, buffer: Any) -> int:
        if not self.inbox:
            if self.error is not None:
                raise self.error
            if self.at_end:
                return 0
            raise BlockingIOError
        size = min(len(buffer), len(self.inbox))
        if size > 1 and self.network.room.random.random() < self.network.cut_reads:
            size = self.network.room.random.randint(1, size)
        buffer[:size] = self.inbox[:size]
        del self.inbox[:size]
        if self.peer is not None:
            self.peer.room += size
        return size

    def send(self, data: Any) -> int:
        if self.error is not None:
            raise self.error
        assert self.peer is not None
        size = min(len(data), self.room)
        if not size:
            raise BlockingIOError
        self.room -= size
        self.carry(partial(self.peer.arrive, bytes(data[:size])))
        return size

    def sendmsg(self, buffers: Sequence[Any]) -> int:
        return self.send(b"".join(buffers))

    def close(self) -> None:
        if self.closed:
            return
        self._forget()
        if self.peer is not None and self.error is None:
            self.carry(self.peer.hear_reset if self.inbox else self.peer.hear_end)

    # -- what the network does

    def _forget(self) -> None:
        self.closed = True
        del self.loop.open[self.descriptor]
        self.network.sockets.pop(self, None)

    def carry(self, what: Callable[[], None], late_s: float = 0.0) -> None:
        """Have ``what`` happen at the other end, behind all that was sent before."""
        due = self.network.room.now + self.network.delay() + self.latency_s + late_s
        self._last_due = max(due, self._last_due)
        self.network.room.at(self._last_due, what)

    def arrive(self, data: bytes) -> None:
        """Bytes of the peer."""
        if self.deaf or (self.at_end and not self.closed):
            return
        if self.closed:
            assert self.peer is not None
            self.carry(self.peer.hear_reset)
            return
        if self.spoilt is not None:
            part, bit = self.spoilt
            self.spoilt = None
            data = _changed(data, int(part * len(data)), bit)
        self.inbox += data

    def hear_end(self) -> None:
        """The peer has closed its end."""
        if not self.deaf:
            self.at_end = True

    def hear_reset(self) -> None:
        """There is no connection any more. Linux still gives out what has arrived, other systems do not."""
        if self.deaf or self.closed or self.error is not None:
            return
        if self.network.room.random.random() < 0.5:
            self.inbox.clear()
        self.error = _error(errno.ECONNRESET)

    def break_down(self, code: int) -> None:
        """This end is lost, for a reason of its own: the peer hears nothing of it here."""
        self.inbox.clear()
        self.error = _error(code)

    def vanish(self) -> None:
        """The machine is gone: nothing is said to the peer."""
        self.deaf = True
        if not self.closed:
            self._forget()


def _changed(data: bytes, place: int, bit: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


class _Listening(Pollable):
    """A socket that listens."""

    family = socket.AF_UNIX

    def __init__(self, network: Network, loop: ProcessLoop, address: str) -> None:
        self.descriptor = next(network.room.descriptors)
        self.loop = loop
        self.backlog: deque[Socket] = deque()
        self._network = network
        self._address = address
        loop.open[self.descriptor] = self

    def __repr__(self) -> str:
        return f"<{self.descriptor} of {self.loop.name}, listening at {self._address}>"

    def fileno(self) -> int:
        return self.descriptor

    def setblocking(self, flag: bool) -> None:
        """It never blocks."""

    def getsockname(self) -> str:
        return self._address

    def ready(self) -> int:
        return selectors.EVENT_READ if self.backlog else 0

    def accept(self) -> tuple[Socket | socket.socket, str]:
        network = self._network
        if network.room.now < network.no_descriptors_until:
            raise _error(errno.EMFILE)
        if not self.backlog:
            raise BlockingIOError
        connection = self.backlog.popleft()
        return network.plug(connection).near if network.is_real else connection, connection.name

    def close(self) -> None:
        del self.loop.open[self.descriptor]
        if self._network.listening.get(self._address) is self:
            del self._network.listening[self._address]
        for connection in self.backlog:
            connection.close()


class Network:
    """All connections, and what is wrong with new ones; a transport, too, in the place of TCP's."""

    def __init__(self, room: Room, *, is_real: bool = False) -> None:
        self.room = room
        self.is_real = is_real  # its sockets are real ones, as OpenSSL needs them
        room.network = self
        random = room.random
        self.latency_s = random.choice([0.0, 0.0002, 0.0002, 0.05, 0.5])  # each way of a connection, at most
        self.delay_s = 0.0  # of everything, at most, for a while
        self.window = random.choice(
            [300, 5000, 1 << 16]
        )  # bytes that a way holds, with those that nobody has read
        self.cut_reads = random.choice([0.0, 0.2, 0.9])
        self.refuses_until = self.hangs_until = self.no_descriptors_until = 0.0
        self.slow_dials = 0.0  # the part of connects that take about as long as anybody waits
        self.patience_s = Timing().handshake_s
        self.sockets: dict[Socket, None] = {}
        self.listening: dict[str, _Listening] = {}
        self.plugs: list[Plug] = []  # that there ever were
        self.made = 0

    def delay(self) -> float:
        """What everything takes at the moment."""
        return self.room.random.random() * self.delay_s if self.delay_s else 0.0

    def plug(self, end: Socket) -> Plug:
        """A real socket in the place of ``end``."""
        self.plugs.append(plug := Plug(end))
        return plug

    def carry(self) -> None:
        """Whatever can go on between real sockets and the network."""
        for plug in self.plugs:
            plug.carry()

    def close(self) -> None:
        """Of real sockets, those that somebody who was killed has left."""
        for plug in self.plugs:
            plug.close()

    async def dial_real(self, where: TcpAddress) -> socket.socket:
        """In the place of TCP's ``dial``."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ProcessLoop)
        return self.plug(await self.dial(loop, str(where))).near

    async def dial(self, loop: ProcessLoop, address: str) -> Socket:
        """A connected socket, as the loop's ``sock_connect`` has it. Raises OSError."""
        random = self.room.random
        here = Socket(self, loop, address)
        here.latency_s = random.random() * self.latency_s
        connected = loop.create_future()

        def answer(error: OSError | None = None) -> None:
            if not loop.alive or connected.done():
                return
            if error is None:
                loop.call_soon_threadsafe(_resolve, connected)
            else:
                loop.call_soon_threadsafe(_fail, connected, error)

        def asked() -> None:
            listening = self.listening.get(address)
            if self.room.now < self.hangs_until or here.deaf:
                return
            back_s = 0.0 if slow_s else random.random() * self.latency_s + self.delay()
            if listening is None or self.room.now < self.refuses_until:
                self.room.after(back_s, partial(answer, _error(errno.ECONNREFUSED)))
                return
            there = Socket(self, listening.loop, f"{address}-{here.descriptor}")
            there.latency_s = random.random() * self.latency_s
            here.peer, there.peer = there, here
            here.room = there.room = self.window
            if here.closed:  # who dialed has given up meanwhile
                there.at_end = True
            else:
                self.sockets[here] = None
            self.sockets[there] = None
            self.made += 1
            listening.backlog.append(there)
            self.room.after(back_s, answer)

        slow_s = 0.0
        if random.random() < self.slow_dials:
            just_in_time_s = self.patience_s - here.latency_s + random.uniform(-2, 3) * TURN_S
            slow_s = random.choice([random.random() * 12, just_in_time_s])
        self.room.after(here.latency_s + self.delay() + slow_s, asked)
        try:
            await connected
        except BaseException:
            here.close()
            raise
        return here

    # -- as a transport

    def check(self, address: str) -> None:
        """All are good."""

    async def connect(self, address: str, make_protocol: MakeProtocol) -> None:
        """As over TCP."""
        loop = asyncio.get_running_loop()
        await connect_with(partial(loop.create_connection, address=address), make_protocol)  # type: ignore[call-overload]

    async def listen(self, address: str, make_protocol: MakeProtocol) -> Listener:
        """As over TCP."""
        if address in self.listening:
            raise _error(errno.EADDRINUSE)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ProcessLoop)
        self.listening[address] = listening = _Listening(self, loop, address)
        return listen_on(address, [listening], make_protocol)  # type: ignore[list-item]

    # -- what goes wrong

    def kill(self, loop: ProcessLoop, how: str) -> None:
        """The process of ``loop`` is gone: its sockets are closed, reset, or ``vanish`` with the machine."""
        loop.kill()
        for plug in self.plugs:
            if plug.end.loop is loop:
                plug.killed()
        for pollable in list(loop.open.values()):
            if isinstance(pollable, _Listening):
                pollable.close()
            elif isinstance(pollable, Socket):
                if how == "vanish":
                    pollable.vanish()
                elif how == "reset" and pollable.peer is not None:
                    pollable.inbox += b"?"
                    pollable.close()
                else:
                    pollable.close()

    def connected(self) -> list[Socket]:
        """Those of either side."""
        return [each for each in self.sockets if each.peer is not None]


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _fail(future: asyncio.Future[None], error: OSError) -> None:
    if not future.done():
        future.set_exception(error)
