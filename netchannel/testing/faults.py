"""Any transport, with faults: connections that are cut, stall, are slow, or carry a few bytes at a time."""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any, Self, cast

from netchannel.transports import register, schemes, unregister

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from netchannel.transports import Listener, MakeProtocol

_numbers = count(1)


class FaultyTransport:
    """A transport between channels and another one; an async context manager.

    `at` gives the address that leads through it. Both ends of a connection should use that address. Faults
    are drawn from ``seed``:

    - ``lives``: after how many bytes connections are cut, in the order in which they are dialed, both
      directions counted; those after the last are not cut.
    - ``piece``: each read and each write moves at most so many bytes, one at least.
    - ``delay_s``: each write waits up to so long, in order.

    `cut`, `stall` and `resume` act on all connections at once; ``dialed`` counts them. Leaving the context
    ends those that are open.
    """

    dialed: int

    def __init__(
        self, *, seed: int = 0, lives: Iterable[float] = (), piece: int | None = None, delay_s: float = 0.0
    ) -> None:
        self._network = _Network(seed, piece, delay_s)
        self._lives = iter(lives)
        self._scheme = f"faulty{next(_numbers)}"
        self.dialed = 0

    async def __aenter__(self) -> Self:
        register(self._scheme, self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unregister(self._scheme)
        self.resume()
        for wire in list(self._network.wires):
            wire.abort()
        while self._network.wires:
            self._network.changed.clear()
            await self._network.changed.wait()

    def at(self, address: str) -> str:
        """``address`` by way of these faults."""
        return f"{self._scheme}:{address}"

    @property
    def connections(self) -> int:
        """How many connections are open now."""
        return sum(wire.dialed for wire in self._network.wires)

    @property
    def cuts(self) -> int:
        """How many connections were cut."""
        return self._network.cuts

    def cut(self) -> None:
        """Cut every connection now."""
        for wire in list(self._network.wires):
            if wire.dialed:
                wire.cut()

    def stall(self) -> None:
        """Let nothing pass from now on, on old and new connections: no byte, and no end."""
        self._network.stalled = True
        self._govern()

    def resume(self) -> None:
        """Let pass what `stall` held up."""
        self._network.stalled = False
        self._govern()

    def _govern(self) -> None:
        for wire in list(self._network.wires):
            wire.govern()

    def calm(self) -> None:
        """End all faults, on old and new connections, except those that are asked for by `cut` and `stall`."""
        self._lives = iter(())
        self._network.piece, self._network.delay_s = None, 0.0
        for wire in list(self._network.wires):
            wire.calm()

    # -- as the table of schemes sees it

    def check(self, address: str) -> None:
        """Check an address as the wrapped transport does."""
        schemes.check(self._behind(address))

    async def connect(self, address: str, make_protocol: MakeProtocol) -> None:
        """Connect by the wrapped transport."""
        life = next(self._lives, math.inf)
        self.dialed += 1
        await schemes.connect(
            self._behind(address), lambda: _Wire(self._network, make_protocol(), dialed=True, life=life)
        )

    async def listen(self, address: str, make_protocol: MakeProtocol) -> Listener:
        """Listen by the wrapped transport."""
        listener = await schemes.listen(
            self._behind(address), lambda: _Wire(self._network, make_protocol(), dialed=False, life=math.inf)
        )
        listener.address = self.at(listener.address)
        return listener

    def _behind(self, address: str) -> str:
        return address.removeprefix(f"{self._scheme}:")


class _Network:
    """The common state of the connections of one `FaultyTransport`."""

    def __init__(self, seed: int, piece: int | None, delay_s: float) -> None:
        self._random = random.Random(seed)  # noqa: S311 - faults that can be repeated
        self.piece = piece
        self.delay_s = delay_s
        self.stalled = False
        self.wires: dict[_Wire, None] = {}
        self.changed = asyncio.Event()
        self.cuts = 0

    def draw_piece(self) -> float:
        """How many bytes to move at a time."""
        return math.inf if self.piece is None else self._random.randint(1, self.piece)

    def draw_delay(self) -> float:
        """How long to wait before the next write."""
        return self._random.uniform(0, self.delay_s) if self.delay_s else 0.0


class _Wire(asyncio.BufferedProtocol, asyncio.Transport):
    """One end of a connection: the protocol of the wrapped transport, the transport of the wrapped protocol."""

    def __init__(
        self, network: _Network, protocol: asyncio.BufferedProtocol, *, dialed: bool, life: float
    ) -> None:
        super().__init__()
        self._network = network
        self._protocol = protocol
        self.dialed = dialed
        self._left = life
        self._loop = asyncio.get_running_loop()
        self._behind: asyncio.Transport
        self._held: deque[memoryview] = (
            deque()
        )  # written by the protocol, and not yet to the wrapped transport
        self._held_bytes = 0
        self._high, self._low = 1 << 16, 1 << 14
        self._paused = False  # the wrapped protocol is paused
        self._writable = True  # the wrapped transport takes more
        self._wanted = self._reading = (
            True  # what the wrapped protocol wants, and the state of the wrapped transport
        )
        self._closing = False
        self._over = False  # the protocol before knows that the connection is lost
        self._timer: asyncio.TimerHandle | None = None

    # -- the protocol of the wrapped transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._behind = cast("asyncio.Transport", transport)
        self._network.wires[self] = None
        self._protocol.connection_made(self)
        self.govern()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._held.clear()
        del self._network.wires[self]
        self._network.changed.set()
        self._lose(exc)

    def _lose(self, exc: Exception | None) -> None:
        if not self._over:
            self._over = True
            self._protocol.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        buffer = memoryview(cast("bytearray", self._protocol.get_buffer(sizehint)))
        return buffer[: int(min(len(buffer), self._left, self._network.draw_piece()))]

    def buffer_updated(self, nbytes: int) -> None:
        self._protocol.buffer_updated(nbytes)
        self._spend(nbytes)

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._pass_on()

    # -- the transport of the protocol before

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._behind.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 1 << 16 if high is None else high
        self._low = self._high // 4 if low is None else low
        self._behind.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._held_bytes + self._behind.get_write_buffer_size()

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        for data in list_of_data:
            if len(view := memoryview(data).cast("B")):
                self._held.append(view)
                self._held_bytes += len(view)
        self._pass_on()
        if self._held_bytes > self._high and not self._paused:
            self._paused = True
            self._protocol.pause_writing()

    def pause_reading(self) -> None:
        self._wanted = False
        self.govern()

    def resume_reading(self) -> None:
        self._wanted = True
        self.govern()

    def is_reading(self) -> bool:
        return self._wanted

    def is_closing(self) -> bool:
        return self._closing or self._behind.is_closing()

    def close(self) -> None:
        self._closing = True
        self._pass_on()

    def abort(self) -> None:
        self._closing = True
        if self._network.stalled:
            self._loop.call_soon(self._lose, None)  # the peer is to find out on its own
        else:
            self._behind.abort()

    # -- faults

    def calm(self) -> None:
        """Live without end, and do not wait any longer."""
        self._left = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._waited()

    def cut(self) -> None:
        """End the connection, for both sides."""
        if not self._behind.is_closing():
            self._network.cuts += 1
            self._behind.abort()

    def govern(self) -> None:
        """Do what the protocol before and the faults want by now."""
        if self._over:
            self._behind.abort()
            return
        reading = self._wanted and not self._network.stalled
        if reading is not self._reading and not self._behind.is_closing():
            self._reading = reading
            if reading:
                self._behind.resume_reading()
            else:
                self._behind.pause_reading()
        self._pass_on()

    def _pass_on(self) -> None:
        """Write what may be written now."""
        while self._held and self._passable():
            view = self._held.popleft()
            size = int(min(len(view), self._left, self._network.draw_piece()))
            if size < len(view):
                self._held.appendleft(view[size:])
            self._held_bytes -= size
            self._behind.write(view[:size])
            self._spend(size)
            if delay := self._network.draw_delay():
                self._timer = self._loop.call_later(delay, self._waited)
        if self._paused and self._held_bytes <= self._low:
            self._paused = False
            self._protocol.resume_writing()
        if self._closing and not self._held and not self._over:
            self._behind.close()

    def _passable(self) -> bool:
        return (
            self._writable
            and self._timer is None
            and not self._network.stalled
            and not self._behind.is_closing()
        )

    def _waited(self) -> None:
        self._timer = None
        self._pass_on()

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left <= 0:
            self.cut()
