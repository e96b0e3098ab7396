"""Kinds of files, by their first bytes: for messages about one that is not of the kind that was expected."""

from __future__ import annotations

from pathlib import Path

__all__ = ["kind_of", "kind_of_file"]

_MAGIC_BYTES = 4
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zX": "xz", b"\x28\xb5\x2f\xfd": "Zstandard"}
_KINDS = {
    **{magic: f"it is compressed with {name}: decompress it" for magic, name in _COMPRESSED.items()},
    b"\xff\xfe": "it is text in UTF-16: write it in UTF-8",
    b"\xfe\xff": "it is text in UTF-16: write it in UTF-8",
    b"PAR1": "it is a Parquet file: give the source type: Parquet",
    b"PK\x03\x04": "it is a zip archive: take the file out of it",
}


def kind_of(start: bytes) -> str | None:
    """Return what a file is by its first bytes, and what to do about that; None if that cannot be told."""
    return next((kind for magic, kind in _KINDS.items() if start.startswith(magic)), None)


def kind_of_file(path: str) -> str | None:
    """Return the same of a file. Raises OSError."""
    with Path(path).open("rb") as file:
        return kind_of(file.read(_MAGIC_BYTES))
