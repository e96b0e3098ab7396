"""Acknowledgements that nobody waits for: they are said a little later, together with those of what follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from netchannel.core.timers import Timers

    from .data_receiver import ReceiverData

ACK_DELAY_S = 0.001
"""How late an acknowledgement may be said."""


class Later:
    """The connections with something to acknowledge; one deadline for all of them."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._links: list[ReceiverData] = []

    def add(self, link: ReceiverData, now: float) -> None:
        """``link`` has something to acknowledge, and is not here yet."""
        if not self._links:
            self._timers.at(now + ACK_DELAY_S, self._say)
        self._links.append(link)

    def _say(self, now: float) -> None:
        links, self._links = self._links, []
        for link in links:
            link.remind()
