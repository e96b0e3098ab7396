"""Hundreds of runs of whole processes in virtual time; and that they notice what the runner and the servers see to."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from netchannel.core.link import Closing
from netchannel.servers import sender_channel
from netchannel.servers.sender_channel import SenderChannel
from netchannel.transports import acceptor
from netchannel.transports.runner import LinkProtocol, Runner
from netchannel.transports.tls_connection import TlsConnection
from tests.simulator.oracle import Violation
from tests.simulator.processes import network as simulated_network
from tests.simulator.processes import real, simulate
from tests.simulator.processes.simulation import FAULT_TABLE
from tests.support import sizes
from tests.support.ports import free_addresses

SEEDS = sizes.some(range(120))
REAL_SEEDS = sizes.examples(10)


@pytest.mark.timeout(400)
def test_hundreds_of_runs_keep_every_promise() -> None:
    """CH-SEQ-2, CH-DUR-3, CH-END-4, CH-CTL-4: nothing is lost, nothing hangs, and nothing is left behind."""
    reports = [simulate(seed) for seed in SEEDS]
    met: Counter[str] = sum((report.met for report in reports), Counter())
    if len(SEEDS) > 100:
        assert {fault.__name__ for fault in FAULT_TABLE} <= set(met)
    assert sum(report.delivered for report in reports) > 50 * len(SEEDS)


@pytest.mark.parametrize("seed", [3, 45, 79])
def test_a_run_is_repeated_by_its_seed(seed: int) -> None:
    """The same messages at the same virtual times, on asyncio's own transports and over TLS too."""
    assert simulate(seed).digest == simulate(seed).digest


@pytest.mark.long
async def test_the_same_over_real_connections(tmp_path: Path) -> None:
    """CH-SEQ-2, CH-CTL-4: cut at any byte, its calls cancelled at any moment, its servers left and made again."""
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    seeds = range(REAL_SEEDS)
    directories = [tmp_path / str(seed) for seed in seeds]
    for directory in directories:
        directory.mkdir()
    runs = map(real.run, seeds, free_addresses(REAL_SEEDS), directories)
    assert [error for error in await asyncio.gather(*runs, return_exceptions=True) if error is not None] == []
    assert failures == []


# -- each safeguard is taken out in turn


def resume_at_once(self: LinkProtocol) -> None:
    """A link that is closing is written to from within its transport's own write."""
    self._link.writable = True
    self.apply()


def never_taken_on(self: LinkProtocol, nbytes: int) -> None:
    """What comes behind the first bytes of a connection goes to whoever had these."""
    self._link.received(nbytes, self._runner.clock())


def jobs_are_left(self: Runner) -> None:
    """Who stops does not wait for the disk."""
    if self._done is not None and not (self.protocols or self._dialing):
        self._done.set()


def dials_are_left(self: Runner) -> None:
    """Who stops does not wait for what is being dialed."""
    if self._done is not None and not (self.protocols or self._jobs or self.core.due):
        self._done.set()


def aborts_what_has_ended(self: LinkProtocol) -> None:
    """A link that is over is aborted whether its transport is there or not."""
    if self._link.closing is Closing.ABORT:
        self._transport.abort()
    else:
        apply(self)


apply = LinkProtocol.apply


def rings_once(self: Runner) -> None:
    """The deadlines behind the first one are not waited for."""
    self._alarm = None
    self._alarm_due = float("inf")
    self.core.timers.run(self.clock())


def nothing(*_: Any) -> None:
    """The safeguard does nothing."""


def a_piece_is_left(self: TlsConnection) -> None:
    """What OpenSSL has begun with is not given to it again."""
    write_all(self)
    self._waiting_size -= len(self._piece)
    self._piece = b""


write_all = TlsConnection._write_all


async def connect_as_the_loop_does(create: Any, make_protocol: Any) -> None:
    """Whatever the loop leaves behind when it is cancelled."""
    await create(make_protocol)


async def settled_at_once(self: Any) -> None:
    """Nobody waits for files to be closed."""


SAFEGUARDS: dict[str, tuple[Any, str, Any]] = {
    "no write within a write": (LinkProtocol, "resume_writing", resume_at_once),
    "replacement": (LinkProtocol, "buffer_updated", never_taken_on),
    "waiting for jobs": (Runner, "check_done", jobs_are_left),
    "waiting for dials": (Runner, "check_done", dials_are_left),
    "over is over": (LinkProtocol, "apply", aborts_what_has_ended),
    "deadlines": (Runner, "_ring", rings_once),
    "a cancelled dial": (simulated_network, "connect_with", connect_as_the_loop_does),
    "files are closed": (SenderChannel, "_settled", settled_at_once),
    "a cancelled send": (sender_channel, "leave", nothing),
    "accepting again": (acceptor.Acceptor, "_resume", nothing),
    "TLS that waits for room": (TlsConnection, "_block", nothing),
    "a piece of TLS is given again": (TlsConnection, "_write_all", a_piece_is_left),
}


NOTICED_BY = {
    "no write within a write": 8,
    "waiting for jobs": 100,
    "waiting for dials": 26,
    "over is over": 374,
    "a cancelled dial": 123,
    "files are closed": 4,
    "a cancelled send": 12,
    "accepting again": 25,
    "TLS that waits for room": 9,
    "a piece of TLS is given again": 9,
}
"""Seeds that noticed it when they were last looked for: the search begins there."""


@pytest.mark.parametrize("safeguard", SAFEGUARDS)
def test_a_run_notices_what_is_missing(safeguard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative controls: without it, one of the runs breaks a promise, fails, hangs or leaves something behind."""
    where, name, instead = SAFEGUARDS[safeguard]
    monkeypatch.setattr(where, name, instead)
    first = NOTICED_BY.get(safeguard, 0)
    assert any(broken(seed) for seed in (*range(first, 500), *range(first)))


def broken(seed: int) -> bool:
    """Whether a promise was, or something went wrong that nobody is told of."""
    try:
        simulate(seed)
    except Violation:
        return True
    return False
