"""Control connections that this side makes, and makes again as long as they are needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

from netchannel.errors import HandshakeError, ProtocolError
from netchannel.log_texts import log

from .backoff import Backoff
from .control_connection import ControlLink, greeting

if TYPE_CHECKING:
    from .link import Core
    from .timers import Timer

Control = TypeVar("Control", bound="DialedControl")


class Dialer(ABC):
    """The interface of an object that has a connection made, and is notified of its state."""

    core: Core

    @abstractmethod
    def established(self, now: float) -> None:
        """The connection is up."""

    @abstractmethod
    def lost(self, reason: str, now: float) -> None:
        """The connection is gone, or was not made."""

    def refused(self, error: HandshakeError, now: float) -> None:  # noqa: B027 - not all give up
        """The other side will not talk to us: no use in trying again."""


class DialedControl(ControlLink):
    """The end of a control connection that dialed."""

    dialed = True
    purpose: int
    up = "%s: control connection with %s is up"

    def __init__(self, dialer: Dialer, address: str, *names: str) -> None:
        super().__init__(dialer.core, address)
        self.line = dialer.core.line(address, *names)
        self._dialer = dialer

    def connected(self, now: float) -> None:
        """Greet first: this side dialed."""
        self.send(greeting(self.purpose))
        super().connected(now)

    def established(self, now: float) -> None:
        log.info(self.up, self.core.name, self.peer)
        self._dialer.established(now)

    def refused(self, error: HandshakeError, now: float) -> None:
        self._dialer.refused(error, now)
        self.close()

    def violated(self, error: ProtocolError, now: float) -> None:
        super().violated(error, now)
        if isinstance(error, HandshakeError):
            self._dialer.refused(error, now)

    def _lost(self, reason: str, now: float) -> None:
        self._dialer.lost(reason, now)


class Peer(Dialer, Generic[Control]):
    """A receiver, by the address that is dialed: the control connection to it, as long as there are channels.

    It may be one process of several at ``node``, which named it; its channels go back there when it has them no more.
    """

    def __init__(self, core: Core, address: str, node: str) -> None:
        self.core = core
        self.address = address
        self.node = node
        self.control: Control | None = None
        self._backoff = Backoff(core)
        self._redial_due = False
        self._idle: Timer | None = None

    @property
    @abstractmethod
    def wanted(self) -> bool:
        """True if there are channels that need the connection."""

    @abstractmethod
    def _make_control(self) -> Control:
        """A new connection."""

    @abstractmethod
    def _forget(self) -> None:
        """Forget this peer, which is no longer needed."""

    @property
    def is_member(self) -> bool:
        """True if it is not the process that was dialed first."""
        return self.address != self.node

    @property
    def reaching(self) -> bool:
        """True if a control connection is up or being made, rather than waited for."""
        return self.control is not None

    def reach(self) -> None:
        """Have the connection made, unless it is there or a later time is set for it."""
        if self.control is None and not self._redial_due:
            self._dial()

    def _dial(self) -> None:
        self.control = self._make_control()
        self.core.dial(self.control)

    def redial(self, now: float) -> None:
        """Have a connection that is gone made again a little later, if it is needed."""
        if self.wanted:
            self._redial_due = True  # so that `reach` makes no second connection before its time
            self.core.timers.at(now + self._backoff.next(now), self._redial)
        else:
            self._forget()

    def _redial(self, now: float) -> None:
        self._redial_due = False
        if self.wanted:
            self._dial()
        else:
            self._forget()

    def idle(self, now: float) -> None:
        """Close the connection a little after the last channel is over."""
        if self.wanted or self._idle is not None:
            return
        if self.control is not None:
            self._idle = self.core.timers.at(now + self.core.timing.idle_s, self._hang_up)
        elif not self._redial_due:
            self._forget()

    def _hang_up(self, now: float) -> None:
        self._idle = None
        if not self.wanted and self.control is not None:
            self.control.close()

    def lost(self, reason: str, now: float) -> None:
        self.control = None
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def elsewhere(self, port: int) -> str | None:
        """The address of the process at ``port`` of its host, which it names; None if that is not to be followed.

        Not a second time, lest two processes that name each other keep a peer running in circles.
        """
        host, _, own = self.address.rpartition(":")
        address = f"{host}:{port}"
        return address if own.isdigit() and not self.is_member and address != self.address else None
