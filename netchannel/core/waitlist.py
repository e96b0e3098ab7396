"""Who waits for something that nobody has registered, and is told once somebody has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from netchannel.wire.declarations import Message

WAITING_LIMIT = 100_000
"""Ids that are asked for and that nobody has registered: so many are remembered, of all who ask."""


class Asker(Protocol):
    """The connection of somebody who waits until ids are ``waiting`` no more."""

    waiting: set[str]

    def say(self, message: Message) -> None:
        """Send one message."""


class Waitlist:
    """Askers by the ids that they wait for; ``tell`` makes what they are told when one of these is there."""

    def __init__(self, tell: Callable[[str], Message]) -> None:
        self._tell = tell
        self._waiting: dict[str, dict[Asker, None]] = {}
        self._waits = 0  # of all ids together

    def wait(self, asker: Asker, wanted: str) -> None:
        """Tell ``asker`` when the id is there."""
        if self._waits < WAITING_LIMIT and wanted not in asker.waiting:
            self._waits += 1
            asker.waiting.add(wanted)
            self._waiting.setdefault(wanted, {})[asker] = None

    def invite(self, wanted: str) -> None:
        """Tell whoever waits for the id to ask again."""
        for asker in self._waiting.pop(wanted, ()):
            self._waits -= 1
            asker.waiting.discard(wanted)
            asker.say(self._tell(wanted))

    def leave(self, asker: Asker) -> None:
        """``asker`` is gone, and waits for nothing any more."""
        for wanted in asker.waiting:
            self._waits -= 1
            waiting = self._waiting[wanted]
            del waiting[asker]
            if not waiting:
                del self._waiting[wanted]
        asker.waiting.clear()
