"""Blocking sockets and nothing else: no lengths, no acknowledgements. The bound that there is for bytes."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace

from benchmarks.measuring import pace, watch
from benchmarks.work import Result, Work


def receive(work: Work, ready: Callable[[str], None]) -> Result:
    """Receive into one buffer, message by message."""
    work = replace(work, arrow=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        _choose(server, work)
        ready(f"127.0.0.1:{server.getsockname()[1]}")
        connection, _ = server.accept()
        with connection:
            watching = watch(work)
            look = watching.look()
            message = memoryview(bytearray(work.size))
            while True:
                filled = 0
                while filled < work.size:
                    got = connection.recv_into(message[filled:])
                    if not got:
                        return watching.result()  # type: ignore[no-any-return]
                    filled += got
                look(message)


def send(work: Work, address: str) -> Result:
    """Send all."""
    work = replace(work, arrow=False)
    host, port = address.split(":")
    pacing = pace(work)
    with socket.socket() as connection:
        _choose(connection, work)
        connection.connect((host, int(port)))
        for messages in pacing:
            for message in messages:
                connection.sendall(message)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
    return pacing.result()  # type: ignore[no-any-return]


def _choose(sock: socket.socket, work: Work) -> None:
    if control := work.options.get("congestion"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
