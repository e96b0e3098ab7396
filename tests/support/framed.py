"""A transport of somebody else: records of a length and bytes, over TCP; and transports with one fault each."""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import struct
from collections.abc import Iterable
from typing import Any, cast

from netchannel.transports import Listener, MakeProtocol, connect_with

_LENGTH = struct.Struct(">I")
_LONGEST = 10_000


class FramedConnection(asyncio.Protocol, asyncio.Transport):
    """One end: a protocol of TCP's transport, and the transport of whoever sends and receives."""

    def __init__(self, protocol: asyncio.BufferedProtocol) -> None:
        super().__init__()
        self._protocol = protocol
        self._tcp: asyncio.Transport
        self._unread = bytearray()  # records, or parts of them
        self._record = 0  # bytes of the record that are still to be delivered
        self._reading = True
        self._delivering = False

    # -- TCP's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._tcp = cast("asyncio.Transport", transport)
        self._protocol.connection_made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def data_received(self, data: bytes) -> None:
        self._unread += data
        self._deliver()

    def _deliver(self) -> None:
        if self._delivering:
            return
        self._delivering = True
        while self._reading and not self._tcp.is_closing():
            if not self._record:
                if len(self._unread) < _LENGTH.size:
                    break
                (self._record,) = _LENGTH.unpack_from(self._unread)
                del self._unread[: _LENGTH.size]
            if not self._unread:
                break
            buffer = cast("memoryview", self._protocol.get_buffer(self._record))
            size = min(len(buffer), self._record, len(self._unread))
            buffer[:size] = self._unread[:size]
            del self._unread[:size]
            self._record -= size
            self._protocol.buffer_updated(size)
        self._delivering = False

    # -- the user's side

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._tcp.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._tcp.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._tcp.get_write_buffer_size()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        data = b"".join(list_of_data)
        for start in range(0, len(data), _LONGEST):
            self.write_record(data[start : start + _LONGEST])

    def write_record(self, record: bytes) -> None:
        self._tcp.write(_LENGTH.pack(len(record)) + record)

    def pause_reading(self) -> None:
        self._reading = False
        self._tcp.pause_reading()

    def resume_reading(self) -> None:
        self._reading = True
        self._tcp.resume_reading()
        asyncio.get_running_loop().call_soon(self._deliver)

    def is_closing(self) -> bool:
        return self._tcp.is_closing()

    def close(self) -> None:
        self._tcp.close()

    def abort(self) -> None:
        self._tcp.abort()


class Dropping(FramedConnection):
    """Loses every fortieth record."""

    records = 0

    def write_record(self, record: bytes) -> None:
        self.records += 1
        if self.records % 40:
            super().write_record(record)


class Deaf(FramedConnection):
    """Reads on, whether it is wanted or not, and never tells anybody to wait."""

    def pause_reading(self) -> None:
        pass

    def pause_writing(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def resume_writing(self) -> None:
        pass


class Unforgetting(FramedConnection):
    """Never says that a connection is lost."""

    def connection_lost(self, exc: Exception | None) -> None:
        pass


class Unacknowledged(FramedConnection):
    """Says of its loss what a socket says whose bytes are not acknowledged any more."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))


class FramedTransport:
    """``scheme:host:port``."""

    def __init__(self, scheme: str, connection: type[FramedConnection] = FramedConnection) -> None:
        self._scheme = scheme
        self._connection = connection

    def check(self, address: str) -> None:
        self._split(address)

    def _split(self, address: str) -> tuple[str, int]:
        host, _, port = address.removeprefix(f"{self._scheme}:").rpartition(":")
        return host, int(port)

    async def connect(self, address: str, make_protocol: MakeProtocol) -> None:
        host, port = self._split(address)
        create = functools.partial(asyncio.get_running_loop().create_connection, host=host, port=port)
        await connect_with(create, lambda: self._connection(make_protocol()))

    async def listen(self, address: str, make_protocol: MakeProtocol) -> Listener:
        host, port = self._split(address)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: self._connection(make_protocol()), host, port)
        port = server.sockets[0].getsockname()[1]
        return Listener(f"{self._scheme}:{host}:{port}", server.close, server)
