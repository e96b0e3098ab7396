"""Blobs as files, below one directory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nebuli.disk_room import what_to_do
from nebuli.durable_files import make_directory, sync_directory
from nebuli.store.errors import StorageError, StoreFailed, StoreFull
from nebuli.store.names import file_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_UNFINISHED = ".part"


class FileBlobs:
    """One file for each, written under another name, synced and then renamed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: set[str] = set()

    def put(self, folder: str, name: str, buffers: Sequence[Any]) -> None:
        """Write a blob, durably."""
        path = self._path(folder, name)
        try:
            if folder not in self._made:
                make_directory(path.parent)
                sync_directory(self._directory)  # another process may have made it just now
                self._made.add(folder)
            aside = path.with_name(name + _UNFINISHED)
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                _write(descriptor, buffers)
                os.fsync(descriptor)
            except BaseException:
                aside.unlink(missing_ok=True)
                raise
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _failed(path, "writing", error) from error
        try:
            aside.rename(path)
            sync_directory(path.parent)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _failed(path, "writing", error) from error

    def get(self, folder: str, name: str) -> pa.Buffer:
        """Read into memory: a file that is damaged meanwhile is noticed by its checksum."""
        path = self._path(folder, name)
        try:
            with pa.OSFile(str(path)) as file:
                return file.read_buffer()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _failed(path, "reading", error) from error

    def delete(self, folder: str, names: Sequence[str]) -> None:
        """Delete blobs, which may come back after a loss of power: searches for names do not miss them."""
        for name in names:
            path = self._path(folder, name)
            try:
                path.unlink(missing_ok=True)
                path.with_name(name + _UNFINISHED).unlink(missing_ok=True)
            except OSError as error:
                raise _failed(path, "deleting", error) from error

    def names(self, folder: str) -> list[str]:
        """Files, finished or not."""
        directory = self._directory / file_name(folder)
        try:
            return sorted({each.name.removesuffix(_UNFINISHED) for each in directory.iterdir()})
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _failed(directory, "listing", error) from error

    def _path(self, folder: str, name: str) -> Path:
        return self._directory / file_name(folder) / name


def _write(descriptor: int, buffers: Sequence[Any]) -> None:
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        while view:
            view = view[os.write(descriptor, view) :]


def _failed(path: Path, doing: str, error: OSError) -> StorageError:
    if (remedy := what_to_do(error)) is not None:
        return StoreFull(str(path), error.strerror, remedy)
    return StoreFailed(str(path), doing, error.strerror or error)
