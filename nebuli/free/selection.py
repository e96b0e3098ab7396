"""The choice of a fragment's engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nebuli.dataflow import OperatorGraph
from nebuli.dataflow.errors import DataflowError
from placement.plan import BoundSink, NetworkSink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nebuli.connectors.endpoints import Source
    from nebuli.free.engine import Engine
    from placement.plan import Fragment

__all__ = ["engine_of"]


class _EmbeddedEngine(OperatorGraph):
    """A circuit of this process as an engine: it needs no start, and is never at anything for long."""

    phase = ""

    def start(self, wake: Callable[[], None]) -> Mapping[str, Source]:
        """Begin, with no sources of its own: all come from outside."""
        return {}

    def interrupt(self) -> None:
        """Do nothing: it waits for nothing."""


def engine_of(fragment: Fragment, max_state_bytes: int) -> Engine:
    """Return the engine of the fragment. Raises DataflowError if its operators do not fit together."""
    if not fragment.operators or not isinstance(fragment.operators[-1], BoundSink | NetworkSink):
        raise DataflowError(f"the last operator of fragment {fragment.id} is not a sink")
    if fragment.engine is not None:
        from nebuli.spark import SparkCircuit

        return SparkCircuit(fragment)
    return _EmbeddedEngine(
        fragment.operators,
        watermarks=fragment.watermarks,
        closings=fragment.closings,
        only_growing=fragment.only_growing,
        max_state_bytes=max_state_bytes,
    )
