"""A channel's folder: locked, made, checked, thrown away."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from netchannel.errors import ChannelInUse, SchemaMismatch

from .faults import damaged
from .files import Locked
from .layout import JOURNAL, SEALED, SPARE, SUFFIX, UNSEALED
from .manifest import DISCARDED, LOCK, MANIFEST, MARKS, NEW, Manifest, read_manifest, write_manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .files import FileSystem, Lock


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
            holder = "a process that has not said its id yet" if error.pid is None else f"process {error.pid}"
            raise ChannelInUse(
                f"the buffer of channel {channel_id!r} in {path} is in use by {holder}; close the channel there, or "
                "use another directory"
            ) from None
        except FileNotFoundError:
            continue  # whoever discarded the log removed the folder in between


def claim(folder: Folder, channel_id: str, codec: str, create_stream: Callable[[], str]) -> Manifest:
    """The manifest of the log in the folder, made if there is none. Raises LogDamaged, SchemaMismatch, OSError."""
    files, path, _ = folder
    names = files.list_directory(path)
    if MANIFEST not in names:
        if DISCARDED in names:
            _remove_contents(files, path)
        elif any(name.endswith((SUFFIX, SEALED)) or name == JOURNAL for name in names):
            raise damaged(path / MANIFEST, 0, "it is missing, and there are messages")
        manifest = Manifest(channel_id, create_stream(), codec)
        write_manifest(files, path, manifest)
        return manifest
    files.sync_directory(path)  # who made the manifest may have been stopped before this
    manifest = read_manifest(files, path)
    if manifest.channel_id != channel_id:
        raise damaged(
            path / MANIFEST, 0, f"the folder is that of channel {manifest.channel_id!r}, not {channel_id!r}"
        )
    if manifest.codec != codec:
        raise SchemaMismatch(
            f"the buffer of channel {channel_id!r} in {path} holds messages of codec {manifest.codec!r}, not "
            f"{codec!r}; register it with that codec, or use another directory"
        )
    return manifest


def discard(folder: Folder, *beside: str) -> None:
    """Remove all of the log, at once even where a crash interrupts it. The lock is still held, on no file.

    What others keep ``beside`` it, by these names, goes too.
    """
    files, path, _ = folder
    files.rename(path / MANIFEST, path / DISCARDED)
    files.sync_directory(path)
    _remove_contents(files, path, *beside)
    files.unlink(path / LOCK)
    with suppress(OSError):  # the next opener is there already
        files.remove_directory(path)


def _remove_contents(files: FileSystem, path: Path, *beside: str) -> None:
    whole = {MARKS, JOURNAL, *(name + NEW for name in (MANIFEST, JOURNAL)), *beside}
    for name in files.list_directory(path):
        if name in whole or name.endswith((SUFFIX, SEALED, UNSEALED, SPARE)):
            files.unlink(path / name)
    # What says that they are to go must go after them.
    files.sync_directory(path)
    files.unlink(path / DISCARDED)
    files.sync_directory(path)
