"""The process that fragments' processes are forked from: everything is imported there, and no thread runs.

``python -m nebuli.worker.template FD PID``. At the other end of the socket FD is a worker (`nebuli.worker.spawning`),
the process PID. Its messages are JSON: ``{"spawn": number}``, with two descriptors, for the new process' control
connection and standard error; ``{"kill": number}``. The answers are ``{"spawned": number, "pid": pid}`` and
``{"ended": number, "code": code}``, where the code is negative for a signal. With the worker ends this process, and
with this process its children, by whatever they are held up.
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

__all__ = ["main"]

_LARGEST_MESSAGE = 4096
_SET_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG, of Linux."""


class _Template:
    def __init__(self, worker: socket.socket) -> None:
        self._worker = worker
        self._children: dict[int, int] = {}  # number by pid
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Until the worker has gone."""
        import select

        poll = select.poll()  # it knows no limit of descriptors, unlike select
        for each in (self._worker, self._wake_read):
            poll.register(each, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._wake_read.fileno():
                    self._wake_read.recv(_LARGEST_MESSAGE)
                    self._reap()
                elif not self._obey():
                    return

    def _obey(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._worker, _LARGEST_MESSAGE, 2)
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

    def _spawn(self, number: int, control: int, stderr: int) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self._say({"ended": number, "code": None, "error": f"no process could be forked: {error}"})
            pid = -1
        if pid == 0:
            self._become(control, stderr)
        os.close(control)
        os.close(stderr)
        if pid > 0:
            self._children[pid] = number
            self._say({"spawned": number, "pid": pid})

    def _become(self, control: int, stderr: int) -> None:
        """The child: it runs a fragment, and does not return."""
        code = 1
        try:
            template = os.getppid()
            _die_with_parent(template)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in (self._worker, self._wake_read, self._wake_write):
                each.close()
            os.dup2(stderr, 2)
            os.close(stderr)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.close(nothing)
            sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115 - as long as the process
            from nebuli.worker.fragment_process import run

            run(socket.socket(fileno=control))
            code = 0
        except BaseException:  # noqa: BLE001 - whatever it is goes to the worker, as the end of this process' log
            sys.excepthook(*sys.exc_info())
        finally:
            with suppress(OSError):
                sys.stdout.flush()
            os._exit(code)  # threads that are stuck do not keep it

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._say({"ended": self._children.pop(pid), "code": os.waitstatus_to_exitcode(status)})

    def _say(self, message: dict[str, object]) -> None:
        with suppress(BrokenPipeError):  # the worker is gone, which the next look at it tells
            self._worker.send(json.dumps(message).encode())

    def end_children(self) -> None:
        """At once."""
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)


def _die_with_parent(parent: int) -> None:
    """If the parent is killed, so is this process, which may be in no state to notice by itself."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it was killed before that
        os._exit(1)


def main(descriptor: int, parent: int) -> None:
    """Import everything, then serve the worker, the process ``parent``, behind the socket ``descriptor``."""
    _die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches the worker too, which ends us
    worker = socket.socket(fileno=descriptor)
    worker.set_inheritable(False)
    import nebuli.worker.fragment_process  # noqa: F401 - so that children have it

    gc.collect()
    gc.freeze()  # so that a child's collections do not copy the pages that all share
    template = _Template(worker)
    try:
        template.serve()
    finally:
        template.end_children()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
