"""One end of a connection that is encrypted, between TCP's transport and the protocol of whoever sends and receives."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, cast

from .writing import write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Data = bytes | bytearray | memoryview[Any]

READ_SIZE = 1 << 18
"""Bytes that are taken from TCP at a time."""
PIECE = 1 << 16
"""Bytes that are encrypted at a time: OpenSSL's buffer of a connection grows to that, and stays so."""
SMALL = 1 << 12
"""Buffers below this are joined: each one costs a call, and a record at the least."""
RECORD = 1 << 14
"""The most that a record holds."""
RECORDS = 1 << 24
"""A key of AES-GCM is good for so many records (RFC 8446, 5.5), a quarter of a TB. Python cannot change it; so the
connection ends then, and another one takes its place."""


class _Slab(threading.local):
    """Where all connections of a thread read to: what is there goes on at once."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(READ_SIZE))


_slab = _Slab()


class TlsConnection(asyncio.BufferedProtocol, asyncio.Transport):
    """One end: the protocol of TCP's transport, and the transport of whoever sends and receives.

    The end of TLS (``close_notify``) and that of TCP are the same here: a stream has an end of its own.
    """

    def __init__(self, context: ssl.SSLContext, *, server_side: bool, host: str | None = None) -> None:
        super().__init__()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side, host)
        # As they are, and not as their stubs have it: from and to memory of any kind.
        self._read = cast("Callable[[int, memoryview], int]", self._tls.read)
        self._write = cast("Callable[[Data], int]", self._tls.write)
        self._tcp: asyncio.Transport
        self._loop = asyncio.get_running_loop()
        self._slab = _slab.view
        self._protocol: asyncio.BufferedProtocol | None = None
        self._established = False
        self._records = 0  # that were encrypted
        self._error: Exception | None = None
        self._early: list[Data] = []  # written before the handshake was done
        self._early_size = 0
        self._high = 1 << 16
        self._full = self._held = False  # TCP's buffer is; the protocol was told to wait
        self._reading = True
        self._delivering = False
        self._closing = False
        self._over = True  # there is no connection: not yet, or not any more

    # -- TCP's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._tcp = cast("asyncio.Transport", transport)
        self._over = False

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = self._closing = True
        self._early.clear()
        if self._protocol is not None:
            self._protocol.connection_lost(self._error or exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._slab

    def buffer_updated(self, nbytes: int) -> None:
        if self._error is None:  # what comes behind a failure is dropped
            self._take(self._slab[:nbytes])

    def pause_writing(self) -> None:
        self._full = True
        self._govern()

    def resume_writing(self) -> None:
        self._full = False
        self._govern()

    def _govern(self) -> None:
        """Tell the protocol to wait, or to go on, if that is news."""
        held = self._full or self._early_size > self._high
        if held is self._held or self._protocol is None or self._over:
            return
        self._held = held
        if held:
            self._protocol.pause_writing()
        else:
            self._protocol.resume_writing()

    # -- the handshake

    def _take(self, chunk: memoryview) -> None:
        """Bytes have come."""
        self._incoming.write(chunk)
        if self._established or self._shake():
            self._deliver()

    def _shake(self) -> bool:
        """Go on with the handshake; whether it is done."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            self._flush()  # the alert that says why
            self._fail(self._explained(error))
            return False
        self._flush()
        self._established = True
        self._open()
        return True

    def _open(self) -> None:
        """The handshake is done: what has waited for it is written."""
        early, self._early, self._early_size = self._early, [], 0
        if early:
            self._seal(early)
        if self._closing:
            self._end()
            return
        if not self._reading:
            self._tcp.pause_reading()
        self._govern()

    def _fail(self, error: Exception) -> None:
        """Nothing will come of this connection; its protocol hears why."""
        self._error = error
        self._closing = True
        self._tcp.close()

    @abstractmethod
    def _explained(self, error: ssl.SSLError) -> Exception:
        """What went wrong, as this side's protocol is to hear it."""

    def _flush(self) -> None:
        if self._outgoing.pending and not self._tcp.is_closing():
            self._tcp.write(self._outgoing.read())

    # -- reading

    def pause_reading(self) -> None:
        self._reading = False
        if self._established and not self._over:
            self._tcp.pause_reading()

    def resume_reading(self) -> None:
        self._reading = True
        if self._established and not self._over:
            self._tcp.resume_reading()
            self._loop.call_soon(self._deliver)

    def is_reading(self) -> bool:
        return self._reading

    def _deliver(self) -> None:
        """Give the protocol what has come, as far as it reads."""
        if self._delivering or self._protocol is None:
            return
        self._delivering = True
        try:
            while self._reading and not self._closing and (self._incoming.pending or self._tls.pending()):
                size, end = self._decrypt(memoryview(self._protocol.get_buffer(-1)))
                if size:
                    self._protocol.buffer_updated(size)
                if isinstance(end, ssl.SSLError):
                    self._flush()
                    self._fail(self._explained(end))
                elif end:
                    self.close()
                elif not size:
                    break
        except Exception:
            self.abort()
            raise
        finally:
            self._delivering = False
        if not self._closing:
            self._flush()  # an answer of TLS itself, e.g. to a change of keys

    def _decrypt(self, buffer: memoryview) -> tuple[int, ssl.SSLError | bool]:
        """Fill ``buffer`` from whole records: with how many bytes, and whether that was the end, or an error."""
        size, room = 0, len(buffer)
        try:
            while size < room and (self._incoming.pending or self._tls.pending()):
                count = self._read(room - size, buffer[size:])
                if not count:
                    return size, True
                size += count
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            return size, error
        return size, False

    # -- writing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 1 << 16 if high is None else high
        self._tcp.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._early_size + self._tcp.get_write_buffer_size()

    def write(self, data: Data) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[Data]) -> None:
        if self._closing:
            return
        if self._established:
            self._seal(list_of_data)
            return
        for data in list_of_data:
            self._early.append(data)
            self._early_size += memoryview(data).nbytes
        self._govern()

    def _seal(self, list_of_data: Iterable[Data]) -> None:
        """Encrypt and write: small buffers together, large ones in pieces."""
        sealed: list[bytes] = []
        small: list[memoryview] = []
        size = 0
        for data in list_of_data:
            view = memoryview(data).cast("B")
            if len(view) < SMALL and size < PIECE:
                small.append(view)
                size += len(view)
                continue
            self._encrypt(b"".join(small), sealed)
            self._encrypt(view, sealed)
            small, size = [], 0
        self._encrypt(b"".join(small), sealed)
        if sealed:
            write_all(self._tcp, sealed)
        if self._records >= RECORDS and self._error is None:
            self._error = ConnectionError(
                f"{self._records} records of TLS are as many as one key is good for"
            )
            self._loop.call_soon(self.close)

    def _encrypt(self, data: Data, sealed: list[bytes]) -> None:
        for start in range(0, len(data), PIECE):
            self._write(data[start : start + PIECE])
            sealed.append(self._outgoing.read())
            self._records += 1 + len(sealed[-1]) // RECORD

    # -- closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._tcp.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._closing or self._tcp.is_closing()

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self._established or not self._early:
            self._end()

    def _end(self) -> None:
        """Close behind everything that was written."""
        if self._established:
            with contextlib.suppress(ssl.SSLError):  # it would like to read the other side's end
                self._tls.unwrap()
            self._flush()
        self._tcp.close()

    def abort(self) -> None:
        self._closing = True
        if not self._over:
            self._tcp.abort()
