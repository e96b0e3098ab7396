"""Blocking sockets and nothing else: no lengths, no acknowledgements. The bound that there is for bytes."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace

from benchmarks.measuring import pace, watch
from benchmarks.work import Result, Work


def receive(work: Work, ready: Callable[[str], None]) -> Result:
    """Take one connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        _choose(server, work)
        ready(f"127.0.0.1:{server.getsockname()[1]}")
        connection, _ = server.accept()
        with connection:
            return received(work, connection)


def received(work: Work, connection: socket.socket) -> Result:
    """Receive into one buffer, message by message."""
    work = replace(work, arrow=False)
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
    """Dial it."""
    host, port = address.split(":")
    with socket.socket() as connection:
        _choose(connection, work)
        connection.connect((host, int(port)))
        result = sent(work, connection)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)  # the other side has seen the end
        return result


def sent(work: Work, connection: socket.socket) -> Result:
    """Send all."""
    pacing = pace(replace(work, arrow=False))
    for messages in pacing:
        for message in messages:
            connection.sendall(message)
    return pacing.result()  # type: ignore[no-any-return]


def _choose(sock: socket.socket, work: Work) -> None:
    if control := work.options.get("congestion"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
