"""Where a file that grows was when it was synced last, and whether a file is the one that was there then."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Self

import xxhash

from nebuli.connectors.errors import OutputChanged, OutputGone

if TYPE_CHECKING:
    from pathlib import Path

_BLOCK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class FilePosition:
    """``size`` bytes were synced; ``block`` is a checksum of the last of them, which a copy of the file has, too."""

    size: int
    block: str

    @classmethod
    def of(cls, descriptor: int, size: int) -> Self:
        """The position behind so many bytes of a file that can be read. Raises OSError."""
        return cls(size, _checksum(descriptor, size))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """What `text` gave."""
        return cls(**json.loads(text))

    @property
    def text(self) -> str:
        """For keeping."""
        return json.dumps(asdict(self))

    def check(self, descriptor: int, path: Path) -> None:
        """Raise OutputGone or OutputChanged where a file does not have what was synced; OSError."""
        there = os.fstat(descriptor).st_size
        if self.size and not there:
            raise OutputGone(f"{path} is empty, and {self.size:,} bytes had been written to it")
        if there < self.size:
            raise OutputChanged(str(path), f"has {there:,} bytes, and {self.size:,} had been written to it")
        if _checksum(descriptor, self.size) != self.block:
            raise OutputChanged(
                str(path), f"is not as it was written: before byte {self.size:,} it has something else"
            )


def _checksum(descriptor: int, size: int) -> str:
    """Of the last block below ``size``."""
    start = max(size - _BLOCK_BYTES, 0)
    found = b""
    while len(found) < size - start:
        piece = os.pread(descriptor, size - start - len(found), start + len(found))
        if not piece:
            break
        found += piece
    return xxhash.xxh3_64_hexdigest(found)
