"""A small file that is replaced as a whole: what it was before, or what it is now, whenever a crash comes."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from xxhash import xxh3_64_intdigest

from .failures import NO_SPACE, broken, damaged, no_space
from .files import read_all, write_all
from .manifest import NEW

if TYPE_CHECKING:
    from pathlib import Path

    from .files import FileSystem

_SUM = struct.Struct("<Q")


def replace_file(files: FileSystem, path: Path, content: bytes) -> None:
    """Make ``content`` that of the file, durably: written under another name, synced, renamed.

    Raises StorageFull, and then the file is what it was; LogBroken.
    """
    beside = path.with_name(path.name + NEW)
    try:
        if beside.name in files.list_directory(path.parent):
            files.unlink(beside)
        file = files.create(beside)
        try:
            write_all(file, [_SUM.pack(xxh3_64_intdigest(content)), content], 0)
            file.fdatasync()
        finally:
            file.close()
        files.rename(beside, path)
        files.sync_directory(path.parent)
    except OSError as error:
        if error.errno in NO_SPACE:
            raise no_space(path.parent, len(content), error) from error
        raise broken(path, 0, "replacing", error) from error


def file_content(files: FileSystem, path: Path) -> bytes | None:
    """What `replace_file` wrote last; None if there is none. Raises LogDamaged, LogBroken."""
    try:
        if path.name not in files.list_directory(path.parent):
            return None
        file = files.open(path)
        try:
            data = read_all(file, file.size(), 0)
        finally:
            file.close()
    except OSError as error:
        raise broken(path, 0, "reading", error) from error
    content = data[_SUM.size :]
    if len(data) < _SUM.size or _SUM.unpack_from(data)[0] != xxh3_64_intdigest(content):
        raise damaged(path, 0, "it does not match its checksum")
    return content
