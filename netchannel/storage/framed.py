"""What vouches for messages that are on disk as they go on the wire, in frames (`netchannel.wire.frames`).

A frame's checksum is made once, when the frame is, and covers all its bytes. So the sum of an entry that holds frames
is that of their headers, in which their checksums are: each byte is summed once on its way to the disk, and once on its
way back, before it is sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xxhash import xxh3_64_intdigest

from netchannel.wire.frames import HEADER, HEADER_SIZE, SUMMED_FROM

from .files import nbytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .files import Buffer

_LENGTH = 5
"""The place of the length of its payload among a frame's fields."""


def sum_of_headers(frames: Sequence[Buffer]) -> int:
    """The sum of ``frames``, of which each begins with a buffer that its header is in."""
    headers: list[Buffer] = []
    left = 0
    for buffer in frames:
        if not left and nbytes(buffer):
            headers.append(buffer[:HEADER_SIZE])
            left = HEADER_SIZE + int(HEADER.unpack(headers[-1])[_LENGTH])
        left -= nbytes(buffer)
    if left:
        raise ValueError(f"the last frame is another than its header says, by {left} bytes")
    return _sum(headers)


def are_frames(data: memoryview, headers_sum: int) -> bool:
    """Whether ``data`` is the frames with that sum, and each of them is whole."""
    headers: list[memoryview] = []
    start, size = 0, len(data)
    while start < size:
        begin = start + HEADER_SIZE
        if begin > size:
            return False
        header = data[start:begin]
        checksum, _, _, _, _, length, *_ = HEADER.unpack(header)
        end = begin + length
        if end > size or xxh3_64_intdigest(data[start + SUMMED_FROM : end]) & 0xFFFFFFFF != checksum:
            return False
        headers.append(header)
        start = end
    return _sum(headers) == headers_sum


def _sum(headers: list[Buffer] | list[memoryview]) -> int:
    return xxh3_64_intdigest(headers[0] if len(headers) == 1 else b"".join(headers)) & 0xFFFFFFFF
