"""Kept streams in virtual time: runs drawn from seeds, and what they would notice."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from netchannel.core.replay.consumers import Consumers
from netchannel.core.replay.history import History
from netchannel.core.replay.read_client import ReadClientData
from netchannel.core.replay.read_server import REQUEST
from netchannel.core.replay.retained_inbound import RetainedInbound
from netchannel.errors import NetChannelError
from netchannel.storage import disk_history
from netchannel.storage.tail import Tail
from netchannel.wire.frames import Kind, signal
from tests.support.replay_world import Play, Violation, play
from tests.support.sizes import seeds

pytestmark = pytest.mark.uvloop

SEEDS = 150


@pytest.mark.parametrize("first", range(0, SEEDS, 30))
def test_every_run_keeps_every_promise(first: int) -> None:
    """CH-REP-1, CH-REP-3, CH-REP-4, CH-REP-5: cuts, kills, power cuts and stalls of everybody, at any moment."""
    for seed in seeds(range(first, first + 30)):
        try:
            play(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


def test_a_full_disk_holds_everybody_back_and_loses_nothing() -> None:
    """CH-REP-5: it goes on when consumers have made room."""
    full = 0
    for seed in range(40):
        run = Play(seed, small_disk=True)
        if run.count < 200:  # which does not fill it
            continue
        kept = disk_history._Appender.kept

        def counting(appender: Any, job: Any, now: float, kept: Any = kept) -> None:
            nonlocal full
            full += job.full is not None
            kept(appender, job, now)

        with mock.patch.object(disk_history._Appender, "kept", counting):
            run.run()
    assert full >= 3


def nothing(*_: Any) -> None:
    """The safeguard does nothing."""


def highest(consumers: Consumers) -> int | None:
    """What somebody has acknowledged, be others behind."""
    return max([consumer.position for consumer in consumers._known.values()], default=None)


def asks_from_the_next_but_one(link: ReadClientData, reading: Any) -> None:
    """Passes over a message, if there is more than one to come."""
    first = min(reading.next + 1, reading.until - 1)
    link.send(signal(Kind.REQUEST, sequence=first, payload=REQUEST.pack(reading.until)))


SAFEGUARDS: dict[str, list[tuple[Any, str, Any]]] = {
    "minimum over consumers": [(Consumers, "lowest", property(highest))],
    "sync": [(Tail, "sync", lambda tail: setattr(tail, "synced", True))],
    "positions are durable": [(disk_history, "replace_file", nothing)],
    "the end is kept before it is acknowledged": [
        (RetainedInbound, "end_kept", property(lambda keeping: True))
    ],
    "bound of what is kept": [(History, "room", lambda history, size: True)],
    "numbers are looked at": [(ReadClientData, "_ask", asks_from_the_next_but_one)],
}


@pytest.mark.parametrize("safeguard", SAFEGUARDS)
def test_a_run_notices_what_is_missing(safeguard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative controls: without it, one of the runs breaks a promise."""
    for where, name, instead in SAFEGUARDS[safeguard]:
        monkeypatch.setattr(where, name, instead)
    assert any(broken(seed) for seed in range(SEEDS))


def broken(seed: int) -> bool:
    try:
        Play(seed).run(20_000)
    except (Violation, AssertionError, KeyError, NetChannelError):
        return True
    return False
