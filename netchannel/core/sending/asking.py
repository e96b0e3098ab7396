"""When a sender asks for acknowledgements, which its receiver may put off a little where nobody waits for them."""

from __future__ import annotations

from netchannel.wire.frames import Kind, signal


class Asking:
    """One channel's questions.

    Who has waited for an acknowledgement may soon do so again: all that is sent is asked for, until one comes that
    nobody waits for. ``flushing`` is how many wait until all is acknowledged.
    """

    __slots__ = ("_asked", "_wanted", "flushing")

    def __init__(self) -> None:
        self.flushing = 0
        self._wanted = False
        self._asked = 0  # the number of the last question on this connection

    def want(self, head: int) -> bool:
        """Somebody waits until all below ``head`` is acknowledged; whether that is still to be asked for."""
        self._wanted = True
        return self._asked < head

    def question(self, sent: int, *, crowded: bool) -> bytes | None:
        """The frame that asks for all that was ``sent``, if it is due; also where the buffer is ``crowded``."""
        if self._asked >= sent or not (self._wanted or crowded):
            return None
        self._asked = sent
        return signal(Kind.ASK, sequence=sent)

    def acknowledged(self, waiting: int) -> None:
        """An acknowledgement came, and so many producers wait for room."""
        if self._wanted:
            self._wanted = bool(waiting or self.flushing)

    def begin(self) -> None:
        """On a new connection nothing is asked for yet."""
        self._asked = 0
