"""The template that a worker and its fragments' processes are forked from.

`fork_worker` makes the calling process that template, and returns in a child, the worker. The template ends with the
worker, in the same way, and with the template end all its children.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from contextlib import suppress
from platform import machine
from typing import TYPE_CHECKING, Any, NoReturn

from nebuli.forking.template import Template, die_with_parent
from nebuli.without_pandas import hide_pandas

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["SINGLE_THREADED", "configure_libraries", "fork_worker", "import_all"]

SINGLE_THREADED = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Settings of libraries that start threads when they are imported: with threads, a fork is not safe."""


def configure_libraries() -> None:
    """Set the variables that Arrow and numpy read when they are imported, for this process and those that it starts."""
    os.environ.update(SINGLE_THREADED)
    # Arrow's default, mimalloc, takes huge pages, and clearing them costs short runs a fifth of their CPU time. Where
    # Arrow is built without jemalloc, it warns: its wheels for this platform have it.
    if sys.platform == "linux" and machine() == "x86_64":
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")


def import_all() -> None:
    """Import what a worker and its fragments' processes need, and keep it out of garbage collections."""
    from setproctitle import getproctitle

    gc.disable()  # imports leave next to no garbage, and collections take a tenth of their time
    with suppress(UnicodeDecodeError):  # of arguments that are not UTF-8
        getproctitle()  # which finds the room for titles, as long as the environment is where it was at the start
    configure_libraries()
    hide_pandas()
    from nebuli.connectors.provider import import_built_in
    from placement.sql.sql_tree import parsed

    import_built_in()
    parsed("true")  # the parser makes its tables at first use
    gc.freeze()  # so that a child's collections do not copy the pages that all share
    gc.enable()


def fork_worker() -> socket.socket:
    """Return in a child, the worker, with its socket to this process, the template, which never returns.

    To be called with a single thread.
    """
    import_all()
    sys.stdout.flush()
    sys.stderr.flush()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    template = os.getpid()
    worker = os.fork()
    if worker != 0:
        theirs.close()
        _WorkersTemplate(worker, ours).serve()
    die_with_parent(template)
    ours.close()
    return theirs


class _WorkersTemplate(Template):
    """Template of a worker, known by this process' pid to the process that started it."""

    def __init__(self, worker: int, connection: socket.socket) -> None:
        super().__init__(connection, self._run_fragment, lambda: None)  # the worker is about to end
        self._pid = os.getpid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: os.kill(worker, number))

    def _run_fragment(self, _: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        die_with_parent(self._pid)
        for number in (signal.SIGTERM, signal.SIGINT):
            # The worker handles a signal to the whole group, and ends its fragments in order.
            signal.signal(number, lambda *_: None)
        from nebuli.node.fragment.fragment_process import run

        control, *kept = descriptors
        return run(socket.socket(fileno=control), kept)

    def other_ended(self, pid: int, code: int) -> NoReturn:
        """End as the worker did."""
        self.kill_all()
        if code < 0:
            if -code != signal.SIGKILL:
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(abs(code))
