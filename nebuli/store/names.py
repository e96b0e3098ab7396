"""Names of shards and databases, and what is made of them where they name files."""

from __future__ import annotations

from urllib.parse import quote

from nebuli.store.errors import StorageError

_MAX_BYTES = 200


def file_name(name: str) -> str:
    """The same, where only a file's name can stand; the escapes are those of URLs."""
    return quote(name, safe=" =,@+").replace(".", "%2E")


def checked(name: str) -> str:
    """The name. Raises StorageError for one that cannot be used."""
    if not name or not name.isprintable():
        raise StorageError(f"{name!r} cannot be a name: use one or more printable characters")
    if len(file_name(name)) > _MAX_BYTES:
        raise StorageError(
            f"{name!r} cannot be a name: as a file name it has {len(file_name(name))} bytes, and the limit "
            f"is {_MAX_BYTES}; use a shorter name"
        )
    return name
