"""A bell on a file: a write to it wakes all processes that watch it, which costs one system call."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import TYPE_CHECKING

from nebuli.store.errors import StoreUnusable

if TYPE_CHECKING:
    from pathlib import Path

_MODIFIED = 0x2
_CLOSE_ON_EXEC, _NON_BLOCKING = os.O_CLOEXEC, os.O_NONBLOCK

_REMEDIES = {
    errno.EMFILE: "raise fs.inotify.max_user_instances (sysctl), or open fewer stores at a time",
    errno.ENOSPC: "raise fs.inotify.max_user_watches (sysctl), or open fewer stores at a time",
    errno.ENOENT: "it was deleted or moved after it was opened",
}
_libc = ctypes.CDLL(None, use_errno=True)


class AppendSignal:
    """Notices writes to a file by inotify: nothing is polled, and a killed process leaves no trace."""

    def __init__(self, path: Path) -> None:
        """Listen to a file. Raises StoreUnusable."""
        self._descriptor: int = _libc.inotify_init1(_CLOSE_ON_EXEC | _NON_BLOCKING)
        if self._descriptor < 0:
            raise _refused(path)
        if _libc.inotify_add_watch(self._descriptor, os.fsencode(path), _MODIFIED) < 0:
            error = _refused(path)
            os.close(self._descriptor)
            raise error

    def fileno(self) -> int:
        """The descriptor that can be read when it has rung."""
        return self._descriptor

    def silence(self) -> None:
        """Silence it: its ring was noticed."""
        try:
            while os.read(self._descriptor, 1 << 16):
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Close it: nothing waits for it any more."""
        os.close(self._descriptor)


def _refused(path: Path) -> StoreUnusable:
    code = ctypes.get_errno()
    remedy = _REMEDIES.get(code)
    return StoreUnusable(
        f"{path} cannot be watched: {os.strerror(code)}{'' if remedy is None else f'; {remedy}'}"
    )
