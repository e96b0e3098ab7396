"""Requests of a sender for acknowledgements, which its receiver may put off if they are not waited for."""

from __future__ import annotations

from netchannel.wire.frames import Kind, signal


class AckRequests:
    """One channel's requests.

    A task that has waited for an acknowledgement may soon do so again: one is requested for everything sent,
    until one comes that is not waited for. ``flushing`` is how many wait until all is acknowledged.
    """

    __slots__ = ("asked", "flushing", "wanted")

    def __init__(self) -> None:
        self.flushing = 0
        self.wanted = False
        self.asked = 0  # the number of the last question on this connection

    def want(self, head: int) -> bool:
        """Note a task that waits until all below ``head`` is acknowledged.

        Returns true if that is still to be requested.
        """
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
