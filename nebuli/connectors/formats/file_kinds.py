"""Files of another kind than expected: by their first bytes, and by their inodes."""

from __future__ import annotations

import stat
from pathlib import Path

from nebuli.connectors.errors import InputError
from topology.file_kinds import FIRST_BYTES, kind_of_bytes

__all__ = ["kind_of_file", "size_of"]

_OTHERS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def kind_of_file(path: str) -> str | None:
    """Return what a file is that is not as expected, by its first bytes, and what to do. Raises OSError."""
    with Path(path).open("rb") as file:
        return kind_of_bytes(file.read(FIRST_BYTES))


def size_of(path: str) -> int:
    """How many bytes a file has. Raises InputError where it is something else, without opening it; OSError."""
    found = Path(path).stat()
    other = _OTHERS.get(stat.S_IFMT(found.st_mode))
    if other is not None:
        raise InputError(
            f"{path} is {other}, whose rows cannot be read a second time; expected a file: write "
            f"the rows to a file"
        )
    return found.st_size
