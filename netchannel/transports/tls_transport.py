"""TLS 1.3 over TCP, the same on every event loop.

In place of the event loops' own TLS, which drops the alert with the reason why a handshake failed (CPython
issue 98078; uvloop has its code from there): a sender whose certificate is refused would see a reset, and
dial forever.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, cast

from netchannel.address import parse_address
from netchannel.core.control_connection import FOR_CONTROL, FOR_REQUESTS, GREETING, MAGIC
from netchannel.errors import CertificateError, HandshakeError
from netchannel.wire.envelope import encode
from netchannel.wire.messages import Error

from . import schemes
from .tcp import dial
from .tls_connection import TlsConnection
from .tls_errors import NO_TLS, WRONG_NAME, Unproven, WrongName, explain, of_names

if TYPE_CHECKING:
    import ssl

    from netchannel.tls import Credentials

    from .interface import MakeProtocol

HANDSHAKE, ALERT, MAJOR = 0x16, 0x15, 0x03
"""The first bytes of TLS: the first one, or the second one from a peer that refuses it; and the next one."""
PLAIN = "the sender does not speak TLS, but this receiver requires it: does the sender have tls=?"


def check_scheme(address: str) -> None:
    """Raise ValueError if ``address`` is of another scheme than TCP's."""
    scheme = schemes.scheme_of(address)
    if scheme != "tcp":
        why = {
            "unix": "a Unix socket, which does not leave this machine",
            "mem": "this process' own memory",
        }.get(scheme, f"of the transport {scheme!r}, which is responsible for its own encryption")
        raise ValueError(f"tls= is for TCP, and {address!r} is {why}: use a server without tls= for it")


def tls_protocol_factory(credentials: Credentials, make_protocol: MakeProtocol) -> MakeProtocol:
    """Return a factory for the protocols of incoming connections over TLS.

    They have their connection at once, and so count as strangers while they are in the handshake. Their
    output waits for its end.
    """
    # No protocols themselves: an `Acceptor` gives them the sockets.
    return cast("MakeProtocol", lambda: AcceptedConnection(credentials, make_protocol()))


class TlsDialer:
    """Connects by TLS; `check` and `connect` are those of a transport."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def check(self, address: str) -> None:
        """Raise ValueError if ``address`` cannot be dialed, or is not one for TLS."""
        check_scheme(address)
        schemes.check(address)

    async def connect(self, address: str, make_protocol: MakeProtocol) -> None:
        """Connect to ``address``, handshake included. Raises OSError, or HandshakeError if that is for good."""
        self.check(address)
        try:
            try:
                await self._dial(address, make_protocol)
            except Unproven:  # believed if it is received twice
                await self._dial(address, make_protocol)
        except Unproven as error:
            raise HandshakeError(str(error)) from None
        except WrongName:
            names = await self._names(address)
            raise _failed(address, of_names(self._host(address), names)) from None

    async def _dial(
        self, address: str, make_protocol: MakeProtocol, context: ssl.SSLContext | None = None
    ) -> DialedConnection:
        connection = DialedConnection(
            context or self._credentials.context(),
            self._host(address),
            self._credentials,
            address,
            make_protocol,
        )
        try:
            connection.adopt(await dial(parse_address(address)))
            await connection.done
        except asyncio.CancelledError:
            connection.abort()
            raise
        return connection

    def _host(self, address: str) -> str:
        return self._credentials.tls.server_name or parse_address(address).host.partition("%")[0]

    async def _names(self, address: str) -> list[str] | None:
        """The names in the receiver's certificate, by asking again: OpenSSL gives none of one that it refuses."""
        try:
            context = self._credentials.any_name()
            connection = await self._dial(address, asyncio.BufferedProtocol, context)
        except (CertificateError, HandshakeError, OSError):
            return None
        names = connection.names()
        connection.abort()
        return names


def _failed(address: str, why: str, kind: type[HandshakeError] = HandshakeError) -> HandshakeError:
    return kind(f"TLS with {address} failed: {why}")


class DialedConnection(TlsConnection):
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
        self._is_tls = False  # what comes, as is known

    def _begun(self) -> None:
        # So that the first two bytes come together: they stay where they are until it is known what they are.
        self._tls.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 2)
        self._shake()

    def _recognized(self) -> bool:
        if not self._is_tls:
            start = self._peek(2)
            # Both are wrong in bytes that are not TLS. One of them may be, where something was corrupted in transit.
            if len(start) > 1 and start[0] not in (HANDSHAKE, ALERT) and start[1] != MAJOR:
                self._fail(_failed(self._address, NO_TLS, Unproven))
                return False
            self._is_tls = True
            self._tls.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        return True

    def names(self) -> list[str]:
        """The names in the other side's certificate, once ``done``."""
        certificate = cast("dict[str, Any]", self._tls.getpeercert() or {})
        return [name for _, name in certificate.get("subjectAltName", ())]

    def _open(self) -> None:
        if self.done.done():  # it is no longer waited for
            self.abort()
            return
        self.done.set_result(None)
        self._protocol = self._make_protocol()
        self._protocol.connection_made(self)
        super()._open()

    def _lost(self, error: Exception | None) -> None:
        super()._lost(error)
        if not self.done.done():
            how = "the other side hung up" if error is None else str(error)
            self.done.set_exception(self._error or ConnectionError(f"{how} in the TLS handshake"))
            self.done.exception()  # is retrieved, even if it is no longer waited for

    def _explained(self, error: ssl.SSLError) -> Exception:
        if not self._is_tls and error.reason == "WRONG_VERSION_NUMBER":
            # It spoke first, and OpenSSL has read that right after its own first bytes.
            return _failed(self._address, NO_TLS, Unproven)
        why, is_final = explain(error, self._credentials.tls, established=self._established)
        code = getattr(error, "verify_code", None)
        if code in WRONG_NAME:
            return WrongName(why)
        if not is_final:
            return ConnectionError(f"TLS failed: {why}")
        # Certificates are encrypted, and so is everything after the handshake.
        is_proven = code is not None or self._established
        return _failed(self._address, why, HandshakeError if is_proven else Unproven)


class AcceptedConnection(TlsConnection):
    """The other side has dialed: the protocol has its connection at once, and nothing on it before the handshake."""

    def __init__(self, credentials: Credentials, protocol: asyncio.BufferedProtocol) -> None:
        super().__init__(credentials.context(), server_side=True)
        self._credentials = credentials
        self._protocol = protocol
        self._is_tls = False  # what comes, as is known
        self._greeting = b""  # of a peer that does not speak it, as far as it has arrived

    def _begun(self) -> None:
        assert self._protocol is not None
        self._protocol.connection_made(self)

    def _recognized(self) -> bool:
        """True if TLS begins like this. A sender without it is answered in its own protocol."""
        if self._is_tls:
            return True
        if not self._greeting and self._peek(1) == bytes([HANDSHAKE]):
            self._is_tls = True
            return True
        came = socket.socket.recv(self._tls, GREETING.size - len(self._greeting))
        self._greeting += came
        if not came:
            self._finish()
        elif not MAGIC.startswith(self._greeting[: len(MAGIC)]):
            self._fail(HandshakeError(f"its first bytes {self._greeting!r} are not those of TLS"))
        elif len(self._greeting) >= GREETING.size:
            if GREETING.unpack_from(self._greeting)[3] in (FOR_CONTROL, FOR_REQUESTS):
                socket.socket.send(self._tls, encode(Error(message=PLAIN, permanent=True)))
            self._fail(HandshakeError("the sender does not use TLS: set tls= there, too"))
        return False

    def _fail(self, error: Exception) -> None:
        if self._established or self._closing:
            super()._fail(error)
            return
        # Closed while bytes of the other side are on their way, the connection would be reset, and the
        # message with the reason be lost. So the other side closes; if it does not, the protocol's own
        # deadline for silence does.
        self._error = error
        self._tls.shutdown(socket.SHUT_WR)

    def _explained(self, error: ssl.SSLError) -> Exception:
        why, _ = explain(error, self._credentials.tls)
        return ConnectionError(f"TLS failed: {why}") if self._established else HandshakeError(why)
