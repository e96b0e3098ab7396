"""The checksum of an entry in its place, whichever ordering has it."""

from __future__ import annotations

from xxhash import xxh3_64_intdigest

_SIGNED = 1 << 63


def checksum(key: str, sequence: int, data: bytes) -> int:
    """Return the checksum of an entry's contents and of its place; signed, as the integers of databases are."""
    value = xxh3_64_intdigest(data, seed=xxh3_64_intdigest(f"{key}\0{sequence}".encode()))
    return value - (value >= _SIGNED) * (1 << 64)
