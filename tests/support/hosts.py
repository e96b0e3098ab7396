"""Hosts of a test: network namespaces with addresses of their own, on a bridge in a namespace of its own.

Nothing of it is in the network of the machine, and nothing outlives its test: leaving the context ends the processes
of all hosts and removes the namespaces. Their names say whose they are (process id and when it started), so that the
next network removes what a killed run has left.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.relay import HEALTHY, Faults, device
from tests.support.waiting import wait_for

_PREFIX = "netchannel-test"
_NAME = re.compile(rf"{_PREFIX}-(\d+)-(\d+)-[0-9a-f]+-\w+")
_LINK = "eth0"
_SUBNET = "10.77.0."
_ANNOUNCE = """
import socket, sys
link, address = sys.argv[1], socket.inet_aton(sys.argv[2])
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
    out.bind((link, 0))
    own, everybody = out.getsockname()[4], bytes([255] * 6)
    arp_request = bytes.fromhex("0806" "0001" "0800" "06" "04" "0001")
    out.send(everybody + own + arp_request + own + address + everybody + address)
"""
"""A gratuitous ARP request, by which who takes an address over says so."""


class NotPermitted(Exception):
    """Hosts, or slow links, cannot be made here; the message is what the system said."""


class Host:
    """A namespace with an address. What is started in it ends with its network at the latest."""

    def __init__(self, network: Network, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.address = f"{_SUBNET}{number}"
        self._network = network
        self._port = f"port{number}"

    def command(self, *command: str | Path) -> list[str]:
        """``command`` in this host; the process that runs it is its own, and no child of another one's."""
        return ["ip", "netns", "exec", self.name, *map(str, command)]

    def start(self, *command: str | Path, **settings: Any) -> subprocess.Popen[bytes]:
        """A process in this host."""
        return subprocess.Popen(self.command(*command), **settings)

    def cut(self) -> None:
        """Pull the cable: what is sent goes nowhere, and neither side is told."""
        self._network.bridge("link", "set", self._port, "down")

    def mend(self) -> None:
        """Put the cable back."""
        self._network.bridge("link", "set", self._port, "up")

    def slow_down(self, rate: str) -> None:
        """Let no more than ``rate`` (of ``tc``, such as ``8mbit``) come to this host."""
        shape = ("root", "tbf", "rate", rate, "burst", "32kb", "latency", "100ms")
        _permitted("tc", "-n", self._network.name, "qdisc", "replace", "dev", self._port, *shape)

    def speed_up(self) -> None:
        """Let everything come again at once."""
        _run("tc", "-n", self._network.name, "qdisc", "del", "dev", self._port, "root")

    def give_up(self, address: str) -> None:
        """Have ``address`` no more; connections from and to it stay as they are, and carry nothing."""
        _run("ip", "-n", self.name, "address", "del", f"{address}/24", "dev", _LINK)

    def take(self, address: str) -> None:
        """Have ``address``, and say so to all on the bridge, who may know it as another host's."""
        _run("ip", "-n", self.name, "address", "add", f"{address}/24", "dev", _LINK)
        _run(*self.command(sys.executable, "-c", _ANNOUNCE, _LINK, address))


class Link:
    """All that two hosts send each other, through a process that spoils it (`tests.support.relay`).

    Their addresses stay what they are, and so do connections that are open. With the context it goes, and they are on
    the bridge again. ``seed`` is that of the faults.
    """

    def __init__(self, network: Network, first: Host, second: Host, seed: int) -> None:
        self._hosts = (first, second)
        relay = str(Path(__file__).with_name("relay.py"))
        inside = ("ip", "netns", "exec", network.name, sys.executable, relay)
        self._process = subprocess.Popen(
            [*inside, *(first.name, str(first.number), second.name, str(second.number), str(seed))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )

    @property
    def pid(self) -> int:
        """The process's; it ends when whoever started it does."""
        return self._process.pid

    def spoil(self, there: Faults, back: Faults | None = None) -> None:
        """Have these faults from now on, from the first to the second host, and ``back`` (None: the same)."""
        assert self._process.stdin is not None
        both = [dataclasses.asdict(there), dataclasses.asdict(there if back is None else back)]
        self._process.stdin.write(json.dumps(both) + "\n")
        self._process.stdin.flush()
        self._wait_until_ready()

    def heal(self) -> None:
        """Lose and hold nothing any more."""
        self.spoil(HEALTHY)

    def _wait_until_ready(self) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise NotPermitted(f"{' '.join(map(str, self._process.args))} ended with {self._process.wait()}")

    def __enter__(self) -> Link:
        try:
            self._wait_until_ready()
            for here, there in (self._hosts, self._hosts[::-1]):
                link = device(there.number)
                _run("ip", "-n", here.name, "link", "set", link, "txqueuelen", "10000", "up")
                way = ("dev", link, "src", here.address)
                _run("ip", "-n", here.name, "route", "add", f"{there.address}/32", *way)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # its devices and the routes through them go with it
        self._process.communicate()


class Network:
    """A bridge and its hosts, as long as the context lasts. ``NotPermitted`` where the system refuses."""

    def __init__(self, hosts: int) -> None:
        own = f"{_PREFIX}-{os.getpid()}-{_began(os.getpid())}-{secrets.token_hex(4)}"
        self.name = f"{own}-bridge"
        self.hosts = [Host(self, f"{own}-host{number}", number) for number in range(1, hosts + 1)]

    @property
    def names(self) -> list[str]:
        """Its namespaces."""
        return [self.name, *(host.name for host in self.hosts)]

    def link(self, first: Host, second: Host, seed: int = 0) -> Link:
        """A link of their own for two hosts, that can be spoilt. ``NotPermitted`` where there are no TUN devices."""
        return Link(self, first, second, seed)

    def bridge(self, *command: str) -> None:
        """Have ``ip`` change something on the bridge's side."""
        _run("ip", "-n", self.name, *command)

    def __enter__(self) -> Network:
        sweep()
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _make(self) -> None:
        _permitted("ip", "netns", "add", self.name)
        _permitted("ip", "-n", self.name, "link", "add", "bridge", "type", "bridge")
        self.bridge("link", "set", "bridge", "up")
        for number, host in enumerate(self.hosts, start=1):
            _run("ip", "netns", "add", host.name)
            pair = ("type", "veth", "peer", "name", f"port{number}", "netns", self.name)
            _permitted("ip", "link", "add", _LINK, "netns", host.name, *pair)
            self.bridge("link", "set", f"port{number}", "master", "bridge", "up")
            _run("ip", "-n", host.name, "address", "add", f"{host.address}/24", "dev", _LINK)
            for link in ("lo", _LINK):
                _run("ip", "-n", host.name, "link", "set", link, "up")

    def _remove(self) -> None:
        _delete([name for name in self.names if name in existing()])


def sweep() -> list[str]:
    """Remove the namespaces of test runs that are no more, with their processes; their names."""
    left = []
    for name in existing():
        pid, began = map(int, _NAME.fullmatch(name).groups())  # type: ignore[union-attr] - existing() matched it
        if _began(pid) != began:
            left.append(name)
    _delete(left)
    return left


def existing() -> list[str]:
    """All namespaces of tests, whoever's."""
    with suppress(FileNotFoundError):
        listed = subprocess.run(
            ["ip", "netns", "list"], capture_output=True, encoding="utf-8", check=False
        ).stdout
        return [line.split()[0] for line in listed.splitlines() if _NAME.fullmatch(line.split()[0])]
    return []


def _delete(names: Sequence[str]) -> None:
    # Processes first: a namespace lives, without a name, as long as one of them.
    for pid in itertools.chain.from_iterable(map(_processes, names)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not any(map(_processes, names)), f"no process in {names}")
    for name in names:
        with suppress(subprocess.CalledProcessError):  # another run may sweep as well
            _run("ip", "netns", "del", name)


def _processes(name: str) -> list[int]:
    listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, encoding="utf-8", check=False)
    return [int(pid) for pid in listed.stdout.split()]


def _began(pid: int) -> int | None:
    """When a process started, in ticks since the machine did: with its id that is a name that nobody has again."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[19])
    except FileNotFoundError:
        return None


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, encoding="utf-8", timeout=20)


def _permitted(*command: str) -> None:
    try:
        _run(*command)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise NotPermitted(f"{' '.join(command)}: {said.strip()}") from error
