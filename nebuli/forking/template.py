"""A process without threads that has everything imported, and forks further processes on request.

`Spawner` is the other end of its socket, whose messages are JSON. Requests are ``{"spawn": number}``, with more that
the process is to know, and with descriptors: one for its standard error, and others; and ``{"signal": signal,
"child": number}``. The replies are ``{"started": number, "pid": pid}`` and ``{"ended": number, "code": code}``. The
code is negative for a signal; it is null where no process could be forked, and ``error`` has the reason.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["LARGEST_MESSAGE", "Template", "die_with_parent", "replace"]

LARGEST_MESSAGE = 1 << 17
_MOST_DESCRIPTORS = 253
"""The most descriptors of a message; SCM_MAX_FD, of Linux."""
_SET_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG, of Linux."""


class Template:
    """Forks processes for the other end of ``connection``; each runs ``become`` and exits with the code it returns.

    ``become`` gets the request and the descriptors that came with it, after that for standard error, which is in place;
    standard input is empty. ``lost`` is called when the connection has ended.
    """

    def __init__(
        self,
        connection: socket.socket,
        become: Callable[[Mapping[str, Any], Sequence[int]], int],
        lost: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._become = become
        self._lost = lost
        self._children: dict[int, int] = {}  # number by pid
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> NoReturn:
        """Serve requests forever; `lost`, or the end of another child, ends the process."""
        poll = select.poll()  # it knows no limit of descriptors, unlike select
        for each in (self._connection, self._wake_read):
            poll.register(each, select.POLLIN)
        self._reap()  # children that ended before the handler was there
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._wake_read.fileno():
                    self._wake_read.recv(LARGEST_MESSAGE)
                    self._reap()
                elif not self._obey():
                    poll.unregister(self._connection)
                    self._lost()

    def other_ended(self, pid: int, code: int) -> None:
        """React to the end of a child that was not requested: none here."""

    def kill_all(self) -> None:
        """Kill all children that were requested."""
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)

    def _obey(self) -> bool:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._connection, LARGEST_MESSAGE, _MOST_DESCRIPTORS)
        except ConnectionResetError:  # the other end was killed before it had read all replies
            return False
        if not data:
            return False
        message = json.loads(data)
        if "spawn" in message:
            self._spawn(message, *descriptors)
        else:
            for pid, number in self._children.items():
                if number == message["child"]:
                    os.kill(pid, message["signal"])  # not waited for yet: the pid is still its own
        return True

    def _spawn(self, message: Mapping[str, Any], stderr: int, *kept: int) -> None:
        number = message["spawn"]
        try:
            pid = os.fork()
        except OSError as error:
            self._reply({"ended": number, "code": None, "error": f"no process could be forked: {error}"})
            pid = -1
        if pid == 0:
            self._run(message, stderr, kept)
        for each in (stderr, *kept):
            os.close(each)
        if pid > 0:
            self._children[pid] = number
            self._reply({"started": number, "pid": pid})

    def _run(self, message: Mapping[str, Any], stderr: int, kept: Sequence[int]) -> NoReturn:
        """Run ``become`` in the child."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in (self._connection, self._wake_read, self._wake_write):
                each.close()
            replace(2, stderr)
            replace(0, os.open(os.devnull, os.O_RDONLY))
            sys.stderr = open(2, "w", encoding="utf-8", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115 - as long as the process
            code = self._become(message, kept)
        except BaseException:  # noqa: BLE001 - any error goes to the other end, as the last lines on stderr
            sys.excepthook(*sys.exc_info())
        finally:
            with suppress(OSError, ValueError):  # ValueError: it was closed
                sys.stdout.flush()
            os._exit(code)  # threads that are stuck do not keep it

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            number = self._children.pop(pid, None)
            if number is None:
                self.other_ended(pid, code)
            else:
                self._reply({"ended": number, "code": code})

    def _reply(self, message: dict[str, object]) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # noticed as the end of the connection
            self._connection.send(json.dumps(message).encode())


def replace(standard: int, descriptor: int) -> None:
    """Make a descriptor a standard stream's."""
    os.dup2(descriptor, standard)
    os.close(descriptor)


def die_with_parent(parent: int) -> None:
    """Have this process die with its parent, which may be killed without this process noticing it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it was killed before that
        os._exit(1)
