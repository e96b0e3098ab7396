"""A world whose wires delay, swallow and change what they carry."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from itertools import count

from netchannel import Timing
from netchannel.core.frames import Buffer
from netchannel.core.link import Core, Link
from tests.support.world import End, World


class FaultyWorld(World):
    """Bytes arrive after ``delay_s`` at most; a deaf end hears nothing, and nobody is told."""

    def __init__(self, seed: int, timing: Timing) -> None:
        super().__init__(seed, timing=timing)
        self.delay_s = 0.0
        self.clock_offset_s = 0.0
        self.data_blocked = False
        self.deaf: set[End] = set()
        self._arriving: dict[End, deque[tuple[float, bytes]]] = {}
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
            self._arriving.pop(one, None)
            self.deaf.discard(one)
        super().cut(end, reason)

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

    def _dial(self, link: Link) -> None:
        ends = len(self.ends)
        super()._dial(link)
        if self.data_blocked and not link.control:
            self.deaf.update(self.ends[ends:])

    def _carry(self, end: End, buffers: list[Buffer]) -> None:
        if end in self.deaf:
            return
        if not self.delay_s and end not in self._arriving:
            super()._carry(end, buffers)
            return
        arriving = self._arriving.setdefault(end, deque())
        due = self.now + self.random.random() * self.delay_s
        arriving.append((max(due, arriving[-1][0]) if arriving else due, b"".join(buffers)))

    def _read(self, end: End) -> bool:
        arriving = self._arriving.get(end)
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
