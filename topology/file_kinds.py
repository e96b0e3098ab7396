"""Kinds of files by their bytes, for messages about one of another kind than expected."""

from __future__ import annotations

__all__ = ["FIRST_BYTES", "kind_of", "kind_of_bytes"]

FIRST_BYTES = 256
"""So many bytes of a file determine its kind."""
_IN_UTF_8 = "write it in UTF-8"
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zX": "xz", b"\x28\xb5\x2f\xfd": "Zstandard"}
_KINDS = {
    **{magic: f"it is compressed with {name}: decompress it" for magic, name in _COMPRESSED.items()},
    b"\xff\xfe\0\0": f"it is text in UTF-32: {_IN_UTF_8}",
    b"\0\0\xfe\xff": f"it is text in UTF-32: {_IN_UTF_8}",
    b"\xff\xfe": f"it is text in UTF-16: {_IN_UTF_8}",
    b"\xfe\xff": f"it is text in UTF-16: {_IN_UTF_8}",
    b"PAR1": "it is a Parquet file: give the source type: Parquet",
    b"ARROW1": "it is an Arrow IPC file: write it as Parquet",
    b"PK\x03\x04": "it is a zip archive: take the file out of it",
    b"\x7fELF": "it is a program: give the path of the data",
    b"%PDF-": "it is a PDF document: export its data as text",
    b"SQLite format 3\0": "it is a SQLite database: export a table of it",
}
_PAGE = (b"<!doctype html", b"<html")


def kind_of(start: bytes) -> str | None:
    """Return the kind of a file by its first bytes, and the remedy; None if it is not known."""
    return next((kind for magic, kind in _KINDS.items() if start.startswith(magic)), None)


def kind_of_bytes(start: bytes) -> str | None:
    """Do the same for bytes that are known not to be the expected text: fewer are enough."""
    if (kind := kind_of(start)) is not None:
        return kind
    if start.lower().startswith(_PAGE):
        return "it is a page of a web site: download the data itself"
    if len(start) > 3 and any({*start[at::2]} == {0} for at in (0, 1)):
        return f"it is text in UTF-16: {_IN_UTF_8}"
    if b"\0" in start:
        return "it is binary data, not text"
    return None
