"""Files that are complete or absent, even after a crash, and those that only this user may read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["make_directory", "sync_directory", "write_durably", "write_privately"]


def make_directory(directory: Path) -> None:
    """Make a directory, with all above it, that is there also after a loss of power. Raises OSError."""
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync_directory(each.parent)


def write_durably(path: Path, text: str) -> None:
    """Write a file that contains the text, or what it did, also after a loss of power. Raises OSError, with a name."""
    aside = path.with_name(f".{path.stem}.new")
    try:
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path)
        sync_directory(path.parent)
    except OSError as error:  # of a full disk, for example, as the failing call has only a descriptor
        error.filename = error.filename or str(path)
        raise


def sync_directory(directory: Path) -> None:
    """Keep a directory's entries through a loss of power. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_privately(path: Path, text: str) -> None:
    """Make a file that no other user may read, from its first moment on. Raises OSError, also where there is one."""
    path.touch(0o600, exist_ok=False)
    path.write_text(text, "utf-8")
