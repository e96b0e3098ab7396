"""Memory that producers fill and send: what lies there is found again by its address, and goes as one piece.

An allocation lasts as long as anything refers to it: a view, an array, a message that is kept. A message of Arrow's
format has its header in front of its columns, so there is room for one before what the producer gets.
"""

from __future__ import annotations

import contextlib
import struct
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .frames import Buffer

HEADER_ROOM = 1 << 12
"""Bytes for the header of a batch: of one with 80 columns or so."""
ALIGNED = 64
"""Messages begin and allocations end at multiples of so many bytes."""
PADDING = 8
"""The columns of a message begin at multiples of so many bytes; a piece that is smaller lies between two of them."""

_PREFIX = struct.Struct("<II")
_CONTINUATION = 0xFFFFFFFF


class _Allocation:
    """What one `add` has given out; ``header`` is what was put in front of it, once something was."""

    __slots__ = ("header", "view", "whole")

    def __init__(self, whole: weakref.ref[pa.Buffer], view: weakref.ref[memoryview]) -> None:
        self.whole = whole
        self.view = view
        self.header = b""


class Allocations:
    """What the producer of a channel has been given, each with ``room`` bytes before it, by their addresses."""

    def __init__(self, room: int = 0) -> None:
        self.room = room
        self.known: dict[int, _Allocation] = {}

    def whole(self, size: int) -> int:
        """The bytes that are to be had for an allocation of ``size``."""
        return self.room + -(-size // ALIGNED) * ALIGNED

    def add(self, whole: pa.Buffer, size: int) -> memoryview:
        """Note memory of `whole` (``size``) bytes: what of it is the producer's."""
        address = whole.address + self.room
        view = memoryview(whole).cast("B")[self.room : self.room + size]
        watch = weakref.ref(whole, partial(self._forget, address))
        self.known[address] = _Allocation(watch, weakref.ref(view))
        return view

    def _forget(self, address: int, watch: weakref.ref[pa.Buffer]) -> None:
        """Note that nobody refers to it; called on any thread, in the middle of anything."""
        known = self.known.get(address)
        if known is not None and known.whole is watch:
            del self.known[address]

    def sent(self, value: Any) -> None:
        """Take views back from the producer that has sent them, or a part: a write by one of them raises ValueError.

        What else refers to the memory, an array of numpy's for instance, stays as it is.
        """
        whole = value.obj if isinstance(value, memoryview) else None
        if not isinstance(whole, pa.Buffer):
            return
        known = self.known.get(whole.address + self.room)
        if known is None or known.whole() is not whole:
            return
        for view in (value, known.view()):
            if view is not None:
                with contextlib.suppress(BufferError):
                    view.release()

    def in_one_piece(self, pieces: Sequence[Buffer], columns: int) -> memoryview | None:
        """A batch of Arrow's, which is ``pieces`` long, where its columns lie; None if it is to be sent as it is.

        That takes columns of one buffer each, one behind the other from the beginning of an allocation on, as the
        format has them. The header is written in front of them, and never another one: a message that was sent
        before, a slice of the batch say, may have it still.
        """
        index = next((at for at, piece in enumerate(pieces) if address_of(piece) in self.known), 0)
        known = self.known.get(address_of(pieces[index]))
        if known is None or not 0 < sum(map(len, pieces[:index])) <= self.room:
            return None
        whole, size = known.whole(), _extent(pieces[index:], columns)
        if whole is None or not size:
            return None
        memory = memoryview(whole).cast("B")
        header = _aligned(b"".join(pieces[:index]))
        start = self.room - len(header)
        if not known.header:
            memory[start : self.room] = header
            known.header = header
        elif known.header != header:
            return None
        return memory[start : self.room + size]


def address_of(piece: Buffer) -> int:
    """Where it lies."""
    return int(pa.py_buffer(piece).address)


def _extent(pieces: Sequence[Buffer], columns: int) -> int:
    """The length of so many columns with what is between them, if they lie one behind the other; 0 else."""
    start = due = address_of(pieces[0])
    for piece in pieces:
        if len(piece) >= PADDING:
            if address_of(piece) != due:
                return 0
            columns -= 1
        due += len(piece)
    return 0 if columns else due - start


def _aligned(header: bytes) -> bytes:
    """The same metadata, in a message whose body begins at a multiple of `ALIGNED`."""
    size = -(-len(header) // ALIGNED) * ALIGNED
    return (_PREFIX.pack(_CONTINUATION, size - _PREFIX.size) + header[_PREFIX.size :]).ljust(size, b"\0")
