"""`Pins`: the contents of a member's tables between two steps, held while they are read and steps continue.

Members are asked one by one, and each is at a step of its own by then. So a pin holds what the tables are before every
step, from the last one on that its reader has to see, or that the member still has, until it is read before one of
them, which then is the only one that it holds. Before the greatest first step of all members, all of them hold it, and
mostly at once: of the last two steps each member still has what was there before. Pinned contents are runs of rows that
never change, and costs references only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nebuli.dataflow.steps.contents import netted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import pyarrow as pa

    from nebuli.dataflow.state import Run

    _Held = Mapping[str, Sequence[Run] | None]

_RECENT = 2
"""Before so many steps a member has what was there: before the one that it is in, and the one before."""


class NotPinned(Exception):
    """Nothing is held under that name for that step: its time is over, or the member has begun a new epoch since."""


class Pins:
    """``contents`` are those of one of the ``tables`` between two steps, or None where they are not kept."""

    def __init__(self, tables: Collection[str], contents: Callable[[str], Sequence[Run] | None]) -> None:
        self._tables = frozenset(tables)
        self._contents = contents
        self._pins: dict[str, _Pin] = {}
        self._recent: dict[int, _Held] = {}
        self._floor = 0
        self.epoch = 0
        """The one that the member is in, or was in at last."""

    def open(self, epoch: int, step: int, logged: int) -> None:
        """The member has begun an epoch, before this step.

        Steps below ``logged`` may have been done before, and been seen: nothing is read before that one.
        """
        self.epoch = epoch
        self._floor = logged
        self.between(step)

    def between(self, step: int) -> None:
        """The member is before this step, and in none."""
        held = {table: self._contents(table) for table in self._tables}
        self._recent = {each: kept for each, kept in self._recent.items() if each > step - _RECENT} | {
            step: held
        }
        for pin in self._pins.values():
            self._hold(pin, step, held)

    def leave(self) -> None:
        """Its epoch is over: what is held may come to be otherwise in the next one, and goes."""
        self._recent = {}
        for name in [*self._pins]:
            self.release(name)

    async def pin(self, name: str, tables: Sequence[str], step: int, within_s: float) -> int:
        """Hold tables under a name, for so long at most: the first step before which they are held, ``step`` or later.

        Waits for that where the member has not begun yet. Raises NotPinned if the epoch ends first; KeyError.
        """
        for table in tables:
            if table not in self._tables:
                raise KeyError(table)
        timer = asyncio.get_running_loop().call_later(within_s, self.release, name)
        pin = self._pins[name] = _Pin(tables, timer)
        for at, held in sorted(self._recent.items()):
            self._hold(pin, at, held)
        while pin.first is None:
            await self._change(pin)
        return max(pin.first, self._floor, step)

    async def runs(self, name: str, step: int) -> _Held:
        """Return the tables of a pin before a step, as they are stored; waits until the member has reached it.

        Later steps can still be read. Raises NotPinned.
        """
        return (await self._reached(name, step)).held[step]

    async def rows(self, name: str, step: int) -> Mapping[str, Sequence[pa.RecordBatch] | None]:
        """Return the tables of a pin before a step; waits until the member has reached it. Raises NotPinned."""
        pin = await self._reached(name, step)
        async with pin.turn:
            if pin.chosen is None:
                pin.chosen, pin.held = step, {step: pin.held[step]}
                pin.rows = await asyncio.to_thread(_netted, pin.held[step])
        return pin.rows

    async def _reached(self, name: str, step: int) -> _Pin:
        """A pin that holds what was before a step."""
        while (pin := self._pins.get(name)) is not None and step not in pin.held:
            if pin.first is not None and step < pin.first:
                raise NotPinned(name)
            await self._change(pin)
        if pin is None:
            raise NotPinned(name)
        return pin

    async def _change(self, pin: _Pin) -> None:
        await pin.changed.wait()
        if pin.released:
            raise NotPinned
        pin.changed.clear()

    def release(self, name: str) -> None:
        """Hold it no more. Again: nothing."""
        pin = self._pins.pop(name, None)
        if pin is not None:
            pin.timer.cancel()
            pin.released = True
            pin.changed.set()

    def _hold(self, pin: _Pin, step: int, held: _Held) -> None:
        if pin.chosen is None:
            pin.held[step] = {table: held[table] for table in pin.tables}
            pin.first = step if pin.first is None else pin.first
            pin.changed.set()


def _netted(held: _Held) -> Mapping[str, Sequence[pa.RecordBatch] | None]:
    return {table: None if runs is None else netted(runs) for table, runs in held.items()}


class _Pin:
    __slots__ = ("changed", "chosen", "first", "held", "released", "rows", "tables", "timer", "turn")

    def __init__(self, tables: Sequence[str], timer: asyncio.TimerHandle) -> None:
        self.tables = tables
        self.timer = timer
        self.held: dict[int, _Held] = {}
        self.rows: Mapping[str, Sequence[pa.RecordBatch] | None] = {}
        self.turn = asyncio.Lock()
        self.first: int | None = None
        self.chosen: int | None = None
        self.changed = asyncio.Event()
        self.released = False
