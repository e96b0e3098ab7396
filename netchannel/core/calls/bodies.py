"""Bodies of calls and of answers in pieces: cut, so that what is small comes in between, and joined again."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from netchannel.errors import ProtocolError
from netchannel.wire.envelope import encode
from netchannel.wire.messages import PIECE_LIMIT, Call, CallPiece, Returned

if TYPE_CHECKING:
    from collections.abc import Callable

SMALL = 16 << 10
"""A body of up to so many bytes is sent at once: it delays nothing else for long, and takes little memory."""


def large(size: int) -> int:
    """Return a body's share of the bound on bytes of bodies; small ones are bounded by their number."""
    return size if size > SMALL else 0


class _Parcel:
    """A body that is not sent completely."""

    __slots__ = ("body", "first", "gone", "said")

    def __init__(
        self, first: Callable[[bytes], Call | Returned], body: bytes, gone: Callable[[], None]
    ) -> None:
        self.first = first
        self.body = memoryview(body)
        self.gone = gone
        self.said = 0


class PieceQueue:
    """Bodies that are being sent, by the number of their calls: a piece of each in turn."""

    def __init__(self) -> None:
        self._parcels: OrderedDict[int, _Parcel] = OrderedDict()
        self.bytes = 0
        """Bytes that are not sent yet."""

    def __bool__(self) -> bool:
        return bool(self._parcels)

    def add(
        self,
        request: int,
        first: Callable[[bytes], Call | Returned],
        body: bytes,
        gone: Callable[[], None] = lambda: None,
    ) -> None:
        """Send ``body``, with its ``first`` piece in its own message; ``gone`` is called when all is sent."""
        self._parcels[request] = _Parcel(first, body, gone)
        self.bytes += len(body)

    def drop(self, request: int) -> int | None:
        """Stop sending a body; returns how many bytes of it were sent. None if there is no such body."""
        parcel = self._parcels.pop(request, None)
        if parcel is None:
            return None
        self.bytes -= len(parcel.body) - parcel.said
        return parcel.said

    def next(self) -> list[bytes]:
        """Return the next part to send: the pieces of some bodies, or one of PIECE_LIMIT bytes."""
        said: list[bytes] = []
        room = PIECE_LIMIT
        while self._parcels and room > 0:
            request, parcel = self._parcels.popitem(last=False)
            piece = bytes(parcel.body[parcel.said : parcel.said + PIECE_LIMIT])
            message = CallPiece(request=request, body=piece) if parcel.said else parcel.first(piece)
            said.append(encode(message))
            parcel.said += len(piece)
            self.bytes -= len(piece)
            room -= len(piece)
            if parcel.said < len(parcel.body):
                self._parcels[request] = parcel
            else:
                parcel.gone()
        return said


class Reassembly:
    """A body that comes in pieces, the first of them with the message that has its ``size``."""

    __slots__ = ("_come", "_size")

    def __init__(self, size: int, first: bytes) -> None:
        self._size = size
        self._come = bytearray(first)  # what is claimed is not believed: memory is taken as bytes arrive

    def add(self, piece: bytes) -> None:
        """One more has come. Raises ProtocolError if that is too much."""
        self._come += piece
        if len(self._come) > self._size:
            raise ProtocolError(
                f"a body of {self._size} bytes arrived in pieces of {len(self._come)} bytes in total"
            )

    def whole(self) -> bytes | None:
        """The body, once all of it has come."""
        return bytes(self._come) if len(self._come) == self._size else None
