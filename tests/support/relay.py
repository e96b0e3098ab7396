"""The process in a `tests.support.hosts.Link`: ``... HOST NUMBER HOST NUMBER SEED``, the namespaces that it
is between.

It makes a TUN device for each of them, moves it there, and says ``ready``. What one of them sends it holds, loses or
doubles, as lines of JSON on standard input say (the faults from the first to the second host, and back), and it answers
each by ``ready``. It ends with its standard input, and the devices with it.
"""

from __future__ import annotations

import errno
import fcntl
import heapq
import itertools
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from dataclasses import dataclass

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_LARGEST = 1 << 16


@dataclass(frozen=True, slots=True)
class Faults:
    """What happens to packets one way: each is lost, doubled and held by a draw of its own.

    Delays that differ reorder. A packet of more than ``max_bytes`` is lost, and nobody is told.
    """

    loss: float = 0.0
    delay_s: tuple[float, float] = (0.0, 0.0)
    doubled: float = 0.0
    max_bytes: int = _LARGEST


HEALTHY = Faults()


def device(number: int) -> str:
    """What a host calls its end of the link to host ``number``."""
    return f"to{number}"


def _device(host: str, name: str) -> int:
    """A device in ``host`` that ends with this process, which reads what is sent through it."""
    here, tun = f"link{os.getpid()}", os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", here.encode(), _IFF_TUN | _IFF_NO_PI))
    subprocess.run(["ip", "link", "set", here, "netns", host, "name", name], check=True)
    return tun


def _say_ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def _relay(tuns: list[int], draw: random.Random) -> None:
    faults = {tuns[0]: HEALTHY, tuns[1]: HEALTHY}
    to = {tuns[0]: tuns[1], tuns[1]: tuns[0]}
    held: list[tuple[float, int, int, bytes]] = []
    order = itertools.count()
    while True:
        wait = max(0.0, held[0][0] - time.monotonic()) if held else None
        readable, _, _ = select.select([sys.stdin.fileno(), *tuns], [], [], wait)
        if sys.stdin.fileno() in readable:
            line = sys.stdin.readline()
            if not line:
                return
            faults = {tun: Faults(**given) for tun, given in zip(tuns, json.loads(line), strict=True)}
            _say_ready()
        for tun in set(tuns).intersection(readable):
            packet, fault = os.read(tun, _LARGEST), faults[tun]
            if len(packet) > fault.max_bytes or draw.random() < fault.loss:
                continue
            for _ in range(1 + (draw.random() < fault.doubled)):
                due = time.monotonic() + draw.uniform(*fault.delay_s)
                heapq.heappush(held, (due, next(order), to[tun], packet))
        while held and held[0][0] <= time.monotonic():
            _, _, tun, packet = heapq.heappop(held)
            _write(tun, packet)


def _write(tun: int, packet: bytes) -> None:
    try:
        os.write(tun, packet)
    except OSError as error:
        if error.errno != errno.EIO:  # which says of a device that it is not up yet: the packet is lost
            raise


def main(first: str, number: str, second: str, other_number: str, seed: str) -> None:
    tuns = [_device(first, device(int(other_number))), _device(second, device(int(number)))]
    _say_ready()
    _relay(tuns, random.Random(int(seed)))


if __name__ == "__main__":
    main(*sys.argv[1:])
