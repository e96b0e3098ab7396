"""Three hosts for a test, where the system permits them."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.hosts import Host, Link, Network, NotPermitted
from tests.support.needs import leave_out, need_program

log = logging.getLogger(__name__)

_HOW = "run the tests as root, in a container one that is privileged"


@pytest.fixture
def network() -> Iterator[Network]:
    """A bridge with three hosts."""
    with ExitStack() as stack:
        need_program("ip")
        try:
            network = stack.enter_context(Network(3))
        except NotPermitted as error:
            leave_out(f"network namespaces cannot be used as hosts here: {error}", _HOW)
        yield network


@pytest.fixture
def hosts(network: Network) -> list[Host]:
    """Three hosts on one bridge."""
    return network.hosts


@pytest.fixture
def link(network: Network) -> Iterator[Link]:
    """A link between the first two of the hosts that can be spoilt, by a seed that is logged."""
    seed = random.randrange(1 << 32)
    log.info("the link is spoilt by the seed %d", seed)
    with ExitStack() as stack:
        try:
            made = stack.enter_context(network.link(*network.hosts[:2], seed=seed))
        except NotPermitted as error:
            leave_out(f"links cannot be spoilt here: {error}", f"{_HOW}, and let it use /dev/net/tun")
        yield made


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
