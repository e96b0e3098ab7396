"""A file that a sink alone writes to, and that notices when something else cuts, extends, moves or replaces it."""

from __future__ import annotations

import io
import json
import os
import stat
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, Self

import xxhash

from nebuli.connectors.errors import OutputChanged, OutputGone

if TYPE_CHECKING:
    from pathlib import Path

    from _typeshed import ReadableBuffer

__all__ = ["OwnedFile"]

_BLOCK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class FilePosition:
    """``size`` bytes were synced; ``block`` is a checksum of the last of them, which a copy of the file has, too."""

    size: int
    block: str

    @classmethod
    def of(cls, descriptor: int, size: int) -> Self:
        """Return the position after so many bytes of a file that can be read. Raises OSError."""
        return cls(size, _checksum(descriptor, size))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse the result of `text`."""
        return cls(**json.loads(text))

    @property
    def text(self) -> str:
        """For keeping."""
        return json.dumps(asdict(self))

    def check(self, descriptor: int, path: Path) -> None:
        """Raise OutputGone or OutputChanged where a file does not have what was synced; OSError."""
        there = os.fstat(descriptor).st_size
        if self.size and not there:
            raise OutputGone(f"{path} is empty, but {self.size:,} bytes had been written to it")
        if there < self.size:
            raise OutputChanged(str(path), f"has {there:,} bytes, but {self.size:,} had been written to it")
        if _checksum(descriptor, self.size) != self.block:
            raise OutputChanged(
                str(path), f"was changed: its first {self.size:,} bytes differ from the written ones"
            )


def _checksum(descriptor: int, size: int) -> str:
    """Return the checksum of the last block below ``size``."""
    start = max(size - _BLOCK_BYTES, 0)
    found = b""
    while len(found) < size - start:
        piece = os.pread(descriptor, size - start - len(found), start + len(found))
        if not piece:
            break
        found += piece
    return xxhash.xxh3_64_hexdigest(found)


_REMEDY = "keep other programs from it while the query runs, and run the query again"


class OwnedFile(io.FileIO):
    """A regular file, open for writing at its end and for reading. ``size`` is how many bytes it is to have.

    The system appends each write (O_APPEND). So a file that was cut does not get a hole of its old size, and bytes of
    other programs are not overwritten: its size stays wrong, and each later check finds that.
    """

    def __init__(self, path: Path, mode: Literal["w+b", "r+b"]) -> None:
        super().__init__(path, mode, opener=_open_to_append)
        self.size = 0

    def cut(self, size: int) -> None:
        """Drop all bytes from there on. Raises OSError."""
        self.truncate(size)
        self.seek(size)
        self.size = size

    def write(self, data: ReadableBuffer) -> int:
        """Append, perhaps a part of it. Raises OSError."""
        written = super().write(data)
        self.size += written
        return written

    def check(self, place: Path, name: str) -> None:
        """Raise OutputChanged, with a ``name``, unless ``place`` leads to it and it has its size; OSError."""
        own = os.fstat(self.fileno())
        try:
            there = place.stat()
        except (FileNotFoundError, NotADirectoryError):
            raise OutputChanged(name, "was deleted or moved while it was written", _REMEDY) from None
        if not os.path.samestat(there, own):
            what = "another file" if stat.S_ISREG(there.st_mode) else "something other than a file"
            raise OutputChanged(name, f"was replaced by {what} while it was written", _REMEDY)
        if own.st_size != self.size:
            what = "cut" if own.st_size < self.size else "extended"
            raise OutputChanged(
                name,
                f"was {what} while it was written: it has {own.st_size:,} bytes, but {self.size:,} had been "
                "written to it",
                _REMEDY,
            )


def _open_to_append(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_APPEND, 0o666)
