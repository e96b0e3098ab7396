"""A process that has imported what ``nebuli`` may, and forks its commands, and programs: hundreds begin in the tests.

There is one for each process that runs tests, begun with its first command and ended with it. A command that is forked
is one that was started, but for its import of what is there already; it has the environment, the working directory and
the outputs that it is given.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, NamedTuple

_AT_START = ("LANG", "LC_", "LD_", "PYTHON", "TZ")
"""Beginnings of what is read before a command has its say: where one of these is another, nothing can be forked."""
_LARGEST = 1 << 17
_ROOT = Path(__file__).parents[2]


def _read_at_start() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key.startswith(_AT_START)}


_AS_TESTS_BEGAN = _read_at_start()
"""The starter's own: the test that needs it first may have others, which no other test has."""


class Forked:
    """A command that was forked, with what `subprocess.Popen` has of it."""

    reaped_cpu_s = 0.0
    """CPU time of all commands that have been waited for, and of what these have waited for."""

    def __init__(self, pid: int, line: socket.socket, stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._line = line

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._line], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("nebuli", timeout or 0)
            told = self._line.recv(_LARGEST)
            assert told, "the process that forks commands has ended"
            code, cpu_s = told.split()
            self.returncode = int(code)
            Forked.reaped_cpu_s += float(cpu_s)
            self._line.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended, and its end is not reported yet
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Kill it if it runs, and close what is open of it."""
        self.kill()
        self.wait()
        self.stdout.close()


started_by_test: list[Forked] = []
"""Commands that the current test has started; `tests.support.leftovers` clears it."""


class Starter:
    """The process that forks commands."""

    begins = False
    """This process starts one: the test that needs it first does not start it itself."""

    def __init__(self) -> None:
        name = f"netchannel-test-starter-{os.getpid()}"
        self._address = f"\0{name}"
        environment = {key: value for key, value in os.environ.items() if not key.startswith(_AT_START)}
        Starter.begins = True
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.starter", name],
                cwd=_ROOT,
                env=environment | _AS_TESTS_BEGAN,
                stdin=subprocess.PIPE,  # its end ends it
                stdout=subprocess.PIPE,
            )
        finally:
            Starter.begins = False
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def can_start(self) -> bool:
        """Whether a process of its own would begin in the same way."""
        return _read_at_start() == _AS_TESTS_BEGAN

    def start(self, arguments: list[str], stderr: int, environment: dict[str, str]) -> Forked:
        """A command, whose output is a pipe."""
        sys.audit("subprocess.Popen", "nebuli", arguments, None, None)  # as tests are to be marked
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        line.connect(self._address)
        theirs, ours = os.pipe()
        try:
            told = json.dumps([arguments, str(Path.cwd()), environment]).encode()
            socket.send_fds(line, [told], [ours, stderr])
        finally:
            os.close(ours)
        started = Forked(int(line.recv(_LARGEST)), line, os.fdopen(theirs, "rb"))
        started_by_test.append(started)
        return started


@cache
def starter() -> Starter:
    """That of this process."""
    return Starter()


def start_program(program: str, *arguments: object) -> Forked:
    """A program of Python, which is given as ``python -c`` is, with its output as a pipe."""
    assert starter().can_start()
    return starter().start(["-c", program, *map(str, arguments)], sys.__stderr__.fileno(), dict(os.environ))


class _Order(NamedTuple):
    arguments: list[str]
    directory: str
    environment: dict[str, str]
    outputs: list[int]

    def become(self) -> None:
        """In the new process."""
        os.chdir(self.directory)
        os.environ.clear()
        os.environ.update(self.environment)
        for number, descriptor in enumerate(self.outputs, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.argv = ["nebuli", *self.arguments]


def _import_all() -> None:
    """As the commands that are used most; what is not here is imported where it is wanted."""
    from nebuli.node.fragment.worker_template import import_all

    import_all()
    import networkx  # noqa: F401

    import nebuli.__main__
    import nebuli.circuits.served_run
    import nebuli.cli.commands.queries
    import nebuli.cli.commands.run
    import nebuli.cli.commands.worker
    import nebuli.cli.files
    import nebuli.control.local
    import nebuli.control.step_placement
    import nebuli.control.supervision
    import nebuli.steps.local.local_run  # noqa: F401


def _serve(address: str) -> _Order | None:
    """Fork what is asked for: returns in each child with what it is to be, and here, with nothing, at the end."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen()
    bell, ringing = socket.socketpair()
    bell.setblocking(False)
    ringing.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ringing.fileno())
    os.write(1, b"ready\n")
    lines: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([sys.stdin, listener, bell], [], [])
        if sys.stdin in ready:
            return None
        if bell in ready:
            bell.recv(_LARGEST)
            _tell_ends(lines)
        if listener in ready:
            line, _ = listener.accept()
            told, outputs, *_ = socket.recv_fds(line, _LARGEST, 2)
            if (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for each in (listener, bell, ringing, line, *lines.values()):
                    each.close()
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                return _Order(*json.loads(told), outputs)
            for each in outputs:
                os.close(each)
            lines[pid] = line
            line.send(b"%d" % pid)


def _tell_ends(lines: dict[int, socket.socket]) -> None:
    while lines:
        pid, status, used = os.wait4(-1, os.WNOHANG)
        if pid == 0:
            return
        with lines.pop(pid) as line, suppress(ConnectionError):
            line.send(b"%d %f" % (os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime))


def _main() -> None:
    import gc

    _import_all()
    gc.collect()
    gc.freeze()
    assert len([*Path("/proc/self/task").iterdir()]) == 1, "with threads, a fork is not safe"
    order = _serve(f"\0{sys.argv[1]}")
    if order is not None:
        order.become()
        if order.arguments[0] == "-c":
            _, program, *arguments = order.arguments
            sys.argv = ["-c", *arguments]
            exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
        else:
            import nebuli.__main__

            nebuli.__main__.main()


if __name__ == "__main__":
    _main()
