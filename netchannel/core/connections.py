"""Connections that came in, until they are gone: what they are for, how many there may be, which is the newest."""

from __future__ import annotations

from collections import OrderedDict
from itertools import count
from typing import TYPE_CHECKING

from netchannel.errors import ProtocolError
from netchannel.log_texts import log, printable
from netchannel.wire.envelope import encode
from netchannel.wire.frames import refused
from netchannel.wire.messages import VERSION, Error

from .control_connection import FOR_DATA, GREETING, MAGIC, ControlLink, with_check
from .link import Link

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from netchannel.errors import HandshakeError
    from netchannel.wire.frames import Buffer

    from .link import Core

STRANGERS = 1024
"""Connections that have not identified themselves: that have sent nothing, or whose handshake is not done.

A bound of their own, so that a flood of them leaves room for peers that are known.
"""
TLS_HANDSHAKE = b"\x16\x03"
"""How a sender begins that speaks TLS."""
TLS_ALERT = b"\x15\x03\x03\x00\x02\x02\x46"
"""The answer in its own protocol: a record of TLS with the fatal alert protocol_version (RFC 8446, 6.2)."""


class Connections:
    """All connections that a core has accepted, ``limit`` at most.

    ``kinds`` maps the purpose that a connection announces to the handler that takes it on. ``farewells`` are
    those of channels that are over, until their senders are notified.
    """

    def __init__(self, core: Core, limit: int) -> None:
        self.limit = limit
        self.kinds: dict[int, Callable[[str], Link]] = {}
        self.links: set[Link] = set()
        self.silent: OrderedDict[Link, None] = OrderedDict()
        self.unproven: OrderedDict[Link, None] = OrderedDict()
        self.farewells: dict[Link, None] = {}
        self.on_farewells_done: Callable[[], None] = lambda: None
        self._core = core
        self._orders = count()
        # The newest connection of each, and for a while after it is gone.
        self._lines: dict[bytes, AcceptedControl] = {}

    def next_order(self) -> int:
        """A number above those of all connections before."""
        return next(self._orders)

    def accept(self, remote: str, purposes: Collection[int]) -> IncomingConnection:
        """A connection came in, which may be for one of ``purposes``."""
        link = IncomingConnection(self._core, self, remote, purposes)
        self.links.add(link)
        self.silent[link] = None
        return link

    def make_room(self, now: float) -> None:
        """Drop a stranger above the limits: the oldest of the silent ones, or of those that do not get done.

        From the larger group: a flood of either kind drops its own, and a peer that goes through its
        handshake at an ordinary pace is neither for long.
        """
        strangers = len(self.silent) + len(self.unproven)
        if strangers <= STRANGERS and len(self.links) <= self.limit:
            return
        if (
            strangers <= STRANGERS and self.farewells
        ):  # a peer that has received the last word leaves on its own
            next(iter(self.farewells)).abort()
            return
        oldest, _ = max(self.silent, self.unproven, key=len).popitem(last=False)
        self.links.discard(oldest)
        oldest.abort()
        text = (
            "%s: %d connections are open, %d of them have not identified themselves; the limits are %d and "
            "%d: the oldest unidentified ones are dropped, starting with %s"
        )
        counts = (len(self.links) + 1, strangers, self.limit, STRANGERS)
        self._core.complain("", now, text, self._core.name, *counts, oldest.remote)

    def take_on(self, incoming: IncomingConnection, purpose: int) -> Link:
        """An incoming connection has announced its purpose: return the handler that takes it on."""
        self.gone(incoming)  # first: the two are one connection, and count once
        link = self.kinds[purpose](incoming.remote)
        self.links.add(link)
        self.unproven[link] = None
        return link

    def proven(self, link: Link) -> None:
        """A connection has shown that it may be here."""
        self.unproven.pop(link, None)

    def gone(self, link: Link) -> None:
        """A connection has ended."""
        self.links.discard(link)
        self.silent.pop(link, None)
        self.unproven.pop(link, None)
        if link in self.farewells:
            del self.farewells[link]
            self.on_farewells_done()

    def is_newest(self, link: AcceptedControl) -> bool:
        """True if no newer connection of its line was there before its handshake was done.

        Older ones are then dropped.
        """
        known = self._lines.get(link.line)
        if known is not None and known.order > link.order:
            return False
        self._lines[link.line] = link
        if known is not None:
            known.abort(f"{link.peer} has connected again")
        return True

    def outlived(self, link: AcceptedControl, now: float) -> None:
        """A connection is gone. One that is older may still be in its handshake, for as long as that may take."""

        def forget(now: float) -> None:
            if self._lines.get(link.line) is link:  # and not one that came meanwhile
                del self._lines[link.line]

        if self._lines.get(link.line) is link:
            self._core.timers.at(now + self._core.timing.handshake_s, forget)


class IncomingConnection(Link):
    """A connection that was accepted and has not announced its purpose."""

    def __init__(self, core: Core, connections: Connections, remote: str, purposes: Collection[int]) -> None:
        super().__init__(core, remote)
        self._connections = connections
        self._purposes = purposes
        self._greeting = memoryview(bytearray(GREETING.size))
        self._filled = 0

    def connected(self, now: float) -> None:
        self.arm(now + self.core.timing.handshake_s, self._silent)
        self._connections.make_room(now)

    def get_buffer(self, hint: int) -> memoryview:
        # Exactly the greeting is read, so that nothing is left over for the handler that takes the connection
        # on. Bytes may also follow one that is refused: they are dropped, but the loop asks for room.
        return self._greeting[self._filled :] if self._filled < len(self._greeting) else self.core.slab

    def _received(self, n: int, now: float) -> None:
        self._filled += n
        if self._filled != len(self._greeting):  # not there yet, or bytes that follow one that is refused
            return
        if self._greeting[: len(TLS_HANDSHAKE)] == TLS_HANDSHAKE:
            # Not closed here: what is on its way would make that a reset, which could overtake the answer.
            self.send(TLS_ALERT)
            self._warn(
                "it speaks TLS, but this receiver has no tls=: give tls= to both sides, or to neither", now
            )
            return
        magic, lowest, highest, purpose, _ = GREETING.unpack(self._greeting)
        good = with_check(bytes(self._greeting)) == self._greeting
        if not good or magic != MAGIC or purpose not in self._purposes:
            raise ProtocolError(
                f"its first bytes {bytes(self._greeting)!r} are not the greeting of a network channel"
            )
        if not lowest <= VERSION <= highest:
            text = f"the sender speaks versions {lowest} to {highest}, the receiver version {VERSION}"
            if purpose == FOR_DATA:
                self.send(refused("version", text))
            else:
                self.send(encode(Error(message=text, permanent=True)))
            self._warn(text, now)
            self.close()
            return
        self.disarm()
        self.replacement = self._connections.take_on(self, purpose)
        self.replacement.adapter, self.replacement.local = self.adapter, self.local
        self.replacement.connected(now)

    def refused(self, error: HandshakeError, now: float) -> None:
        self._warn(str(error), now)

    def _warn(self, why: str, now: float) -> None:
        told = "%s: connection from %s closed: %s"
        self.core.complain(self.remote, now, told, self.core.name, self.remote, printable(why))

    def _silent(self, now: float) -> None:
        log.debug("%s: %s was silent for %.1f s", self.core.name, self.remote, self.core.timing.handshake_s)
        self.abort()

    def _lost(self, reason: str, now: float) -> None:
        self._connections.gone(self)


class AcceptedControl(ControlLink):
    """The end of a control connection that listened."""

    def __init__(self, core: Core, connections: Connections, remote: str) -> None:
        super().__init__(core, remote)
        self.connections = connections
        self.order = connections.next_order()
        """Higher than that of all connections that came before: a peer that has dialed again has given those up."""

    def established(self, now: float) -> None:
        self.connections.proven(self)
        if not self.connections.is_newest(self):
            self.abort(f"{self.peer} connected again before this connection was established")
            return
        log.info("%s: control connection with %s is up", self.core.name, self.peer)

    def _received(self, n: int, now: float) -> None:
        super()._received(n, now)
        if not self.writable:  # a peer that asks and does not listen is not read any further
            self.reading = False
            self.core.touch(self)

    def output(self) -> list[Buffer]:
        """Return queued bytes; once they are gone, there is room for more answers."""
        if not self.reading:
            self.reading = True
            self.core.touch(self)
        return super().output()

    def lost(self, reason: str, now: float) -> None:
        super().lost(reason, now)
        self.connections.outlived(self, now)

    def refused(self, error: HandshakeError, now: float) -> None:
        self.abort(str(error))
