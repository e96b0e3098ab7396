"""Kinds of files, for messages about one of another kind than expected: by its first bytes, and by its inode."""

from __future__ import annotations

import stat
from pathlib import Path

from nebuli.connectors.errors import InputError

__all__ = ["kind_of", "kind_of_file", "size_of"]

_MAGIC_BYTES = 4
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zX": "xz", b"\x28\xb5\x2f\xfd": "Zstandard"}
_KINDS = {
    **{magic: f"it is compressed with {name}: decompress it" for magic, name in _COMPRESSED.items()},
    b"\xff\xfe": "it is text in UTF-16: write it in UTF-8",
    b"\xfe\xff": "it is text in UTF-16: write it in UTF-8",
    b"PAR1": "it is a Parquet file: give the source type: Parquet",
    b"PK\x03\x04": "it is a zip archive: take the file out of it",
}
_OTHERS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def kind_of(start: bytes) -> str | None:
    """Return what a file is by its first bytes, and what to do about that; None if that cannot be told."""
    return next((kind for magic, kind in _KINDS.items() if start.startswith(magic)), None)


def kind_of_file(path: str) -> str | None:
    """Return the same of a file. Raises OSError."""
    with Path(path).open("rb") as file:
        return kind_of(file.read(_MAGIC_BYTES))


def size_of(path: str) -> int:
    """How many bytes a file has. Raises InputError where it is something else, without opening it; OSError."""
    found = Path(path).stat()
    other = _OTHERS.get(stat.S_IFMT(found.st_mode))
    if other is not None:
        raise InputError(
            f"{path} is {other}, and its rows cannot be read a second time; expected a file: write them to one"
        )
    return found.st_size
