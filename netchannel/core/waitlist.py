"""Clients that wait for an id that is not registered, and are notified once it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from netchannel.wire.declarations import Message

WAITING_LIMIT = 100_000
"""Requested ids that are not registered: at most so many are remembered, over all clients."""


class Asker(Protocol):
    """The connection of a client that waits for the ids in ``waiting``."""

    waiting: set[str]

    def say(self, message: Message) -> None:
        """Send one message."""


class Waitlist:
    """Askers by the ids that they wait for.

    ``tell`` makes the message that they get when one of these is registered.
    """

    def __init__(self, tell: Callable[[str], Message]) -> None:
        self._tell = tell
        self._waiting: dict[str, dict[Asker, None]] = {}
        self._waits = 0  # of all ids together

    def wait(self, asker: Asker, wanted: str) -> None:
        """Notify ``asker`` when the id is registered."""
        if self._waits < WAITING_LIMIT and wanted not in asker.waiting:
            self._waits += 1
            asker.waiting.add(wanted)
            self._waiting.setdefault(wanted, {})[asker] = None

    def invite(self, wanted: str) -> None:
        """Invite all that wait for the id to ask again."""
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
