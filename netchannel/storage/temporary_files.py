"""A file system in files without names, for data that need not outlive the process: its disk space is always freed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from .files import Lock, RealFile, abandon_in_children


class _File(RealFile):
    """A file of which nothing lasts, so that nothing is waited for."""

    def fdatasync(self) -> None:
        """Nothing."""

    def hasten(self, offset: int, size: int) -> None:
        """Nothing."""


class _Lock:
    """A lock that is not needed, as no other process can see the file."""

    def note(self) -> bytes:
        """Return nothing: there was no earlier holder."""
        return b""

    def write_note(self, note: bytes) -> None:
        """Do nothing: there is no later holder."""

    def release(self) -> None:
        """Nothing."""

    def abandon(self) -> None:
        """Nothing."""


class TemporaryFiles:
    """A `FileSystem` whose names this object alone knows; the disk gets the space back when it goes, or the process.

    ``directory`` is on the disk that holds the contents.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptors: dict[Path, int] = {}
        abandon_in_children(self)

    def make_directories(self, path: Path) -> None:
        """Nothing: directories are parts of names."""

    def sync_directory(self, path: Path) -> None:
        """Nothing."""

    def list_directory(self, path: Path) -> list[str]:
        """Names of files."""
        return [name.name for name in self._descriptors if name.parent == path]

    def free_bytes(self, path: Path) -> int:
        """Bytes that are free on the disk that holds the contents."""
        found = os.statvfs(self._directory)
        return found.f_bavail * found.f_frsize

    def remove_directory(self, path: Path) -> None:
        """Nothing."""

    def create(self, path: Path) -> RealFile:
        """Make a file that has no name."""
        with tempfile.TemporaryFile(dir=self._directory, buffering=0) as file:
            self._descriptors[path] = os.dup(file.fileno())
        return self.open(path)

    def open(self, path: Path) -> RealFile:
        """Open it once more. Raises FileNotFoundError."""
        try:
            return _File(os.dup(self._descriptors[path]))
        except KeyError:
            raise FileNotFoundError(path) from None

    def rename(self, old: Path, new: Path) -> None:
        """Give it another name."""
        self._descriptors[new] = self._descriptors.pop(old)

    def unlink(self, path: Path) -> None:
        """Forget it."""
        descriptor = self._descriptors.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def lock(self, path: Path) -> Lock:
        """Always there."""
        return _Lock()

    def close(self) -> None:
        """Forget all files."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def abandon(self) -> None:
        """Close the files in a forked child, whose parent continues with them."""
        self.close()


def spill_directory() -> Path:
    """Directory for temporary files on disk: ``$TMPDIR``, else ``/var/tmp``, as ``/tmp`` is memory on many hosts."""
    if "TMPDIR" not in os.environ and os.access("/var/tmp", os.W_OK):  # noqa: S108 - the files have no names there
        return Path("/var/tmp")  # noqa: S108
    return Path(tempfile.gettempdir())
