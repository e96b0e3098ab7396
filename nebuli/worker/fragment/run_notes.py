"""What the processes of a fragment in steps note of one run, for the next of them: a start of the fragment forgets it.

The worker forgets it before it records that the fragment runs. So whoever dies behind that, the worker too, is followed
by a process that takes no note of the run before for one of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nebuli.durable_files import sync_directory

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["COORDINATOR", "DISMISSED", "PUBLISHED", "forget_run"]

COORDINATOR = "coordinator.json"
"""What a coordinator was asked for, and how far it came."""
DISMISSED = "dismissed"
"""Whether a member was dismissed: its coordinator may have ended since."""
PUBLISHED = "published"
"""Below which step the sinks of a member have had their results."""


def forget_run(folder: Path) -> None:
    """Begin a run of the fragment that keeps what it has in ``folder``. Raises OSError."""
    noted = [folder / name for name in (COORDINATOR, DISMISSED, PUBLISHED) if (folder / name).exists()]
    for file in noted:
        file.unlink()
    if noted:
        sync_directory(folder)
