"""Event loops in virtual time: one for each process, and a machine room in which they take turns.

What is drawn by the seed is what asyncio and the system leave open, and nothing else:

- whose turn it is, of the processes that have something to do, and how long a turn takes;
- the order in which one turn sees what has arrived on different connections (as epoll's), and whether that comes
  before or after the timers that are due (asyncio has it before, uvloop behind);
- the order of timers that are due at the same time; others run in the order of their times;
- when a disk's job begins, when its thread is through, and which of several is first (see `disk`);
- everything about the network (see `network`).

``call_soon`` is first in, first out within each loop, as asyncio promises.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
import sys
import traceback
from asyncio import events
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .network import Network

TURN_S = 5e-5
"""A turn of a loop takes as long at most."""


class Room:
    """The processes that run, the time, and what is to happen at which."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 1000.0
        self.loops: list[ProcessLoop] = []
        self.problems: list[str] = []
        self._agenda: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()
        self.descriptors = count(1000)
        self.network: Network

    def at(self, when: float, action: Callable[[], object]) -> None:
        """Do something at ``when``."""
        heapq.heappush(self._agenda, (when, next(self._order), action))

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Do something in so many seconds."""
        self.at(self.now + seconds, action)

    def step(self) -> None:
        """What is due, then a turn of one process; if none has anything to do, time passes until one has."""
        agenda = self._agenda
        while agenda and agenda[0][0] <= self.now:
            heapq.heappop(agenda)[2]()
        self.network.carry()
        ready = [loop for loop in self.loops if not loop.stalled and loop.has_work()]
        if ready:
            loop = ready[0] if len(ready) == 1 else self.random.choice(ready)
            loop.turn()
            self.now += self.random.random() * TURN_S
            return
        due = [agenda[0][0]] if agenda else []
        due += [when for loop in self.loops if not loop.stalled and (when := loop.next_timer()) is not None]
        if not due:
            self.problems.append("nothing will ever happen any more")
            return
        self.now = max(self.now, min(due))


class Pollable:
    """What a loop can wait for."""

    descriptor: int

    def ready(self) -> int:
        """`selectors.EVENT_READ`, `selectors.EVENT_WRITE`, both or neither."""
        raise NotImplementedError


class _Selector(selectors._BaseSelectorImpl):  # type: ignore[name-defined] # what all kinds of selectors share
    """Which simulated sockets are ready, in an order that is drawn."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.open: dict[int, Pollable] = {}  # by descriptor
        self._random = random

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready now; never waits."""
        found = []
        for descriptor, key in self._fd_to_key.items():
            if ready := self.open[descriptor].ready() & key.events:
                found.append((key, ready))
        if len(found) > 1:
            self._random.shuffle(found)
        return found

    def finds_some(self) -> bool:
        """Whether `select` would find something."""
        return any(self.open[descriptor].ready() & key.events for descriptor, key in self._fd_to_key.items())


class ProcessLoop(BaseSelectorEventLoop):
    """The event loop of one process, which has a turn when the room says so.

    Its transports are asyncio's own, over simulated sockets. A process that is killed leaves everything as it is: its
    loop gets no turn any more.
    """

    def __init__(self, room: Room, name: str) -> None:
        self.room = room
        self.name = name
        self.offset_s = room.random.random() * 1e4  # the clocks of two machines have nothing in common
        self._closes_silently = room.random.random() < 0.5
        self.stalled = False
        self.alive = True
        self._kept: list[object] = []
        self._polled = _Selector(room.random)
        self.open = self._polled.open
        super().__init__(self._polled)
        room.loops.append(self)

    # -- what the room asks

    def has_work(self) -> bool:
        """Whether a turn would do something."""
        when = self.next_timer()
        return bool(self._ready) or (when is not None and when <= self.room.now) or self._polled.finds_some()

    def next_timer(self) -> float | None:
        """When the first of the timers is due, by the room's clock."""
        scheduled = self._scheduled
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
            self._timer_cancelled_count -= 1
        return scheduled[0]._when - self.offset_s if scheduled else None

    def turn(self) -> None:
        """One turn, as an event loop has it: what is ready now, and nothing that becomes so in it."""
        arrived = self._polled.select()
        due = self._take_due()
        ready = self._ready
        timers_first = self.room.random.random() < 0.5
        if timers_first:
            ready.extend(due)
        self._process_events(arrived)
        if not timers_first:
            ready.extend(due)
        events._set_running_loop(self)
        sys.set_asyncgen_hooks(self._asyncgen_firstiter_hook, self._asyncgen_finalizer_hook)
        try:
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
        finally:
            sys.set_asyncgen_hooks(None, None)
            events._set_running_loop(None)

    def _take_due(self) -> list[asyncio.TimerHandle]:
        due: list[tuple[float, float, asyncio.TimerHandle]] = []
        while (when := self.next_timer()) is not None and when <= self.room.now:
            handle = heapq.heappop(self._scheduled)
            handle._scheduled = False
            due.append((when, self.room.random.random(), handle))
        due.sort(key=lambda entry: entry[:2])
        return [handle for _, _, handle in due]

    def kill(self) -> None:
        """No turn any more."""
        self.alive = False
        self.unfinished = list(
            asyncio.all_tasks(self)
        )  # else some would be finished off by the garbage collector
        self.room.loops.remove(self)

    def bury(self) -> None:
        """What a killed process has left behind goes without a word."""
        self.alive = False
        for transport in list(self._transports.values()):
            transport._sock = None
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined] # as `asyncio.gather` does
            coroutine: Any = task.get_coro()
            while coroutine.cr_frame is not None:  # it may wait again where it cleans up
                with suppress(Exception):
                    coroutine.close()
        self.close()

    def left_over(self) -> list[str]:
        """What should be gone once the process has done all its work."""
        timers = [f"timer {handle!r} {self.time()}" for handle in self._scheduled if not handle._cancelled]
        tasks = [f"task {task!r}" for task in asyncio.all_tasks(self)]
        sockets = [f"socket {each!r}" for each in self.open.values()]
        return [*tasks, *sockets, *timers]

    def soon(self, action: Callable[[], None]) -> None:
        """Call ``action`` in a turn of this process, if there is one."""
        if self.alive and not self.is_closed():
            self.call_soon(action)

    # -- what asyncio asks

    def time(self) -> float:
        return self.room.now + self.offset_s

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.alive:
            error = context.get("exception")
            text = "".join(traceback.format_exception(error)) if error is not None else ""
            self.room.problems.append(f"{self.name}: {context['message']} {context} {text}")

    def _make_self_pipe(self) -> None:
        """Nobody has to be woken: there is one thread."""

    def _close_self_pipe(self) -> None:
        """As above."""

    def _write_to_self(self) -> None:
        """As above."""

    async def create_connection(self, protocol_factory: Any, *, address: str) -> Any:  # type: ignore[override]
        """As for TCP, over the room's network; what is made when the call is cancelled is closed.

        asyncio tells its protocol, uvloop does not.
        """
        connection = await self.room.network.dial(self, address)
        if not self._closes_silently:
            return await self._create_connection_transport(connection, protocol_factory, None, None)
        protocol, waiter = protocol_factory(), self.create_future()
        transport = self._make_socket_transport(connection, protocol, waiter)
        try:
            await waiter
        except BaseException:
            transport.set_protocol(asyncio.Protocol())
            transport.abort()
            raise
        return transport, protocol
