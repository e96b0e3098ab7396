"""Requests of a sender for acknowledgements, which its receiver may put off where nobody waits for them."""

from __future__ import annotations

from netchannel.wire.frames import Kind, signal


class AckRequests:
    """One channel's requests.

    Whoever has waited for an acknowledgement may soon do so again: all that is sent is asked for, until one comes that
    nobody waits for. ``flushing`` is how many wait until all is acknowledged.
    """

    __slots__ = ("asked", "flushing", "wanted")

    def __init__(self) -> None:
        self.flushing = 0
        self.wanted = False
        self.asked = 0  # the number of the last question on this connection

    def want(self, head: int) -> bool:
        """Note that somebody waits until all below ``head`` is acknowledged; whether that is still to be asked for."""
        self.wanted = True
        return self.asked < head

    def question(self, sent: int) -> bytes:
        """The frame that asks for all that was ``sent``."""
        self.asked = sent
        return signal(Kind.ASK, sequence=sent)

    def acknowledged(self, waiting: int) -> None:
        """An acknowledgement came, and so many producers wait for room."""
        self.wanted = self.wanted and bool(waiting or self.flushing)

    def begin(self) -> None:
        """Begin with a new connection, on which nothing is asked for yet."""
        self.asked = 0
