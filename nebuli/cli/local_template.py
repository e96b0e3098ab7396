"""The process that the workers and members of this machine are forked from.

A command forks it after the imports that both need, so that they run only once.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["forked_template", "serve_commands"]


@contextmanager
def forked_template(shared: str) -> Iterator[None]:
    """Fork the template of this process, which imports the module ``shared`` first; it ends with the context.

    Call it while the process has a single thread, before an event loop runs.
    """
    from nebuli.node.fragment.worker_template import configure_libraries
    from nebuli.without_pandas import hide_pandas

    configure_libraries()
    hide_pandas()
    import_module(shared)
    sys.stdout.flush()
    sys.stderr.flush()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # Until the child has a session of its own.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    template = os.fork()
    if template == 0:
        ours.close()
        serve_commands(theirs)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    theirs.close()
    from nebuli.forking.own_template import adopted

    try:
        with adopted(ours):
            yield
    finally:
        ours.close()
        os.kill(template, signal.SIGKILL)
        os.waitpid(template, 0)


def serve_commands(connection: socket.socket) -> NoReturn:
    """Serve as the template: fork a command for each request until the peer closes ``connection``.

    A request has the ``arguments`` of `nebuli` and the ``directory``, and carries two descriptors: the command's
    standard input, and a file with its environment. A command outlives the template, and ends with its standard input.
    """
    try:
        os.setsid()  # Ctrl-C is the command's to handle
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        from nebuli.forking.template import Template
        from nebuli.node.fragment.worker_template import import_all

        import_all()
        Template(connection, _become_command, lambda: os._exit(0)).serve()
    except BaseException:  # noqa: BLE001 - on standard error; the other end sees that
        sys.excepthook(*sys.exc_info())
    os._exit(1)


def _become_command(request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
    from setproctitle import setproctitle

    from nebuli.__main__ import main
    from nebuli.forking.template import replace

    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stdin, environment = descriptors
    replace(0, stdin)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the process
    os.chdir(request["directory"])
    os.environ.clear()
    with os.fdopen(environment, encoding="ascii") as file:
        file.seek(0)
        os.environ.update(json.load(file))
    sys.argv = ["nebuli", *request["arguments"]]
    setproctitle(" ".join(sys.argv))
    try:
        main()
    except SystemExit as ended:
        if isinstance(ended.code, int):
            return ended.code
        sys.stderr.write(f"{ended.code}\n")
        return 1
    return 0
