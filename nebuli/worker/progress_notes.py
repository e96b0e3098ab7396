"""How far event time has come, as it travels between nodes: the note of a message."""

from __future__ import annotations

import struct

from nebuli.dataflow import Progress
from nebuli.worker.errors import FragmentError

__all__ = ["as_note", "of_note"]

_NOTE = struct.Struct("<q?")  # the watermark in microseconds, and whether its stream is idle


def as_note(progress: Progress) -> bytes:
    """The note that says so."""
    return _NOTE.pack(progress.watermark, progress.idle)


def of_note(note: bytes) -> Progress:
    """What a note says; ``FragmentError`` if it is none of these."""
    if len(note) != _NOTE.size:
        raise FragmentError(
            f"a note has {len(note)} bytes, and a watermark {_NOTE.size}: it comes from no worker, or from one of "
            f"another version"
        )
    return Progress(*_NOTE.unpack(note))
