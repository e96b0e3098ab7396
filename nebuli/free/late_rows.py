"""The files that rows go to which came when their window was over."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from nebuli.connectors.errors import OutputError
from nebuli.connectors.sinks.modes import ChangesSink
from nebuli.connectors.sinks.outputs import GrowingFile, csv_rows
from placement.plan import WindowOperator

if TYPE_CHECKING:
    from nebuli.free import Engine
    from placement.plan import Fragment

__all__ = ["LateRows"]


class LateRows:
    """A CSV file for each window that names one: rows as they come, with their windows and weights.

    Each is begun when the fragment is; its rows are there after each batch, however the fragment ends.
    """

    def __init__(self, fragment: Fragment, circuit: Engine) -> None:
        self._circuit = circuit
        self._sinks = {
            window.id: ChangesSink(GrowingFile(window.late, csv_rows))
            for window in fragment.operators
            if isinstance(window, WindowOperator) and window.late is not None
        }

    def open(self) -> None:
        """Begin the files; ``OutputError`` where one cannot be written."""
        for id_, schema in self._circuit.late_schemas.items():
            self._sinks[id_].open(schema)

    def write(self) -> None:
        """Write what has come since the last time."""
        for id_, rows in self._circuit.take_late():
            self._sinks[id_].write(rows)

    def finish(self) -> None:
        """Finish the files: all of it is on the disk afterwards."""
        for sink in self._sinks.values():
            sink.finish()

    def abort(self, reason: str) -> None:
        """Leave the files as they are."""
        for sink in self._sinks.values():
            with suppress(OutputError):  # the fragment has its reason to end already
                sink.abort(reason)
