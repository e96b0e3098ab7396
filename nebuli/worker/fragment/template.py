"""The process that a worker and its fragments' processes are forked from: it has everything imported, and no thread.

`fork_worker` makes the calling process that template, and goes on in a child as the worker, which asks over a socket
for more processes (`nebuli.worker.fragment.spawning`). The messages are JSON: ``{"spawn": number}``, with descriptors
for the new process' control connection and standard error, and others that it is to have; ``{"kill": number}``. The
answers are ``{"ended": number, "code": code}``, where the code is negative for a signal; it is null where there was
no process to be had, and ``error`` says why. With the worker ends the template, in the same way, and with the
template all its children, whatever they are at.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from nebuli.without_pandas import hide_pandas

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["fork_worker"]

_LARGEST_MESSAGE = 4096
_MOST_DESCRIPTORS = 253
"""The most descriptors of a message; SCM_MAX_FD, of Linux."""
_SET_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG, of Linux."""


def fork_worker() -> socket.socket:
    """Return in a child, the worker, with its socket to this process, which stays behind and never returns.

    To be called once everything is imported, with a single thread.
    """
    _import_all()
    gc.collect()
    gc.freeze()  # so that a child's collections do not copy the pages that all share
    sys.stdout.flush()
    sys.stderr.flush()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    template = os.getpid()
    worker = os.fork()
    if worker != 0:
        theirs.close()
        _Template(worker, ours).serve()
    _die_with_parent(template)
    ours.close()
    return theirs


def _import_all() -> None:
    """What children need, so that they have it."""
    hide_pandas()
    import nebuli.worker.fragment.fragment_process  # noqa: F401
    from nebuli.connectors.provider import import_built_in
    from placement.sql.sql_tree import parsed

    import_built_in()
    parsed("true")  # the parser makes its tables at first use


class _Template:
    def __init__(self, worker: int, connection: socket.socket) -> None:
        self._pid = os.getpid()
        self._worker = worker
        self._connection = connection
        self._children: dict[int, int] = {}  # number by pid
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            # Whoever has started this process knows it as the worker.
            signal.signal(number, lambda number, _: os.kill(worker, number))

    def serve(self) -> NoReturn:
        """Start and kill processes for the worker, until it has ended."""
        import select

        poll = select.poll()  # it knows no limit of descriptors, unlike select
        for each in (self._connection, self._wake_read):
            poll.register(each, select.POLLIN)
        self._reap()  # who has ended before anybody listened
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._wake_read.fileno():
                    self._wake_read.recv(_LARGEST_MESSAGE)
                    self._reap()
                elif not self._obey():
                    poll.unregister(self._connection)  # the worker is about to end

    def _obey(self) -> bool:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._connection, _LARGEST_MESSAGE, _MOST_DESCRIPTORS)
        except ConnectionResetError:  # it was killed before it had read all that it was told
            return False
        if not data:
            return False
        message = json.loads(data)
        if "spawn" in message:
            self._spawn(message["spawn"], *descriptors)
        else:
            for pid, number in self._children.items():
                if number == message["kill"]:
                    os.kill(pid, signal.SIGKILL)  # it has not been waited for: the pid is still its own
        return True

    def _spawn(self, number: int, control: int, stderr: int, *kept: int) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self._say({"ended": number, "code": None, "error": f"no process could be forked: {error}"})
            pid = -1
        if pid == 0:
            self._become(control, stderr, kept)
        for each in (control, stderr, *kept):
            os.close(each)
        if pid > 0:
            self._children[pid] = number

    def _become(self, control: int, stderr: int, kept: Sequence[int]) -> NoReturn:
        """The child: it runs a fragment."""
        code = 1
        try:
            _die_with_parent(self._pid)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number in (signal.SIGTERM, signal.SIGINT):
                # A signal to the whole group is the worker's to handle, which ends its fragments in order.
                signal.signal(number, lambda *_: None)
            for each in (self._connection, self._wake_read, self._wake_write):
                each.close()
            os.dup2(stderr, 2)
            os.close(stderr)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.close(nothing)
            sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115 - as long as the process
            from nebuli.worker.fragment.fragment_process import run

            code = run(socket.socket(fileno=control), kept)
        except BaseException:  # noqa: BLE001 - whatever it is goes to the worker, as the end of this process' log
            sys.excepthook(*sys.exc_info())
        finally:
            with suppress(OSError):
                sys.stdout.flush()
            os._exit(code)  # threads that are stuck do not keep it

    def _reap(self) -> None:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == self._worker:
                self._end(os.waitstatus_to_exitcode(status))
            if pid == 0:
                return
            self._say({"ended": self._children.pop(pid), "code": os.waitstatus_to_exitcode(status)})

    def _say(self, message: dict[str, object]) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # the worker is about to end
            self._connection.send(json.dumps(message).encode())

    def _end(self, code: int) -> NoReturn:
        """End as the worker did."""
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
        if code < 0:
            if -code != signal.SIGKILL:
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(abs(code))


def _die_with_parent(parent: int) -> None:
    """Have this process die with its parent, as it may be in no state to notice by itself that that was killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it was killed before that
        os._exit(1)
