"""Notes of the processes of a fragment in steps about one run, for the next process.

A start of the fragment forgets it.

The worker forgets it before it records that the fragment runs. So after any later death, of the worker too, the next
process does not take notes of the previous run for its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nebuli.store.notes import Notes

if TYPE_CHECKING:
    from nebuli.store.store_url import StorePlace

__all__ = ["COORDINATOR", "DISMISSED", "PUBLISHED", "TAKES", "forget_run"]

COORDINATOR = "coordinator.json"
"""The requests to a coordinator, and its progress."""
DISMISSED = "dismissed"
"""True if a member was dismissed: its coordinator may have ended since."""
PUBLISHED = "published"
"""Below which step the sinks of a member have had their results."""
TAKES = "takes-over"
"""True if a process of a member has begun to take state from others, which give it once.

The note counts for all runs.
"""


def forget_run(place: StorePlace) -> None:
    """Begin a run of the fragment that keeps what it has at ``place``. Raises OSError."""
    Notes(place).forget((COORDINATOR, DISMISSED, PUBLISHED))
