"""What the coordinator of a query in steps was asked for, and how far it came: for the next process of its fragment."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from nebuli.durable_files import write_durably
from nebuli.storage import StorageError

from .run_notes import COORDINATOR

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any, Self

__all__ = ["CoordinatorRecord", "Known"]


@dataclass(frozen=True, slots=True)
class Known:
    """``paused``: no steps are to be made. ``ending``: a program has shut the circuit down.

    All members have stopped before step ``over``; ``complete`` if that was the end, and not a stop by request.
    """

    paused: bool = False
    ending: bool = False
    over: int | None = None
    complete: bool = False


_KNOWN = TypeAdapter(Known)


class CoordinatorRecord:
    """A file with `Known`, changed one change after the other, each durable before it is done."""

    def __init__(self, file: Path, known: Known) -> None:
        self.known = known
        self._file = file
        self._changing = asyncio.Lock()

    @classmethod
    def at(cls, folder: Path) -> Self:
        """That of a folder: of the run that goes on, or a new one. Raises StorageError."""
        file = folder / COORDINATOR
        if not file.exists():
            write_durably(file, _written(Known()))
        try:
            return cls(file, _KNOWN.validate_json(file.read_bytes()))
        except ValidationError as error:
            raise StorageError(
                f"{file} cannot be read ({error.errors()[0]['msg']}): restore it from a copy, or stop the query and "
                f"start it again, which begins it anew"
            ) from error

    async def change(self, **changes: Any) -> None:
        """Keep what has changed. Raises OSError; then nothing has."""
        async with self._changing:
            known = replace(self.known, **changes)
            if known != self.known:
                await asyncio.to_thread(write_durably, self._file, _written(known))
                self.known = known


def _written(known: Known) -> str:
    return _KNOWN.dump_json(known).decode()
