"""The engine of this process: a circuit, which needs no start and is never at anything for long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nebuli.dataflow import Circuit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nebuli.connectors.endpoints import Source

__all__ = ["EmbeddedEngine"]


class EmbeddedEngine(Circuit):
    """A circuit as an engine."""

    phase = ""

    def start(self, wake: Callable[[], None]) -> Mapping[str, Source]:
        """Begin, with no sources of its own: all come from outside."""
        return {}

    def interrupt(self) -> None:
        """Do nothing: it waits for nothing."""
