"""Memory that a sender lends to a receiver on its host: bodies are copied or made there, and only references travel.

Each loan belongs to one data connection. It comes back when the receiver reports that it has no references
left, and not before: messages of a lost connection may still be read at its other end, until the receiver
reports that it is over, and which of them are still in use.

A part in which a producer makes a body is also the producer's own, as long as anything here refers to it.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from netchannel.core.shared_memory import ALIGNMENT
from netchannel.errors import ProtocolError
from netchannel.log_texts import log
from netchannel.wire import messages
from netchannel.wire.allocations import address_of
from netchannel.wire.frames import SHARED_FROM, Scattered, pieces_of, unpacked_offsets

if TYPE_CHECKING:
    from collections.abc import Callable

    from netchannel.core.shared_memory import SharedMemory
    from netchannel.wire.declarations import Message
    from netchannel.wire.frames import Body, Buffer

ABOUT_MEMORY = (messages.Meet, messages.Shared, messages.Holds, messages.Released)
"""Messages of a receiver about it."""
LIGHTER = 4
"""How much less a lent byte counts in a write: its reference goes through the socket, and it is copied once."""
LENT_AT_ONCE, TOGETHER = 1 << 22, 8
"""Bytes that a producer brings in one turn of the loop where they are lent, in so many bodies at most: more of them are
out of the processor's cache when they are copied."""
GRAIN = 1 << 12
"""Loans are rounded up to so many bytes, so that gaps between them are not too small to be of use."""
assert GRAIN % ALIGNMENT == 0


def weight(size: int) -> int:
    """Return the weight of a lent body in a write; not less than the smallest, which are bounded as usual."""
    return max(size // LIGHTER, SHARED_FROM)


class FreeList:
    """The free parts of a memory. The lowest that fits is taken: what was in use last is in the processor's cache."""

    def __init__(self, size: int) -> None:
        self.starts = [0]
        self.ends = [size]

    def take(self, size: int) -> int | None:
        """Take ``size`` bytes: at which offset; None if there is no room."""
        for index, start in enumerate(self.starts):
            end = start + size
            if end <= self.ends[index]:
                if end == self.ends[index]:
                    del self.starts[index], self.ends[index]
                else:
                    self.starts[index] = end
                return start
        return None

    def give_back(self, start: int, size: int) -> None:
        """Free what was taken."""
        starts, ends, end = self.starts, self.ends, start + size
        index = bisect_left(starts, start)
        if index and ends[index - 1] == start:
            index -= 1
            ends[index] = end
        else:
            starts.insert(index, start)
            ends.insert(index, end)
        if index + 1 < len(starts) and starts[index + 1] == end:
            ends[index] = ends[index + 1]
            del starts[index + 1], ends[index + 1]


class Loan:
    """The loans over one data connection: sizes by offset. ``over``: its other end reads no more references."""

    __slots__ = ("over", "sizes")

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.over = False


class _Part:
    """A part that a producer has: ``kept`` by anything here, ``lent`` to the receiver."""

    __slots__ = ("end", "kept", "lent", "start", "watch")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.kept = True
        self.lent = False
        self.watch: weakref.ref[pa.Buffer] | None = None


class Lender:
    """The memory that is lent to one receiver, for as long as a control connection lasts.

    The first body that could go there asks for it.
    """

    def __init__(self, shared_memory: SharedMemory, peer: str, say: Callable[[Message], None]) -> None:
        self._shared_memory = shared_memory
        self._peer = peer
        self._say = say
        self._asked = self._met = False
        self._over = False  # nothing is lent any more, or ever
        self._handed_over: memoryview | None = None
        self._memory: memoryview | None = None
        self._free = FreeList(0)
        self._loans: dict[bytes, Loan] = {}
        self._left = Loan()  # what is in use of connections that are gone
        self._address = 0
        self._parts: dict[int, _Part] = {}  # that producers have, by where they begin
        self._parts_lent: dict[int, _Part] = {}  # by the offsets of the bodies that are lent
        self._gone: deque[_Part] = deque()  # to which nothing refers here, and which are still to be freed
        self._freed_soon = False

    @property
    def lends(self) -> bool:
        """True if there is memory, though there may be no room in it now."""
        return self._memory is not None

    def loan(self, token: bytes) -> Loan:
        """The loan over the data connection that has shown ``token``."""
        return self._loans.setdefault(token, Loan())

    def lost(self, token: bytes) -> None:
        """Note that the connection is gone. Its loans come back when it is over at the receiver, too."""
        if token in self._loans and not self._loans[token].sizes:
            del self._loans[token]  # it may never have been there

    def allocate(self, size: int) -> pa.Buffer | None:
        """A part of ``size`` bytes, to make bodies in; None if there is no room now, or ever.

        It is free again once nothing refers to the buffer, and what was lent of it has come back.
        """
        memory = self._memory
        if memory is None:
            self._ask()
            return None
        whole = -(-size // GRAIN) * GRAIN
        start = self._free.take(whole)
        if start is None:
            return None
        part = self._parts[start] = _Part(start, start + whole)
        buffer = pa.py_buffer(memory[start : start + size])
        part.watch = weakref.ref(buffer, partial(self._let_go, part))
        return buffer

    def _let_go(self, part: _Part, watch: object) -> None:
        """Note that nothing refers to a part; called on any thread, in the middle of anything."""
        self._gone.append(part)
        # Without a lock: if two threads find it unset, `_free_parts` is called twice, and once finds nothing.
        if not self._freed_soon:
            self._freed_soon = True
            self._shared_memory.soon(self._free_parts)

    def _free_parts(self) -> None:
        """Free what nothing refers to any more, here or there."""
        self._freed_soon = False  # before it is looked at: what goes meanwhile is freed the next time
        while self._gone and self._memory is not None:
            part = self._gone.popleft()
            part.kept = False
            del self._parts[part.start]
            if not part.lent:
                self._free.give_back(part.start, part.end - part.start)

    def lend(self, loan: Loan, body: Body) -> int | None:
        """Let the receiver read ``body``: at which offset; None if there is no room now, or ever.

        It is copied, if it was not made in this memory, or is being read there already.
        """
        memory = self._memory
        if memory is None:
            self._ask()
            return None
        if loan.over:
            return None
        if self._parts and (offset := self._in_place(body)) is not None:
            loan.sizes[offset] = 0  # its part knows its size
            return offset
        return self._copied(memory, loan, body)

    def _in_place(self, body: Body) -> int | None:
        """Where a body lies that was made in this memory, which is lent now; None if it is to be copied."""
        if isinstance(body, Scattered):
            return None
        offset = address_of(body) - self._address
        part = self._parts.get(offset // GRAIN * GRAIN)
        if part is None or part.lent or offset % ALIGNMENT or offset + len(body) > part.end:
            return None
        part.lent = True
        self._parts_lent[offset] = part
        return offset

    def _copied(self, memory: memoryview, loan: Loan, body: Body) -> int | None:
        """Copy a body to where there is room."""
        size = -(-len(body) // GRAIN) * GRAIN
        offset = self._free.take(size)
        if offset is None:
            return None
        loan.sizes[offset] = size
        start = offset
        for piece in pieces_of(body):
            view = memoryview(piece).cast("B")
            memory[start : start + len(view)] = view
            start += len(view)
        return offset

    def _ask(self) -> None:
        if not (self._asked or self._over):
            self._asked = True
            self._say(messages.Share(place=self._shared_memory.place))

    def told(self, message: messages.Meet | messages.Shared | messages.Holds | messages.Released) -> None:
        """The receiver has sent a message about it. Raises ProtocolError if that cannot be."""
        match message:
            case messages.Meet():
                self._meet(message)
            case messages.Shared():
                self._shared(message.size)
            case messages.Holds():
                self._holds(message.token, message.offsets)
            case messages.Released():
                self.returned(self._left, message.offsets)

    def _meet(self, message: messages.Meet) -> None:
        """The receiver waits for the memory."""
        if not self._asked or self._met:
            raise ProtocolError(f"{self._peer} waits for memory that was not offered")
        self._met = True
        size = min(message.size, self._shared_memory.size) // GRAIN * GRAIN
        if size:
            self._handed_over = self._shared_memory.hand_over(message.meeting, message.token, size)

    def _shared(self, size: int) -> None:
        """The receiver has it, or will not have any."""
        memory, self._handed_over = self._handed_over, None
        if size == 0:
            self._have_none()
            return
        if memory is None or len(memory) != size:
            raise ProtocolError(
                f"{self._peer} has {size} bytes of shared memory that this side has not handed over"
            )
        self._memory, self._free, self._address = memory, FreeList(size), address_of(memory)
        log.info("%s takes messages in shared memory: at most %d bytes of it", self._peer, size)

    def _have_none(self) -> None:
        # A receiver may send this any number of times, and it counts once.
        if self._asked and self._memory is None and not self._over:
            self._over = True
            text = (
                "%s takes no messages in shared memory: it runs as another user or in another container, or "
                "could not map the memory: see its log"
            )
            log.info(text, self._peer)

    def returned(self, loan: Loan, packed: Buffer) -> None:
        """Free what was lent. Raises ProtocolError if it was not lent."""
        offsets = unpacked_offsets(packed)
        if loan.over:  # it was sent before its connection ended, and is read after the message about that end
            return
        for offset in offsets:
            size = loan.sizes.pop(offset, None)
            if size is None:
                raise ProtocolError(
                    f"{self._peer} released shared memory at {offset}, which it does not hold"
                )
            self._came_back(offset, size)

    def _came_back(self, offset: int, size: int) -> None:
        """Free what the receiver has let go of, if no producer has it."""
        part = self._parts_lent.pop(offset, None)
        if part is None:
            self._free.give_back(offset, size)
            return
        part.lent = False
        if not part.kept:
            self._free.give_back(part.start, part.end - part.start)

    def _holds(self, token: bytes, packed: bytes) -> None:
        """A data connection is over at its other end, and of what was lent over it all else is free."""
        loan = self._loans.pop(token, Loan())
        loan.over = True
        for offset in unpacked_offsets(packed):
            size = loan.sizes.pop(offset, None)
            if size is None:
                raise ProtocolError(
                    f"{self._peer} reported shared memory at {offset}, which it does not hold"
                )
            self._left.sizes[offset] = size  # it comes back by the control connection, as its own is gone
        for offset, size in loan.sizes.items():
            self._came_back(offset, size)
        loan.sizes.clear()

    def close(self) -> None:
        """The control connection is gone: nothing is lent any more. Memory in use is never written to again."""
        memory, self._memory = self._memory, None
        self._over = True
        self._parts.clear()
        self._parts_lent.clear()
        if memory is not None:
            for start, end in zip(self._free.starts, self._free.ends, strict=True):
                self._shared_memory.give_back(memory, start, end - start)
