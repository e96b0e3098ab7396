"""Messages to and from the driver of a stage: lines of JSON."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from nebuli.steps.member.member_order import MemberOrder


class Stage(BaseModel):
    """A barrier stage, with a task for each order; the first line to a driver.

    ``driver`` distinguishes it from others, ``coordinator`` is the address to which tasks report their own. ``sources``
    is where paths of sources start. The driver may use ``directory``, and removes it at its end.
    """

    model_config = ConfigDict(frozen=True)

    driver: str
    master: str
    orders: tuple[MemberOrder, ...]
    coordinator: str
    sources: Path
    directory: Path

    @property
    def circuit(self) -> str:
        """The circuit's, which is the same for all."""
        return self.orders[0].circuit


class Attempt(BaseModel):
    """Run the stage: sent to a driver the first time and whenever a task has failed.

    ``slots_s`` is how long it waits until there are slots for all members; None: as long as it takes.
    """

    slots_s: float | None


class Happened(StrEnum):
    """The reports of a driver."""

    WAITS = "waits"
    """There are too few slots yet."""
    ENDED = "ended"
    """All tasks have ended in order."""
    FAILED = "failed"
    """A task has failed, and Spark has ended all others."""
    GONE = "gone"
    """The session has ended, and nothing can be run in it."""
    SHORT = "short"
    """There are too few slots."""
    REFUSED = "refused"
    """There is no session."""


class Report(BaseModel):
    """``text`` has the details."""

    happened: Happened
    text: str = ""
