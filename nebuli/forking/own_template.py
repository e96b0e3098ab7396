"""The template of this process: the commands that it starts on this machine are forked from it.

A command of `nebuli` that needs one forks it before anything else, and has it adopted. Any other program has one
started when its first worker or member is.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nebuli.forking.spawner import Spawner

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["adopted", "has_template", "own_spawner", "start_template"]

_PROGRAM = """
import socket, sys
from nebuli.cli.local_template import serve_commands
serve_commands(socket.socket(fileno=int(sys.argv[1])))
"""
_own: dict[int, Spawner] = {}
"""That of this process, by its id: a child that was forked has none yet."""


def own_spawner(besides: Spawner | None = None) -> Spawner:
    """Return the spawner of this process' template, which is started if there is none, or only the one ``besides``."""
    found = _own.get(os.getpid())
    if found is None or found.is_lost or found is besides:
        found = _own[os.getpid()] = Spawner(start_template())
    return found


def has_template() -> bool:
    """True if this process has a template."""
    return os.getpid() in _own


@contextmanager
def adopted(template: socket.socket) -> Iterator[None]:
    """Have a template as this process' own, as long as the context is."""
    before = _own.get(os.getpid())
    _own[os.getpid()] = Spawner(template)
    try:
        yield
    finally:
        if before is None:
            del _own[os.getpid()]
        else:
            _own[os.getpid()] = before


def start_template() -> socket.socket:
    """Start a template, which ends with this process; the socket for its `Spawner`."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        # -P, because the working directory is the user's, and its files are not modules of ours.
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno())], pass_fds=[theirs.fileno()]
        )

    @atexit.register
    def end() -> None:
        ours.close()
        process.wait()

    return ours
