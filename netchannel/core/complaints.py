"""Warnings that others can cause at will: one per episode of each of them, however often they try."""

from __future__ import annotations

from collections import OrderedDict

QUIET_S = 60.0
"""An episode is over when its cause has kept quiet for so long."""
CAUSES = 256
"""How many causes are told apart; the rest count as one, so that a flood from many addresses is bounded too."""

_OTHERS = ("", "")


class Complaints:
    """Tells which complaints are news: the first of an episode is, those that follow it are not."""

    def __init__(self) -> None:
        self._latest: OrderedDict[tuple[str, str], float] = OrderedDict()

    def news(self, origin: str, what: str, now: float) -> bool:
        """Whether this is the first time in a while that ``origin`` gives cause for ``what``."""
        latest = self._latest
        while latest and now - next(iter(latest.values())) >= QUIET_S:
            latest.popitem(last=False)
        cause = (origin, what)
        if cause not in latest and len(latest) >= CAUSES:
            cause = _OTHERS
        is_news = cause not in latest
        latest[cause] = now
        latest.move_to_end(cause)
        return is_news
