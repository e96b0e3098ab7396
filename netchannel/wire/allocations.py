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
    """The memory of one `add`; ``header`` is the header written in front of it, if any."""

    __slots__ = ("header", "view", "whole")

    def __init__(self, whole: weakref.ref[pa.Buffer], view: weakref.ref[memoryview]) -> None:
        self.whole = whole
        self.view = view
        self.header = b""


class Allocations:
    """Memory given to the producer of a channel, each piece with ``room`` bytes before it, by their addresses."""

    def __init__(self, room: int = 0) -> None:
        self.room = room
        self.known: dict[int, _Allocation] = {}

    def whole(self, size: int) -> int:
        """The bytes available for an allocation of ``size``."""
        return self.room + -(-size // ALIGNED) * ALIGNED

    def add(self, whole: pa.Buffer, size: int) -> memoryview:
        """Note memory of `whole` (``size``) bytes: what of it is the producer's."""
        address = whole.address + self.room
        view = memoryview(whole).cast("B")[self.room : self.room + size]
        watch = weakref.ref(whole, partial(self._forget, address))
        self.known[address] = _Allocation(watch, weakref.ref(view))
        return view

    def _forget(self, address: int, watch: weakref.ref[pa.Buffer]) -> None:
        """Note that it has no references left; called on any thread, in the middle of anything."""
        known = self.known.get(address)
        if known is not None and known.whole is watch:
            del self.known[address]

    def sent(self, value: Any) -> None:
        """Take views back from the producer that has sent them, or a part: a write by one of them raises ValueError.

        Other references to the memory, such as a numpy array, stay as they are.
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

        That takes columns of one buffer each, one after the other from the beginning of an allocation, as the
        format has them. The header is written in front of them, and never another one: a message that was
        sent before, such as a slice of the batch, may still have it.
        """
        places = [address_of(piece) if len(piece) >= PADDING else None for piece in pieces]
        index = next((at for at, place in enumerate(places) if place in self.known), 0)
        known = self.known.get(places[index] or 0)
        size = _extent(pieces[index:], places[index:], columns)
        whole = None if known is None else known.whole()
        if not index or known is None or whole is None or not size:
            return None
        memory = memoryview(whole).cast("B")
        header = b"".join(pieces[:index])
        aligned = -(-len(header) // ALIGNED) * ALIGNED
        start = self.room - aligned
        if not known.header and 0 < aligned <= self.room:
            memory[start : self.room] = _padded(header, aligned)
            known.header = header
        return memory[start : self.room + size] if known.header == header else None


def address_of(piece: Buffer) -> int:
    """Where it lies."""
    place: int = pa.py_buffer(piece).address
    return place


def _extent(pieces: Sequence[Buffer], places: Sequence[int | None], columns: int) -> int:
    """Return the length of so many columns with the gaps between them, if they are consecutive; otherwise 0."""
    size, start = 0, places[0] or 0
    for piece, place in zip(pieces, places, strict=True):
        if place is not None:
            if place != start + size:
                return 0
            columns -= 1
        size += len(piece)
    return 0 if columns else size


def _padded(header: bytes, size: int) -> bytes:
    """The same metadata in ``size`` bytes, so that the message's body begins after these."""
    return (_PREFIX.pack(_CONTINUATION, size - _PREFIX.size) + header[_PREFIX.size :]).ljust(size, b"\0")
