"""A contestant with a fault: a raw socket whose sender drops, doubles, swaps or changes a message, stops or pauses."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

from benchmarks.contestants import raw
from benchmarks.measuring import pace
from benchmarks.work import Result, Work

AT = 1
"""The round with the fault: behind the first messages, and not the last, however few a busy machine gets done."""


def receive(work: Work, ready: Callable[[str], None]) -> Result:
    return raw.receive(work, ready)


def send(work: Work, address: str) -> Result:
    host, port = address.split(":")
    pacing = pace(work)
    with socket.create_connection((host, int(port))) as connection:
        for number, messages in enumerate(pacing):
            if number and work.options["fault"] == "few":
                break
            time.sleep(work.options.get("pause_s", 0))
            for message in _changed(messages, work.options["fault"]) if number == AT else messages:
                connection.sendall(message)
        if work.options["fault"] == "last":
            connection.sendall(messages[0])
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
    return Result(pacing.sent)


def _changed(messages: list[bytes], fault: str) -> list[Any]:
    first, second, *rest = messages
    return {
        "drop": [first, *rest],
        "double": [first, first, second, *rest],
        "swap": [second, first, *rest],
        "change": [first, second, *rest[:-1], rest[-1][:-1] + b"\x01"],
        "last": messages,
        "none": messages,
    }[fault]
