"""Schemas and contexts as they come: cut into frames, which are joined again."""

from __future__ import annotations

from netchannel.errors import ProtocolError

from .frames import FRAME_LIMIT, LAST, Frame, Kind


class Pieces:
    """Joins what comes in SCHEMA or CONTEXT frames, of at most ``limit`` bytes together."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kind: int | None = None  # of what has begun, and is not whole
        self._count = 0
        self._joined = bytearray()

    def check_whole(self, frame: Frame) -> None:
        """Raise ProtocolError for a frame that comes in the middle of the pieces of something else."""
        if self._kind is not None and frame.kind != self._kind:
            raise ProtocolError(
                f"a frame {Kind(frame.kind).name} came where piece {self._count} of a {Kind(self._kind).name} was due"
            )

    def add(self, frame: Frame) -> bytes | None:
        """Take the next piece; all of them once it is the last. Raises ProtocolError for any other one."""
        name = Kind(frame.kind).name
        if frame.items != self._count:
            raise ProtocolError(f"piece {frame.items} of a {name} came where piece {self._count} was due")
        if len(frame.payload) > FRAME_LIMIT:
            raise ProtocolError(
                f"piece {frame.items} of a {name} has {len(frame.payload)} bytes: the limit is {FRAME_LIMIT}"
            )
        self._joined += frame.payload
        if len(self._joined) > self._limit:
            raise ProtocolError(
                f"a {name} of {len(self._joined)} bytes, or more, came: the limit here is {self._limit}"
            )
        if not frame.flags & LAST:
            self._kind, self._count = frame.kind, self._count + 1
            return None
        whole, self._joined, self._kind, self._count = bytes(self._joined), bytearray(), None, 0
        return whole
