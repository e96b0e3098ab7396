"""A channel's folder: locked, made, checked, thrown away."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from netchannel.errors import ChannelInUse, SchemaMismatch

from .failures import damaged
from .files import NOTE_BYTES, Locked
from .layout import JOURNAL, SEALED, SPARE, SUFFIX, UNSEALED
from .manifest import DISCARDED, LOCK, MANIFEST, MARKS, NEW, Manifest, read_manifest, write_manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .files import FileSystem, Lock


_HOLDS, _EMPTY = b"holds messages\n", b" " * NOTE_BYTES
"""The lock's note: whether a folder without a manifest has lost it.

Both have one width: a restart must not need room.
"""


class Folder(NamedTuple):
    """A folder that is ours."""

    files: FileSystem
    path: Path
    lock: Lock


def lock_folder(files: FileSystem, path: Path, channel_id: str) -> Folder:
    """Make the folder if it is missing, and lock it. Raises ChannelInUse, OSError."""
    while True:
        files.make_directories(path)
        try:
            return Folder(files, path, files.lock(path / LOCK))
        except Locked as error:
            holder = (
                "a process that has not written its id yet" if error.pid is None else f"process {error.pid}"
            )
            raise ChannelInUse(
                f"the buffer of channel {channel_id!r} in {path} is in use by {holder}; close the channel there, or "
                "use another directory"
            ) from None
        except FileNotFoundError:
            continue  # the process that discarded the log removed the folder in between


def is_made(folder: Folder) -> bool:
    """True if a log is in the folder; the remains of a discarded one, left by a crash, are removed.

    Raises LogDamaged where there was one, and its manifest is missing; OSError.
    """
    files, path, _ = folder
    names = files.list_directory(path)
    if MANIFEST in names:
        return True
    if DISCARDED in names:
        _remove_contents(folder)
    elif any(name.endswith((SUFFIX, SEALED)) or name in (JOURNAL, MARKS) for name in names):
        raise damaged(path / MANIFEST, 0, "it is missing, although the folder has messages")
    elif folder.lock.note() == _HOLDS:
        raise damaged(
            path / MANIFEST, 0, "it is missing, and so are all messages: the folder was emptied",
            "restore its files from a copy",
        )  # fmt: skip
    return False


def claim(folder: Folder, channel_id: str, codec: str, create_stream: Callable[[], str]) -> Manifest:
    """Return the manifest of the log in the folder, made if there is none.

    Raises LogDamaged, SchemaMismatch, OSError.
    """
    files, path, _ = folder
    if is_made(folder):
        files.sync_directory(path)  # the process that made the manifest may have been stopped before this
        manifest = _checked(path, read_manifest(files, path), channel_id, codec)
    else:
        manifest = Manifest(channel_id, create_stream(), codec)
        write_manifest(files, path, manifest)
    # Every time: the process that made the manifest may have been stopped before this, too.
    folder.lock.write_note(_HOLDS)
    return manifest


def _checked(path: Path, manifest: Manifest, channel_id: str, codec: str) -> Manifest:
    if manifest.channel_id != channel_id:
        raise damaged(
            path / MANIFEST, 0, f"the folder belongs to channel {manifest.channel_id!r}, not {channel_id!r}"
        )
    if manifest.codec != codec:
        raise SchemaMismatch(
            f"the buffer of channel {channel_id!r} in {path} holds messages of codec {manifest.codec!r}, not "
            f"{codec!r}; register it with that codec, or use another directory"
        )
    return manifest


def discard(folder: Folder, *beside: str) -> None:
    """Remove all of the log, at once even where a crash interrupts it. The lock is still held, on no file.

    Other files in its folder, named by ``beside``, go too.
    """
    files, path, _ = folder
    files.rename(path / MANIFEST, path / DISCARDED)
    files.sync_directory(path)
    _remove_contents(folder, *beside)
    files.unlink(path / LOCK)
    with suppress(OSError):  # the next opener is there already
        files.remove_directory(path)


def _remove_contents(folder: Folder, *beside: str) -> None:
    files, path, lock = folder
    whole = {MARKS, JOURNAL, *(name + NEW for name in (MANIFEST, JOURNAL)), *beside}
    for name in files.list_directory(path):
        if name in whole or name.endswith((SUFFIX, SEALED, UNSEALED, SPARE)):
            files.unlink(path / name)
    # The note that they are to go must go after them, and after the note that there is anything.
    files.sync_directory(path)
    lock.write_note(_EMPTY)
    files.unlink(path / DISCARDED)
    files.sync_directory(path)
