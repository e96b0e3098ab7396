"""A line of the table: what is sent, by whom, what is shown of it, and what is to be reached against whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .peers import NEBULI, OURS
from .running import Contestant
from .targets import Target
from .work import Work


@dataclass(frozen=True)
class Row:
    """One table.

    ``base``: whom the others are put beside, by the first of ``columns``; ``bases``: whom some of them are put beside
    instead. ``sides``: the functions that a contestant's processes call. ``rounds``: how often each runs;
    ``tries``: how often before, in each of its settings. ``quick``:
    options that a first look has instead; ``slow``: who is not in it.
    """

    name: str
    work: Work
    contestants: Mapping[str, Contestant]
    columns: tuple[str, ...]
    targets: tuple[Target, ...] = ()
    base: str = OURS
    bases: Mapping[str, str] = field(default_factory=dict)
    sides: tuple[str, str] = ("receive", "send")
    rounds: int = 3
    tries: int = 1
    quick: Mapping[str, object] = field(default_factory=dict)
    slow: tuple[str, ...] = ()

    @property
    def ours(self) -> str | None:
        """Who of us is put beside the others; None where others of ours are put beside the base."""
        return next((name for name in (OURS, NEBULI) if self.base.startswith(name)), None)

    def beside(self, name: str) -> str:
        """Whom this contestant is put beside."""
        return self.bases.get(name, self.base)
