"""Why no more can be written to a disk, and what to do about it: it is full, or a quota or a limit is reached."""

from __future__ import annotations

import errno
import os
import resource
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["lacking", "what_to_do"]

_PROBE = bytes(1 << 16)
"""As much as a database may want to write at once: so near to a limit it is that which is in the way."""


def what_to_do(error: Exception) -> str | None:
    """Return the remedy for a lack of room; None if the error is another one."""
    match error:
        case OSError(errno=errno.ENOSPC):
            return "free some space"
        case OSError(errno=errno.EDQUOT):
            return "free some space, or have the quota raised"
        case OSError(errno=errno.EFBIG):
            limit = _size_limit()
            most = "" if limit is None else f", {limit:,} bytes here"
            return f"raise the limit for the size of a file (ulimit -f{most})"
    return None


def lacking(folder: Path, files: Iterable[Path]) -> OSError | None:
    """Return the obstacle to writing these files of a folder, or a new one in it; None if there is none.

    For errors of libraries that only report that writing failed: tries it, with a file that is removed again.
    """
    limit = _size_limit()
    if limit is not None and any(_size(file) + len(_PROBE) > limit for file in files):
        return OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    probe = folder / f".room-{os.getpid()}"
    try:
        with probe.open("wb") as file:
            file.write(_PROBE)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error if what_to_do(error) is not None else None
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
    return None


def _size_limit() -> int | None:
    """How many bytes a file of this process may have, if it has such a limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if soft == resource.RLIM_INFINITY else soft


def _size(file: Path) -> int:
    with suppress(OSError):
        return file.stat().st_size
    return 0
