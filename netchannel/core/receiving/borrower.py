"""Memory that a receiver has from a sender on its host, and what of it is in use here.

A body there is a buffer of Arrow, and so is kept by everything that is made of it: views, slices, columns,
batches. When the last of these goes, on whatever thread, the sender is notified that it may write there
again.

A forked child has what its parent had in use, and may read it when the parent is done with it: that never
comes back.
"""

from __future__ import annotations

import os
import weakref
from bisect import bisect_right, insort
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import pyarrow as pa

from netchannel.core.shared_memory import ALIGNMENT
from netchannel.errors import ProtocolError
from netchannel.log_texts import log
from netchannel.wire import messages
from netchannel.wire.frames import packed_offsets

if TYPE_CHECKING:
    from collections.abc import Callable

    from netchannel.core.link import Core
    from netchannel.core.shared_memory import SharedMemory
    from netchannel.wire.declarations import Message


class LoanLink(Protocol):
    """The data connection over which something was lent."""

    def release(self, offset: int) -> None:
        """Note that the memory at ``offset`` is no longer referred to."""


class _Body(NamedTuple):
    """A body in use; ``watch`` calls when it is not any more. ``by`` is None once its connection is gone."""

    end: int
    watch: weakref.ref[pa.Buffer]
    by: LoanLink | None


class Borrower:
    """The memory of one sender, for as long as its control connection lasts, or a body in it is referred to."""

    def __init__(
        self, core: Core, shared_memory: SharedMemory, peer: str, say: Callable[[Message], None]
    ) -> None:
        self._core = core
        self._shared_memory = shared_memory
        self._peer = peer
        self._say = say
        self._token = b""
        self._memory: memoryview | None = None
        self._bodies: dict[int, _Body] = {}
        self._offsets: list[int] = []  # of these, ascending
        self._gone: deque[int] = deque()  # offsets without references, which are still to be sent
        self._told_soon = False
        self._forked: frozenset[int] = frozenset()  # offsets of bodies that a child may read
        _all.add(self)

    def keep_for_children(self) -> None:
        """The process is about to be forked: what is in use stays so."""
        # The fork may be on any thread, and the loop's changes what is in use: the list is made in one step.
        self._forked |= frozenset(list(self._bodies))

    def asked(self, place: bytes) -> None:
        """The sender would share memory."""
        if self._token:
            raise ProtocolError(f"{self._peer} asked to share memory a second time")
        self._token = self._core.random(messages.TOKEN_SIZE)
        meeting = None
        if place == self._shared_memory.place:
            meeting = self._shared_memory.expect(self._token, self._take)
        else:
            text = "%s sends no messages in shared memory: it runs as another user or in another container"
            log.info(text, self._peer)
        if meeting is None:
            self._say(messages.Shared(size=0))
        else:
            self._say(messages.Meet(meeting=meeting, token=self._token, size=self._shared_memory.size))

    def _take(self, memory: memoryview | None) -> None:
        self._memory = memory
        size = 0 if memory is None else len(memory)
        self._say(messages.Shared(size=size))
        if size:
            log.info("%s sends messages in shared memory: at most %d bytes of it", self._peer, size)

    def body(self, offset: int, size: int, by: LoanLink) -> memoryview:
        """A body that is referred to. Raises ProtocolError if it cannot be there."""
        memory, end = self._memory, offset + size
        if memory is None or not 0 < size <= len(memory) - offset or offset % ALIGNMENT:
            has = 0 if memory is None else len(memory)
            raise ProtocolError(
                f"a body of {size} bytes begins at byte {offset} of {has} bytes of shared memory: expected "
                f"a body within the memory, at a multiple of {ALIGNMENT}"
            )
        # No two in use overlap, so that of those that begin before the end only the last may reach into this one.
        index = bisect_right(self._offsets, end - 1)
        if index and self._bodies[self._offsets[index - 1]].end > offset:
            raise ProtocolError(
                f"a body of {size} bytes at {offset} of shared memory overlaps another body in use"
            )
        buffer = pa.py_buffer(memory[offset:end])
        watch = weakref.ref(buffer, partial(self._let_go, offset))
        self._bodies[offset] = _Body(end, watch, by)
        insort(self._offsets, offset)
        return memoryview(buffer).cast("B")

    def _let_go(self, offset: int, watch: object) -> None:
        """Note that a body has no references left; called on any thread, in the middle of anything."""
        self._gone.append(offset)
        # Without a lock: if two threads find it unset, `tell` is called twice, and once finds nothing.
        if not self._told_soon:
            self._told_soon = True
            self._shared_memory.soon(self.tell)

    def tell(self) -> None:
        """Give back what is not in use any more."""
        self._told_soon = False  # before it is looked at: bodies freed meanwhile are sent the next time
        alone: list[int] = []
        while self._gone and self._memory is not None:
            offset = self._gone.popleft()
            if offset in self._forked:
                continue
            by = self._forget(offset).by
            if by is None:
                alone.append(offset)
            else:
                by.release(offset)
        if alone:
            self._say(messages.Released(offsets=packed_offsets(alone)))

    def _forget(self, offset: int) -> _Body:
        del self._offsets[bisect_right(self._offsets, offset) - 1]
        return self._bodies.pop(offset)

    def over(self, by: LoanLink, token: bytes) -> None:
        """A data connection is gone, and nothing more is read of it: of what it brought, this is in use."""
        if self._memory is None:
            return
        kept = [offset for offset, body in self._bodies.items() if body.by is by]
        for offset in kept:
            self._bodies[offset] = self._bodies[offset]._replace(by=None)
        self._say(messages.Holds(token=token, offsets=packed_offsets(kept)))

    def close(self) -> None:
        """The control connection is gone: no notices are sent. Bodies in use stay, and the memory with them."""
        self._shared_memory.expect_no_more(self._token)
        self._memory = None
        self._bodies.clear()
        self._offsets.clear()
        self._gone.clear()


_all: weakref.WeakSet[Borrower] = weakref.WeakSet()


def _keep_for_children() -> None:
    for each in list(_all):
        each.keep_for_children()


os.register_at_fork(before=_keep_for_children)
