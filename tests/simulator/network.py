"""A world whose wires delay, swallow and change what they carry."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from itertools import count

from netchannel import Timing
from netchannel.core.control_connection import ControlLink
from netchannel.core.link import Core, Link
from netchannel.wire.frames import Buffer
from tests.support.world import End, World


class Ghost(Link):
    """Says what somebody has said before, on a connection of its own, and does not listen."""

    def get_buffer(self, hint: int) -> memoryview:
        return self.core.slab

    def _received(self, n: int, now: float) -> None:
        pass

    def _lost(self, reason: str, now: float) -> None:
        pass


class FaultyWorld(World):
    """Bytes arrive after ``delay_s`` at most, and after what each way of a connection takes: ``latency_s`` at most.

    A deaf end hears nothing, and nobody is told.
    """

    def __init__(self, seed: int, timing: Timing) -> None:
        super().__init__(seed, timing=timing)
        self.delay_s = 0.0
        self.latency_s = 0.0
        self.outrun_s = (
            0.0  # how much later arrives what the next sender says once it is greeted, and hangs up
        )
        self.said: list[tuple[str, bytearray]] = []  # of each control connection, to whom and what
        self.clock_offset_s = 0.0
        self.data_blocked = False
        self.deaf: set[End] = set()
        self._arriving: dict[End, deque[tuple[float, bytes]]] = {}
        self._latencies: dict[End, float] = {}
        self._recorded: dict[End, bytearray] = {}
        self._outrun: dict[End, float] = {}
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def wall(self) -> int:
        """A clock that somebody sets now and then."""
        return int((self.now + self.clock_offset_s) * 1e6)

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something in so many seconds."""
        heapq.heappush(self._agenda, (self.now + seconds, next(self._order), action))

    def step(self) -> bool:
        while self._agenda and self._agenda[0][0] <= self.now:
            heapq.heappop(self._agenda)[2]()
        return super().step()

    def let_time_pass(self) -> None:
        """To the next thing that happens by itself."""
        self._pass(self.now + 10.0)

    def cut(self, end: End, reason: str = "reset") -> None:
        for one in (end, end.peer):
            self._forget(one)
        super().cut(end, reason)

    def _forget(self, end: End) -> None:
        self.deaf.discard(end)
        for known in (self._arriving, self._latencies, self._recorded, self._outrun):
            known.pop(end, None)

    def hang_up(self, end: End, late_s: float = 0.0) -> None:
        """``end`` loses the connection; what is under way from there arrives, ``late_s`` later, and then the close."""
        if end.over:
            return
        peer = end.peer
        arriving = self._arriving.setdefault(peer, deque())
        due = arriving[-1][0] if arriving else self.now
        self._arriving[peer] = deque((when + late_s, data) for when, data in arriving)
        self._arriving[peer].append((due + late_s, b""))
        self._forget(end)
        self.ends.remove(end)
        end.over = peer.hung_up = True
        end.link.lost("reset", self.now)

    def replay(self) -> bool:
        """Somebody says again, on a new connection, what a control connection has carried; whether there was one."""
        reachable = [(to, said) for to, said in self.said if to in self.listening and len(said) > 100]
        if not reachable:
            return False
        to, said = self.random.choice(reachable)
        core = Core("ghost", self.timing, self.wall, self.random.randbytes)
        ghost = Ghost(core, to)
        self._connect(ghost, self.listening[to])
        self._carry(ghost.adapter.peer, [bytes(said)])
        self.after(self.random.random() * 10, lambda: self.hang_up(ghost.adapter))
        return True

    def swallow(self, core: Core) -> None:
        """Nothing that is sent to or from the connections of ``core`` arrives any more; they stay open."""
        for end in self.ends:
            if core in (end.link.core, end.peer.link.core):
                self.deaf.add(end)

    def vanish(self, core: Core) -> None:
        """The machine of ``core`` is gone, and nobody says so to its peers."""
        self.swallow(core)
        self.cores.remove(core)
        self.stalled.discard(core)
        self.listening = {address: other for address, other in self.listening.items() if other is not core}
        for end in [end for end in self.ends if end.link.core is core]:
            end.over = True
            self.ends.remove(end)

    def crash(self, core: Core) -> None:
        self.stalled.discard(core)
        super().crash(core)

    def flip(self) -> bool:
        """Change a bit of something on its way; whether anything was."""
        ends = [end for end in self.ends if end.inbox and end not in self.deaf]
        if not ends:
            return False
        inbox = self.random.choice(ends).inbox
        inbox[self.random.randrange(len(inbox))] ^= 1 << self.random.randrange(8)
        return True

    def _met(self, here: End, there: End) -> None:
        """A connection is made: it has its own latencies."""
        super()._met(here, there)
        if self.latency_s:
            for end in (here, there):
                self._latencies[end] = self.random.random() * self.latency_s
        if self.data_blocked and not here.link.control:
            self.deaf.update((here, there))
        if isinstance(here.link, ControlLink):
            self._recorded[there] = bytearray()
            self.said.append((here.link.remote, self._recorded[there]))
            if self.outrun_s:
                self._outrun[there], self.outrun_s = self.outrun_s, 0.0

    def _carry(self, end: End, buffers: list[Buffer]) -> None:
        if end in self.deaf:
            return
        data = b"".join(buffers)
        if (recorded := self._recorded.get(end)) is not None:
            recorded += data
        due = self.now + self._latencies.get(end, 0.0) + self.random.random() * self.delay_s
        if end in self._outrun and end.peer.link.greeted:  # type: ignore[attr-defined]
            late_s = self._outrun.pop(end)
            self.after(self.random.random() * 0.2, lambda: self.hang_up(end.peer))
            self._latencies[end] = self._latencies.get(end, 0.0) + late_s
            due += late_s
        if due <= self.now and end not in self._arriving:
            super()._carry(end, [data])
            return
        arriving = self._arriving.setdefault(end, deque())
        arriving.append((max(due, arriving[-1][0]) if arriving else due, data))

    def _read(self, end: End) -> bool:
        arriving = self._arriving.get(end)
        if arriving is None and not end.inbox and not end.hung_up:
            return False  # as most ends at most times
        while arriving and arriving[0][0] <= self.now:
            end.inbox += arriving.popleft()[1]
        if end in self.deaf or (end.hung_up and arriving and not end.inbox):
            return False
        if arriving is not None and not arriving:
            del self._arriving[end]
        return super()._read(end)

    def _due(self) -> list[float]:
        due = super()._due()
        due += [arriving[0][0] for arriving in self._arriving.values() if arriving]
        due += [when for when, *_ in self._agenda[:1]]
        return [when for when in due if when > self.now]
