"""A stage that is run again after errors, for as long as it is wanted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nebuli.store.collections.errors import TooLate
from nebuli.store.errors import SinceMismatch, StorageError

from .errors import AddressGone, IngestionError, SourceConflict

if TYPE_CHECKING:
    from .entries import Health
    from .recipe.stage import Stage

Told = Callable[[IngestionError | None], Awaitable[None]]
"""Called with what is wrong with a reader, or when its source answers again."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 15.0
_LOOK_S = 0.1
_SETTLED_S = 3.0
"""A stage that reads for so long without an error is sound; a recurring error comes within a second or so."""
_ATTEMPTS, _ATTEMPTS_BEHIND, _READINGS_BEHIND = 5, 2, 4
"""How many errors in a row until a lost time, lost messages, and a reader's report of them are reported."""
_log = logging.getLogger("nebuli.ingestion")


@dataclass(frozen=True, slots=True)
class Attempt:
    """A stage, and how far it has read: ``progress`` gives another value when it has read more."""

    stage: Stage
    progress: Callable[[], object]


class Attempts:
    """Each makes the stage again.

    Its `health` is ``running`` once it is known that it does: it has written all that there is, or reads on without an
    error. Until then an error holds: a source that answers again may have the same one again in a moment.
    """

    def __init__(
        self,
        whose: str,
        make: Callable[[AsyncExitStack, Told], Awaitable[Attempt]],
        changed: Callable[[Attempts], Awaitable[None]],
        *,
        behind: Attempts | None = None,
    ) -> None:
        """``whose`` names their owner in the log. ``changed`` is called when it fares otherwise, or has failed again.

        ``make`` leaves to the stack everything to be closed after it, and passes errors of readers to the other. A
        stage that reads others' output is known to run only ``behind`` them.
        """
        self._whose = whose
        self._make = make
        self._changed = changed
        self._behind = behind
        self.health: Health = "starting"
        self.error: IngestionError | StorageError | None = None
        """The current error."""
        self.stage: Stage | None = None
        """The stage of the attempt under way."""
        self.upper = 0
        """All that became available at lower times was written by an attempt."""
        self._doubted = asyncio.Event()
        """Set while it is not known whether it runs, and no error is."""
        self._overtaken = 0
        """How often in a row others were ahead."""

    async def run(self) -> None:
        """Until it is cancelled. Raises any error that is not of an ingestion or a store: a bug."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                await self._attempt()
            except (IngestionError, StorageError) as error:
                if self.stage is not None and self.stage.advanced.is_set():
                    pause_s, self._overtaken = _FIRST_PAUSE_S, 0
                times = _ATTEMPTS_BEHIND if isinstance(error, AddressGone) else _ATTEMPTS
                if not self._is_overtaken(error, times):
                    await self._failed(error)
                if self.health == "conflict":
                    # an instance with other rows than the written ones does not continue until it is rebuilt
                    await asyncio.Event().wait()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _is_overtaken(self, error: IngestionError | StorageError, times: int) -> bool:
        """True if others have advanced meanwhile, and released the rows to be read: it restarts after them.

        If that happens so many ``times`` in a row, others are not the cause, and it is reported: rows are missing.
        """
        if not isinstance(error, SinceMismatch | TooLate | AddressGone):
            return False
        self._overtaken += 1
        if self._overtaken >= times:
            return False
        _log.info("%s: restarted from scratch, because other instances are ahead: %s", self._whose, error)
        return True

    async def _failed(self, error: IngestionError | StorageError) -> None:
        self._doubted.clear()
        self.health = "conflict" if isinstance(error, SourceConflict) else "waiting"
        self.error = error
        await self._changed(self)

    async def _reading_told(self, error: IngestionError | None) -> None:
        """A source cannot be read, and the stage continues without it; or it answers again."""
        if error is None:
            self._doubted.set()
        elif self._is_overtaken(error, _READINGS_BEHIND):
            self._doubted.clear()  # until it answers
        else:
            await self._failed(error)

    async def _attempt(self) -> None:
        self.stage = None
        self._doubted.set()
        if self.error is None:
            self.health = "starting"
        async with AsyncExitStack() as stack:
            made = await self._make(stack, self._reading_told)
            self.stage = made.stage
            tasks = [asyncio.create_task(made.stage.run()), asyncio.create_task(self._prove(made))]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for each in tasks:
                    if each.done():
                        each.result()
            finally:
                self.upper = max(self.upper, made.stage.upper)
                for each in tasks:
                    each.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _prove(self, attempt: Attempt) -> None:
        """Report that it runs, once that is known; and again, whenever it was in doubt."""
        await attempt.stage.advanced.wait()
        while True:
            await self._doubted.wait()
            began, before = _now_s(), attempt.progress()
            while self._doubted.is_set():
                if await self._is_sound(attempt, began, before) and self._doubted.is_set():
                    self._doubted.clear()
                    self.health, self.error, self._overtaken = "running", None, 0
                    await self._changed(self)
                else:
                    await asyncio.sleep(_LOOK_S)

    async def _is_sound(self, attempt: Attempt, began: float, before: object) -> bool:
        if self._behind is not None and self._behind.health != "running":
            return False
        if _now_s() - began >= _SETTLED_S and attempt.progress() != before:
            return True
        with suppress(IngestionError, StorageError):  # it does not report it: its reader reports why
            return await attempt.stage.is_caught_up()
        return False


def _now_s() -> float:
    return asyncio.get_running_loop().time()
