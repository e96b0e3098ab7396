"""One end of a connection that is encrypted.

OpenSSL reads and writes the socket, and the event loop reports when it is ready.

By way of a transport of the event loop's, each byte would be copied twice more in either direction, and
records be handed to the kernel in memory that is new each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from abc import abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Data = bytes | bytearray | memoryview[Any]

READ_SIZE = 1 << 18
"""Bytes that are read until others have their turn."""
RECORD = 1 << 14
"""The most that a record holds."""
PIECE = 1 << 18
"""Bytes that are encrypted by one call, which waits for room in the kernel's buffer with all of them."""
RECORDS = 1 << 24
"""A key of AES-GCM is good for so many records (RFC 8446, 5.5), a quarter of a TB. Python cannot change it.

So the connection ends then, and another one takes its place.
"""


class TlsConnection(asyncio.Transport):
    """One end: a transport, on a socket that it is given by `adopt`.

    The end of TLS (``close_notify``) and that of TCP are the same here: a stream has an end of its own.
    """

    def __init__(self, context: ssl.SSLContext, *, server_side: bool, host: str | None = None) -> None:
        super().__init__()
        self._context, self._server_side, self._host = context, server_side, host
        self._tls: ssl.SSLSocket
        self._read: Callable[[int, memoryview], int]
        self._loop = asyncio.get_running_loop()
        self._protocol: asyncio.BufferedProtocol | None = None
        self._established = False
        self._records = 0  # that were encrypted
        self._error: Exception | None = None
        self._waiting: deque[memoryview] = deque()  # to be encrypted
        self._waiting_size = 0
        self._piece: Data = b""  # what OpenSSL has begun with, and is to be given again
        self._high, self._low = 1 << 16, 1 << 14
        self._blocked = False  # the kernel's buffer is full
        self._held = False  # the protocol was paused
        self._reading = True
        self._watched = False  # the loop reports when there is something to read
        self._closing = False
        self._over = True  # there is no connection: not yet, or not any more

    # -- the socket

    def adopt(self, sock: socket.socket) -> None:
        """Begin on ``sock``, which is connected, and closed with this."""
        sock.setblocking(False)
        try:
            sock.getpeername()  # `wrap_socket` leaves one open whose connection is lost already
            self._tls = self._context.wrap_socket(
                sock,
                server_side=self._server_side,
                server_hostname=self._host,
                do_handshake_on_connect=False,
            )
        except OSError as error:
            sock.close()
            self._closing = True
            if self._protocol is not None:
                self._protocol.connection_made(self)
            self._loop.call_soon(self._lost, error)
            return
        # As it is, and not as its stub has it: to memory of any kind.
        self._read = cast("Callable[[int, memoryview], int]", self._tls.read)
        self._over = False
        self._watch()
        try:
            self._begun()
        except OSError as error:
            self._finish(error)

    @abstractmethod
    def _begun(self) -> None:
        """There is a connection."""

    def _finish(self, error: Exception | None = None) -> None:
        """Close the socket, and notify the protocol in the next turn of the loop."""
        if self._over:
            return
        self._over = self._closing = True
        self._unwatch()
        self._unblock()
        self._waiting.clear()
        self._waiting_size, self._piece = 0, b""
        self._tls.close()
        self._loop.call_soon(self._lost, self._error or error)

    def _lost(self, error: Exception | None) -> None:
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def _watch(self) -> None:
        if not self._watched:
            self._watched = True
            self._loop.add_reader(self._tls, self._readable)

    def _unwatch(self) -> None:
        if self._watched:
            self._watched = False
            self._loop.remove_reader(self._tls)

    def _peek(self, size: int) -> bytes:
        """The first bytes that have come, left where they are; empty at the end."""
        return socket.socket.recv(self._tls, size, socket.MSG_PEEK)

    # -- the handshake

    def _readable(self) -> None:
        if self._over:
            return
        try:
            if self._established:
                self._deliver()
            elif self._error is not None:  # bytes after a failure are dropped, up to the end
                if not socket.socket.recv(self._tls, READ_SIZE):
                    self._finish()
            elif self._recognized():
                self._shake()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._finish(error)

    @abstractmethod
    def _recognized(self) -> bool:
        """True if the bytes are TLS so far."""

    def _shake(self) -> None:
        """Continue the handshake."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._unblock()
        except ssl.SSLWantWriteError:
            self._block()
        except ssl.SSLEOFError:
            self._finish()
        except ssl.SSLError as error:
            self._fail(self._explained(error))
        except OSError as error:
            self._finish(error)
        else:
            self._unblock()
            self._established = True
            self._open()

    def _open(self) -> None:
        """The handshake is done: what has waited for it is written."""
        self._flush()
        if self._closing or not self._reading:
            self._unwatch()

    def _fail(self, error: Exception) -> None:
        """End a connection that has failed; its protocol gets the reason."""
        self._error = error
        self._finish()

    @abstractmethod
    def _explained(self, error: ssl.SSLError) -> Exception:
        """Return the error for this side's protocol."""

    # -- reading

    def pause_reading(self) -> None:
        self._reading = False
        if self._established:
            self._unwatch()

    def resume_reading(self) -> None:
        self._reading = True
        if self._established and not self._over:
            self._watch()
            self._loop.call_soon(self._go_on)  # the rest of a record is here already

    def is_reading(self) -> bool:
        return self._reading

    def _go_on(self) -> None:
        if self._watched and not self._closing:
            self._readable()

    def _deliver(self) -> None:
        """Give the protocol what has come, as far as it reads."""
        assert self._protocol is not None
        left = READ_SIZE
        try:
            while left > 0 and self._reading and not self._closing:
                size, end = self._decrypt(memoryview(self._protocol.get_buffer(-1)))
                left -= size
                if size:
                    self._protocol.buffer_updated(size)
                if end is not None and not self._closing:
                    end()
                    return
                if not size:
                    return
        except Exception:
            self.abort()
            raise
        if self._reading and not self._closing and self._tls.pending():
            self._loop.call_soon(self._go_on)

    def _decrypt(self, buffer: memoryview) -> tuple[int, Callable[[], None] | None]:
        """Fill ``buffer`` from whole records: with how many bytes, and what to do at the end, if that has come."""
        size, room = 0, len(buffer)
        try:
            while size < room:
                count = self._read(room - size, buffer[size:])
                if not count:
                    return size, self.close
                size += count
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            explained = self._explained(error)
            return size, lambda: self._fail(explained)
        except OSError as error:
            lost = error
            return size, lambda: self._finish(lost)
        return size, None

    # -- writing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 1 << 16 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._waiting_size

    def write(self, data: Data) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[Data]) -> None:
        if self._closing:
            return
        for data in list_of_data:
            view = memoryview(data).cast("B")
            self._waiting.append(view)
            self._waiting_size += len(view)
        if self._established and not self._blocked:
            self._flush()
        else:
            self._govern()

    def _govern(self) -> None:
        """Pause or resume the protocol, if that is a change."""
        if self._protocol is None or self._over:
            return
        if not self._held and self._waiting_size > self._high:
            self._held = True
            self._protocol.pause_writing()
        elif self._held and self._waiting_size <= self._low:
            self._held = False
            self._protocol.resume_writing()

    def _block(self) -> None:
        if not self._blocked:
            self._blocked = True
            self._loop.add_writer(self._tls, self._writable)

    def _unblock(self) -> None:
        if self._blocked:
            self._blocked = False
            self._loop.remove_writer(self._tls)

    def _writable(self) -> None:
        if self._established:
            self._flush()
        else:
            self._readable()

    def _flush(self) -> None:
        """Encrypt and write what there is room for, in segments of TCP that are full: not one for each record."""
        is_large = self._waiting_size > RECORD
        try:
            if is_large:
                self._tls.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
            self._write_all()
            if is_large:
                self._tls.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
        except ssl.SSLError as error:
            self._fail(self._explained(error))
            return
        except OSError as error:
            self._finish(error)
            return
        self._govern()
        if self._records >= RECORDS and self._error is None:
            self._error = ConnectionError(
                f"{self._records} TLS records were sent, which is the limit of one key"
            )
            self._loop.call_soon(self.close)
        if self._closing and not self._waiting_size and not self._over:
            self._end()

    def _write_all(self) -> None:
        while self._waiting_size:
            piece = self._piece or self._take_piece()
            try:
                self._tls.send(piece)
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                self._piece = piece
                self._block()
                return
            self._piece = b""
            self._waiting_size -= len(piece)
            self._records += -(-len(piece) // RECORD)
        self._unblock()

    def _take_piece(self) -> Data:
        """Return the bytes to encrypt next: a whole number of records, unless that is all.

        Small pieces are joined for that.
        """
        waiting = self._waiting
        first = waiting.popleft()
        if (size := len(first)) >= RECORD or not waiting:
            whole = min(size if not waiting else size // RECORD * RECORD, PIECE)
            if whole < size:
                waiting.appendleft(first[whole:])
            return first[:whole]
        parts, room = [first], RECORD - size
        while room and waiting:
            part = waiting.popleft()
            if len(part) > room:
                waiting.appendleft(part[room:])
                part = part[:room]
            parts.append(part)
            room -= len(part)
        return b"".join(parts)

    # -- closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ends" and self._established and not self._over:
            # The sender's Finished (RFC 8446, 4.4.4), a MAC over this handshake and no other: Python has it under the
            # name that it had for bindings of older versions.
            finished = self._tls.get_channel_binding("tls-unique")
            return (b"tls", finished) if finished else default
        try:
            match name:
                case "socket" if not self._over:
                    return self._tls
                case "peername" if not self._over:
                    return self._tls.getpeername()
        except OSError:  # it is lost already
            pass
        return default

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self._established:
            self._unwatch()
        if not self._waiting_size:
            self._end()

    def _end(self) -> None:
        """Close after everything that was written."""
        if self._established and not self._over:
            with contextlib.suppress(OSError):  # it would like to read the other side's end
                self._tls.unwrap()
        self._finish()

    def abort(self) -> None:
        self._closing = True
        self._finish()
