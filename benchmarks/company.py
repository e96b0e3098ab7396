"""Who else keeps the machine busy while a contestant is measured: ``python -m benchmarks.company KIND``.

It begins once a contestant's processes are there, so that nobody waits for how long they take to start in company, and
says so once it is there itself. It goes when its standard input ends, so that it is never left behind.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ONE_LOOP, TWO_LOOPS = "one busy loop per core", "two busy loops per core"
PAIRS = "a dozen pairs that wake each other"
MEMORY = "one process per core that fills memory"
CHATTY = "three dozen processes that talk through proxies"
COMPANIES = (ONE_LOOP, TWO_LOOPS, PAIRS, MEMORY, CHATTY)
LOOPS = {ONE_LOOP: 1, TWO_LOOPS: 2}
"""Per core; all else is pinned to none."""

COPIED_BYTES = 256 << 20
WAKING = 12
TALKS = 12
"""Each of a process that asks, a proxy and a process that answers."""
REQUEST, ANSWER = bytes(200_000), bytes(100)
PIECE = 1 << 16
"""What a proxy passes on at a time."""
BEGINS = b"."

Job = Callable[[], None]


def _busy() -> None:
    while True:
        pass


def _filling() -> None:
    source, target = bytearray(COPIED_BYTES), memoryview(bytearray(COPIED_BYTES))
    while True:
        target[:] = source


def _waking(reads: int, writes: int) -> Job:
    def play() -> None:
        while True:
            os.write(writes, os.read(reads, 1))

    return play


def _connected() -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection over TCP."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    return near, far


def _pass(size: int, reads: socket.socket, writes: socket.socket | None) -> None:
    """Read so many bytes, and write them there, as they come. There is no end: all processes go at once."""
    while size:
        piece = reads.recv(min(size, PIECE))
        if writes is not None:
            writes.sendall(piece)
        size -= len(piece)


def _asking(to: socket.socket) -> Job:
    def ask() -> None:
        while True:
            to.sendall(REQUEST)
            _pass(len(ANSWER), to, None)

    return ask


def _between(near: socket.socket, far: socket.socket) -> Job:
    def proxy() -> None:
        while True:
            _pass(len(REQUEST), near, far)
            _pass(len(ANSWER), far, near)

    return proxy


def _answering(to: socket.socket) -> Job:
    def answer() -> None:
        while True:
            _pass(len(REQUEST), to, None)
            to.sendall(ANSWER)

    return answer


def _talks() -> list[Job]:
    jobs = []
    for _ in range(TALKS):
        (asks, near), (far, answers) = _connected(), _connected()
        jobs += [_asking(asks), _between(near, far), _answering(answers)]
    return jobs


def _on(core: int, job: Job) -> Job:
    def pinned() -> None:
        os.sched_setaffinity(0, {core})
        job()

    return pinned


def _jobs(kind: str) -> list[Job]:
    cores = sorted(os.sched_getaffinity(0))
    if kind in LOOPS:
        return [_on(core, _busy) for core in cores * LOOPS[kind]]
    if kind == MEMORY:
        return [_filling] * len(cores)
    if kind == CHATTY:
        return _talks()
    jobs = []
    for _ in range(WAKING):
        (one, other), (back, forth) = os.pipe(), os.pipe()
        os.write(other, BEGINS)
        jobs += [_waking(one, forth), _waking(back, other)]
    return jobs


def main() -> None:
    """Start all, say so, and end all, which are a group of processes, with this one."""
    for job in _jobs(sys.argv[1]):
        if os.fork() == 0:
            job()
    print("busy", flush=True)
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)


@contextmanager
def company(kind: str) -> Iterator[None]:
    """Keep the machine busy in that way within the context; not at all if there is no ``kind``."""
    if not kind:
        yield
        return
    command = [sys.executable, "-S", str(Path(__file__)), kind]  # without the packages that it has no use for
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0) as process:
        assert process.stdout is not None
        assert process.stdout.readline(), f"{kind}: nobody came"
        yield


if __name__ == "__main__":
    main()
