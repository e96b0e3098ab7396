"""How the messages of a chunk stand in a record of a staged attempt's file (`netchannel.storage.layout`).

With the flag ``TABLES``, the payload begins with a table of body lengths and one of note lengths (u64, little-endian),
and the notes, padded with zeros to a multiple of 8; the bodies follow, each padded likewise. Without it, the payload is
the body of one message that has no note.
"""

from __future__ import annotations

import struct
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from netchannel.core.receiving.queue import Chunk
    from netchannel.storage.segment import LogRecord
    from netchannel.wire.frames import Buffer

TABLES = 1
_PADS = [bytes(-length & 7) for length in range(8)]


def packed(chunk: Chunk) -> tuple[int, list[Buffer]]:
    """Flags and payload of a record; what is large stays where it is."""
    bodies, notes = chunk.bodies, chunk.notes or [b""] * len(chunk.bodies)
    if len(bodies) == 1 and not notes[0]:
        return 0, [bodies[0]]
    count = len(bodies)
    tables = struct.pack(f"<{2 * count}Q", *map(len, bodies), *map(len, notes))
    joined = b"".join(notes)
    head = [tables, joined, _PADS[len(joined) & 7]]
    padded = [part for body in bodies for part in (body, _PADS[len(body) & 7])]
    return TABLES, [b"".join(head), *padded] if count == 1 else [b"".join([*head, *padded])]


def unpacked(record: LogRecord) -> tuple[list[memoryview], list[bytes]]:
    """Bodies and notes; no notes if all are empty."""
    payload, count = record.payload, record.end - record.first
    if not record.flags & TABLES:
        return [payload], []
    lengths = struct.unpack_from(f"<{2 * count}Q", payload)
    at = 16 * count
    notes = [bytes(payload[start : start + size]) for start, size in _places(lengths[count:], at, 1)]
    at += sum(lengths[count:])
    at += -at & 7
    bodies = [payload[start : start + size] for start, size in _places(lengths[:count], at, 8)]
    return bodies, notes if any(notes) else []


def _places(lengths: Sequence[int], start: int, align: int) -> list[tuple[int, int]]:
    """The place and length of each of several pieces that follow each other from ``start`` on."""
    starts = accumulate((length + (-length % align) for length in lengths), initial=start)
    return list(zip(starts, lengths, strict=False))
