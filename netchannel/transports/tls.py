"""TLS 1.3 over the connections of TCP, the same on every event loop.

In place of the event loops' own TLS, which drops the alert that says why a handshake failed (CPython issue 98078;
uvloop has its code from there): a sender whose certificate is refused would see a reset, and dial for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, cast

from netchannel.address import parse_address
from netchannel.core.control import FOR_CONTROL, GREETING, MAGIC
from netchannel.core.messages import encode
from netchannel.errors import CertificateError, HandshakeError

from . import schemes
from .tls_errors import NO_TLS, OURS, WRONG_NAME, Unproven, WrongName, explain, of_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from netchannel.tls import Credentials

    from .interface import MakeProtocol

    Data = bytes | bytearray | memoryview[Any]

READ_SIZE = 1 << 18
"""Bytes that are taken from TCP at a time."""
PIECE = 1 << 16
"""Bytes that are encrypted at a time: OpenSSL's buffer of a connection grows to that, and stays so."""
SMALL = 1 << 12
"""Buffers below this are joined: each one costs a call, and a record at the least."""
HANDSHAKE, ALERT, MAJOR = 0x16, 0x15, 0x03
"""What TLS begins with: the first byte, or the second one from somebody who refuses it; and what follows."""
PLAIN = "the sender speaks no TLS, and this receiver asks for it: is the sender without tls=?"


class _Slab(threading.local):
    """Where all connections of a thread read to: what is there goes on at once."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(READ_SIZE))


_slab = _Slab()


def check_scheme(address: str) -> None:
    """Raise ValueError if ``address`` is of another scheme than TCP's."""
    scheme = schemes.scheme_of(address)
    if scheme != "tcp":
        why = {
            "unix": "a Unix socket, which does not leave this machine",
            "mem": "this process' own memory",
        }.get(scheme, f"of the transport {scheme!r}, whose own affair that is")
        raise ValueError(f"tls= is for TCP, and {address!r} is {why}: use a server without tls= for it")


def accepting(credentials: Credentials, make_protocol: MakeProtocol) -> MakeProtocol:
    """What makes the protocols of connections that come in, by way of TLS.

    They have their connection at once, and so count as strangers while they are in the handshake. What they write
    waits for its end.
    """
    return lambda: Accepted(credentials, make_protocol())


class Dialer:
    """Connects by TLS; `check` and `connect` are those of a transport."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def check(self, address: str) -> None:
        """Raise ValueError if ``address`` cannot be dialed, or is none that TLS is for."""
        check_scheme(address)
        schemes.check(address)

    async def connect(self, address: str, make_protocol: MakeProtocol) -> None:
        """Connect to ``address``, handshake included. Raises OSError, or HandshakeError if that is for good."""
        self.check(address)
        try:
            try:
                await self._dial(address, make_protocol)
            except Unproven:  # believed if it is said twice
                await self._dial(address, make_protocol)
        except Unproven as error:
            raise HandshakeError(str(error)) from None
        except WrongName:
            names = await self._names(address)
            raise _failed(address, of_names(self._host(address), names)) from None

    async def _dial(
        self, address: str, make_protocol: MakeProtocol, context: ssl.SSLContext | None = None
    ) -> Dialed:
        connection = Dialed(
            context or self._credentials.context(),
            self._host(address),
            self._credentials,
            address,
            make_protocol,
        )
        try:
            await schemes.connect(address, lambda: connection)
            await connection.done
        except asyncio.CancelledError:
            connection.abort()
            raise
        return connection

    def _host(self, address: str) -> str:
        return self._credentials.tls.server_name or parse_address(address).host.partition("%")[0]

    async def _names(self, address: str) -> list[str]:
        """Whom the receiver's certificate is for: OpenSSL does not say so of one that it refuses, so ask again."""
        try:
            context = self._credentials.any_name()
            return (await self._dial(address, _HangUp, context)).names()
        except (CertificateError, HandshakeError, OSError):
            return []


class _HangUp(asyncio.BufferedProtocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).abort()


def _failed(address: str, why: str, kind: type[HandshakeError] = HandshakeError) -> HandshakeError:
    return kind(f"TLS with {address} failed: {why}")


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
            self._tcp.writelines(sealed)

    def _encrypt(self, data: Data, sealed: list[bytes]) -> None:
        for start in range(0, len(data), PIECE):
            self._write(data[start : start + PIECE])
            sealed.append(self._outgoing.read())

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


class Dialed(TlsConnection):
    """This side has dialed: its protocol comes once the handshake is done, and with it ``done``."""

    def __init__(
        self,
        context: ssl.SSLContext,
        host: str,
        credentials: Credentials,
        address: str,
        make_protocol: MakeProtocol,
    ) -> None:
        super().__init__(context, server_side=False, host=host)
        self.done: asyncio.Future[None] = self._loop.create_future()
        self._credentials = credentials
        self._address = address
        self._make_protocol = make_protocol
        self._begins: bytes | None = b""  # the first two bytes, as far as they are here; None: they are TLS

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._shake()

    def _take(self, chunk: memoryview) -> None:
        if self._begins is not None:
            self._begins += bytes(chunk[:2])
            if len(self._begins) > 1:
                # Both are wrong in what is no TLS. One of them may be, where something was changed on the way.
                if self._begins[0] not in (HANDSHAKE, ALERT) and self._begins[1] != MAJOR:
                    self._fail(_failed(self._address, NO_TLS, Unproven))
                    return
                self._begins = None
        super()._take(chunk)

    def names(self) -> list[str]:
        """Whom the other side's certificate is for, once ``done``."""
        certificate = cast("dict[str, Any]", self._tls.getpeercert() or {})
        return [name for _, name in certificate.get("subjectAltName", ())]

    def _open(self) -> None:
        if self.done.done():  # nobody waits for it any more
            self.abort()
            return
        self.done.set_result(None)
        self._protocol = self._make_protocol()
        self._protocol.connection_made(self)
        super()._open()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self.done.done():
            how = "the other side hung up" if exc is None else str(exc)
            self.done.set_exception(self._error or ConnectionError(f"{how} in the TLS handshake"))
            self.done.exception()  # is known, should nobody wait for it any more

    def _explained(self, error: ssl.SSLError) -> Exception:
        why, is_final = explain(error, self._credentials.tls)
        code = getattr(error, "verify_code", None)
        if code in WRONG_NAME:
            return WrongName(why)
        if not is_final or (self._established and error.reason in OURS):
            return ConnectionError(f"TLS failed: {why}")
        # Certificates are encrypted, and so is what comes behind the handshake.
        is_proven = code is not None or self._established
        return _failed(self._address, why, HandshakeError if is_proven else Unproven)


class Accepted(TlsConnection):
    """The other side has dialed: the protocol has its connection at once, and nothing on it before the handshake."""

    def __init__(self, credentials: Credentials, protocol: asyncio.BufferedProtocol) -> None:
        super().__init__(credentials.context(), server_side=True)
        self._credentials = credentials
        self._protocol = protocol
        self._greeting: bytes | None = (
            b""  # of somebody who does not speak TLS, as far as it is here; None: it does
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self._protocol is not None
        self._protocol.connection_made(self)

    def _take(self, chunk: memoryview) -> None:
        if self._greeting is not None and not self._recognized(chunk):
            return
        super()._take(chunk)

    def _recognized(self, chunk: memoryview) -> bool:
        """Whether it is TLS that begins so. A sender without it is told, in words that it understands."""
        assert self._greeting is not None
        if not self._greeting and chunk[0] == HANDSHAKE:
            self._greeting = None
            return True
        self._greeting += bytes(chunk[: GREETING.size])
        if not MAGIC.startswith(self._greeting[: len(MAGIC)]):
            self._fail(HandshakeError(f"its first bytes {self._greeting!r} are not those of TLS"))
        elif len(self._greeting) >= GREETING.size:
            if GREETING.unpack_from(self._greeting)[3] == FOR_CONTROL:
                self._tcp.write(encode({"t": "error", "message": PLAIN, "permanent": True}))
            self._fail(HandshakeError("it speaks no TLS: is the sender without tls=?"))
        return False

    def _fail(self, error: Exception) -> None:
        if self._established or not self._tcp.can_write_eof():
            super()._fail(error)
            return
        # Closed while bytes of the other side are on their way, the connection would be reset, and what says why be
        # lost. So the other side closes; if it does not, the protocol's own deadline for silence does.
        self._error = error
        self._tcp.write_eof()

    def _explained(self, error: ssl.SSLError) -> Exception:
        why, _ = explain(error, self._credentials.tls)
        return ConnectionError(f"TLS failed: {why}") if self._established else HandshakeError(why)
