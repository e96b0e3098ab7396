"""Warnings that would flood the log: those that others can cause at will, and those of a thousand channels at once."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .timers import Timers

log = logging.getLogger("netchannel")

QUIET_S = 60.0
"""An episode is over when its cause has kept quiet for so long."""
CAUSES = 256
"""How many causes are distinguished; the rest count as one, so that a flood from many addresses is bounded
too."""

_OTHERS = ("", "")


class WarningFilter:
    """Selects the warnings that are news: the first of an episode is, later ones are not."""

    def __init__(self) -> None:
        self._latest: OrderedDict[tuple[str, str], float] = OrderedDict()

    def news(self, origin: str, what: str, now: float) -> bool:
        """True if this is the first time in a while that ``origin`` gives cause for ``what``."""
        latest = self._latest
        while latest and now - next(iter(latest.values())) >= QUIET_S:
            latest.popitem(last=False)
        cause = (origin, what)
        if cause not in latest and len(latest) >= CAUSES:
            cause = _OTHERS
        is_news = cause not in latest
        latest[cause] = now
        # The causes stay in the order of their last times: the loop above relies on it.
        latest.move_to_end(cause)
        return is_news


FEW = 3
"""So many channels are warned of one by one, of those with the same message."""
TOGETHER_S = 1.0
"""The others within this time are reported in one line."""


class WarningDigest:
    """Warnings of many channels in the same second, as their peer is away: a few lines, and then a count."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._told: dict[str, int] = {}
        self._last: dict[str, tuple[object, ...]] = {}

    def warn(self, now: float, text: str, *details: object) -> None:
        """Log the warning, or count it among those that are reported together."""
        told = self._told.get(text, 0)
        if not told:
            self._timers.at(now + TOGETHER_S, lambda now: self._tell_others(text))
        self._told[text] = told + 1
        if told < FEW:
            log.warning(text, *details)
        else:
            self._last[text] = details

    def _tell_others(self, text: str) -> None:
        others = self._told.pop(text) - FEW
        if others > 0:
            details = self._last.pop(text)
            last = text % details
            log.warning("%d more channels within %.0f s, the last of them: %s", others, TOGETHER_S, last)
