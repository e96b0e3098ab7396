"""Files that are read more than once: not pipes and devices, whose opening may wait for ever."""

from __future__ import annotations

import stat
from pathlib import Path

from nebuli.connectors.errors import InputError

__all__ = ["size_of"]

_OTHERS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def size_of(path: str) -> int:
    """How many bytes a file has. Raises InputError where it is something else, without opening it; OSError."""
    found = Path(path).stat()
    other = _OTHERS.get(stat.S_IFMT(found.st_mode))
    if other is not None:
        raise InputError(
            f"{path} is {other}, and its rows cannot be read a second time; expected a file: write them to one"
        )
    return found.st_size
