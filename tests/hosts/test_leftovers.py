"""Hosts go with their test, however that ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.hosts import Host, Network, existing, sweep
from tests.support.relay import device
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes(30)

ROOT = Path(__file__).parents[2]
RUN = """
import sys
from tests.support.hosts import Network
with Network(1) as network:
    process = network.hosts[0].start("sleep", "600")
    print(process.pid, *network.names, flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_run_left_is_removed_by_a_later_one(hosts: list[Host]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUN], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as run:
        assert run.stdout is not None
        pid, *names = run.stdout.readline().decode().split()
        try:
            sweep()
            assert set(names) <= set(existing())  # it lives
            run.send_signal(signal.SIGKILL)
            run.wait()
            assert set(names) <= set(existing())
        finally:
            run.kill()
            run.wait()
            removed = sweep()
    assert set(names) <= set(removed)
    assert not set(names) & set(existing())
    wait_for(lambda: not psutil.pid_exists(int(pid)), f"process {pid} of the removed host is gone")
    assert {host.name for host in hosts} <= set(existing())  # those of this test are somebody's


def test_a_failure_in_a_network_leaves_nothing(hosts: list[Host]) -> None:
    names: set[str] = set()
    started: list[subprocess.Popen[bytes]] = []

    def fail() -> None:
        with Network(1) as network:
            started.append(network.hosts[0].start("sleep", "600"))
            names.update(network.names)
            assert names <= set(existing())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not names & set(existing())  # others may have come meanwhile, of tests beside this one
    assert started[0].wait(60) == -signal.SIGKILL


SPOILT = """
import sys
from tests.support.hosts import Network
with Network(2) as network, network.link(*network.hosts) as link:
    print(link.pid, flush=True)
    sys.stdin.read()
"""


def test_a_link_that_is_spoilt_goes_with_its_test_and_with_a_run_that_is_killed(network: Network) -> None:
    """Its devices and routes do; those of a killed run without a sweep."""
    first, second = network.hosts[:2]

    def seen() -> str:
        shown = (("link",), ("route", "show", "table", "all"))
        commands = [["ip", "-n", host.name, "-o", *show] for host in (first, second) for show in shown]
        return "".join(
            subprocess.run(each, capture_output=True, encoding="utf-8", check=True).stdout
            for each in commands
        )

    with network.link(first, second) as link:
        assert device(second.number) in seen()
        assert psutil.pid_exists(link.pid)
    assert not psutil.pid_exists(link.pid)
    wait_for(lambda: device(second.number) not in seen() and device(first.number) not in seen(), "no device")

    command = [sys.executable, "-c", SPOILT]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        pid = int(run.stdout.readline())
        assert psutil.pid_exists(pid)
        run.send_signal(signal.SIGKILL)
        run.wait()
        wait_for(lambda: not psutil.pid_exists(pid), f"relay {pid} of the killed run is gone")
    sweep()


def test_a_network_that_cannot_be_made_whole_leaves_nothing(
    hosts: list[Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network(2)
    monkeypatch.setattr(network.hosts[1], "address", "10.77.0.no")
    with pytest.raises(subprocess.CalledProcessError, match=network.hosts[1].name):
        network.__enter__()
    assert not set(network.names) & set(existing())


def test_the_network_of_the_machine_is_as_it_was(hosts: list[Host]) -> None:
    """Its links and addresses are not those of the hosts."""
    links = subprocess.run(
        ["ip", "-brief", "address"], capture_output=True, encoding="utf-8", check=True
    ).stdout
    assert hosts[0].address not in links
