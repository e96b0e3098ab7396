"""Three hosts for a test, where the system permits them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.hosts import Host, Network, NotPermitted
from tests.support.needs import leave_out, need_program

_HOW = "run the tests as root, in a container one that is privileged"


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    """Three hosts on one bridge."""
    with ExitStack() as stack:
        need_program("ip")
        try:
            network = stack.enter_context(Network(3))
        except NotPermitted as error:
            leave_out(f"network namespaces cannot be used as hosts here: {error}", _HOW)
        yield network.hosts


@pytest.fixture
def slow_hosts(hosts: list[Host]) -> list[Host]:
    """Three hosts whose links can be slowed down."""
    need_program("tc")
    try:
        hosts[0].slow_down("1gbit")
    except NotPermitted as error:
        leave_out(f"links cannot be slowed down here: {error}", _HOW)
    hosts[0].speed_up()
    return hosts
