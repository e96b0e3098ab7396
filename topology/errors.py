"""The error of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from topology.mistakes import Mistake


class TopologyError(Exception):
    """One or more mistakes in a topology; ``mistakes`` holds all that were found, in file order."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(map(str, self.mistakes)))


class ConnectorUnusable(Exception):
    """A type of source or sink that is not known, or cannot be had here; the message says what to do."""
