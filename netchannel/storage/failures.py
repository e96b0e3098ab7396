"""Errors of storage: failed operations and missing data."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from netchannel.errors import LogBroken, LogDamaged, MessagesLost, StorageFull

if TYPE_CHECKING:
    from pathlib import Path

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


_RESTORE = "restore the file from a copy"


def damaged(path: Path, offset: int, what: str, remedy: str = _RESTORE) -> LogDamaged:
    """The error for durable bytes that are not there any more."""
    return LogDamaged(
        f"{path} is damaged at byte {offset}: {what}; {remedy}, or move its folder away to start a new "
        f"stream and lose unacknowledged messages",
        path=str(path),
        offset=offset,
    )


def lost(folder: Path, first: int, end: int | None, what: str) -> MessagesLost:
    """The error for messages that were durable: a file that held them is not there."""
    which = f"messages from number {first} on" if end is None else f"messages {first} to {end - 1}"
    return MessagesLost(
        f"{which} are missing in {folder}, although they were not acknowledged: {what}; restore the folder's missing "
        "files from a copy, or move the folder away to start a new stream and lose all unacknowledged messages",
        path=str(folder),
        first=first,
        end=end,
    )


def broken(path: Path, offset: int, doing: str, cause: OSError) -> LogBroken:
    """The error for a failed write or sync, which may have left anything beyond what was durable."""
    return LogBroken(
        f"{doing} {path} at byte {offset} failed: {cause.strerror or cause} (errno {cause.errno}); nothing "
        f"more is written here, but durable messages can still be read; check the disk, then register the "
        f"channel again",
        path=str(path),
        offset=offset,
        errno=cause.errno,
    )


def unreadable(path: Path, offset: int, cause: OSError) -> LogBroken:
    """The error for a read that the disk refused."""
    return LogBroken(
        f"reading {path} at byte {offset} failed: {cause.strerror or cause} (errno {cause.errno}); check the disk",
        path=str(path),
        offset=offset,
        errno=cause.errno,
    )


def no_space(directory: Path, needed_bytes: int, cause: OSError) -> StorageFull:
    """The error for a full disk, after the written part of the record was removed."""
    return StorageFull(
        f"no space is left on the disk of {directory} for a record of {needed_bytes} bytes "
        f"({cause.strerror or cause}); free some space, or wait until the receiver has acknowledged more",
        needed_bytes=needed_bytes,
    )


def over_limit(directory: Path, needed_bytes: int, used_bytes: int, limit_bytes: int) -> StorageFull:
    """The error for a record that would exceed ``max_disk_bytes``."""
    return StorageFull(
        f"a record of {needed_bytes} bytes does not fit into {directory}: {used_bytes} of max_disk_bytes="
        f"{limit_bytes} are used; wait until the receiver has acknowledged more, or raise the limit",
        needed_bytes=needed_bytes,
    )
