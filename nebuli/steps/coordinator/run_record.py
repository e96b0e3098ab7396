"""The requests to the coordinator of a query in steps, and its progress: for the next process of its fragment."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from nebuli.steps.member.run_notes import COORDINATOR
from nebuli.store import StorageError
from nebuli.store.notes import Note, Notes, sealed, unsealed, why_damaged

if TYPE_CHECKING:
    from typing import Any, Self

    from nebuli.store.store_url import StorePlace

__all__ = ["Known", "RunRecord"]


@dataclass(frozen=True, slots=True)
class Known:
    """``paused``: no steps are to be made. ``ending``: a program has shut the circuit down.

    ``closes``: event time ends with the run. All members have stopped before step ``over``; ``complete`` if that was
    the end, and not a stop by request.
    """

    paused: bool = False
    ending: bool = False
    closes: bool = False
    over: int | None = None
    complete: bool = False


_KNOWN = TypeAdapter(Known)


class RunRecord:
    """A note of `Known`, changed one change after the other, each durable before it is done.

    Without notes nothing is durable: the run ends with its process.
    """

    def __init__(self, notes: Notes | None = None, known: Known = Known()) -> None:
        self.known = known
        self._note = None if notes is None else Note(notes, COORDINATOR)
        self._changing = asyncio.Lock()

    @classmethod
    def at(cls, place: StorePlace) -> Self:
        """Return the record of a place: of the current run, or a new one. Raises StorageError, OSError."""
        notes = Notes(place)
        said = notes.read(COORDINATOR)
        if said is None:
            said = _written(Known())
            notes.write(COORDINATOR, said)
        try:
            return cls(notes, _KNOWN.validate_python(unsealed(said)))
        except ValueError as error:
            raise StorageError(
                f"{place}/{COORDINATOR} cannot be read ({why_damaged(error)}): restore it from a copy, or "
                f"stop the query and start it again, from scratch"
            ) from error

    @staticmethod
    def begin(place: StorePlace, *, closes: bool) -> None:
        """Have the next run at a place begin with this. Raises OSError."""
        Notes(place).write(COORDINATOR, _written(Known(closes=closes)))

    async def change(self, **changes: Any) -> None:
        """Keep what has changed. Raises OSError; after that, or a cancel, it is kept or not."""
        async with self._changing:
            known = replace(self.known, **changes)
            if known != self.known:
                if self._note is not None:
                    await self._note.write(_written(known))
                self.known = known


def _written(known: Known) -> bytes:
    return sealed(_KNOWN.dump_python(known))
