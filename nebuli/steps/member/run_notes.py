"""What the processes of a fragment in steps note of one run, for the next of them: a start of the fragment forgets it.

The worker forgets it before it records that the fragment runs. So whoever dies behind that, the worker too, is followed
by a process that takes no note of the run before for one of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nebuli.store.notes import Notes

if TYPE_CHECKING:
    from nebuli.store.store_url import StorePlace

__all__ = ["COORDINATOR", "DISMISSED", "PUBLISHED", "TAKES", "forget_run"]

COORDINATOR = "coordinator.json"
"""What a coordinator was asked for, and how far it came."""
DISMISSED = "dismissed"
"""Whether a member was dismissed: its coordinator may have ended since."""
PUBLISHED = "published"
"""Below which step the sinks of a member have had their results."""
TAKES = "takes-over"
"""Whether a process of a member has begun to take what others give, who give it once. It is no note of one run."""


def forget_run(place: StorePlace) -> None:
    """Begin a run of the fragment that keeps what it has at ``place``. Raises OSError."""
    Notes(place).forget((COORDINATOR, DISMISSED, PUBLISHED))
