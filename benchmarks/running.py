"""Runs of contestants: a receiving and a sending process, each on a core of its own or free of both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .company import company
from .work import Result, TooFew, Work

ROOT = Path(__file__).parent.parent
ENDS_WITHIN_S = 10
ATTEMPTS = 3
"""On a busy machine it may be that nothing is left to measure when a sender's time is over; and peers may fail."""
RECEIVER_CORE, SENDER_CORE = 1, 0

Cores = tuple[int, int]
"""That a pair's receiver and its sender are pinned to."""
APART: tuple[Cores, ...] = ((RECEIVER_CORE, SENDER_CORE),)
"""Of a single pair."""
Measures = dict[str, float]


class Failed(Exception):
    """A contestant's process ended badly, or lost a message."""


@dataclass(frozen=True)
class Setting:
    """One way to run a contestant: with options of its own; ``free``: on whichever cores the system chooses."""

    name: str
    free: bool = False
    options: Mapping[str, object] = field(default_factory=dict)


PINNED, FREE = Setting("pinned"), Setting("free", free=True)


@dataclass(frozen=True)
class Contestant:
    """A module with functions for both sides.

    ``cores``: of each of its pairs of processes, which run at once. ``broker``: with a third process between the two.
    ``alone``: one process only. ``follows``: who has gone before in the same round, whose figures both sides get as
    the option "followed". ``company``: who keeps the machine busy meanwhile. ``settings``: of which it is measured in
    the best one (`rounds`). ``may_fail``: what loses or changes a message is tried again, as it is not ours to mend;
    all else ends everything. ``lasts``: seconds of warm-up and of measuring, where the row's are too short.
    """

    module: str
    options: Mapping[str, object] = field(default_factory=dict)
    cores: tuple[Cores, ...] = APART
    broker: bool = False
    alone: bool = False
    follows: str = ""
    company: str = ""
    settings: tuple[Setting, ...] = (PINNED,)
    may_fail: bool = False
    lasts: tuple[float, float] | None = None


def run(
    contestant: Contestant,
    work: Work,
    sides: tuple[str, str] = ("receive", "send"),
    setting: Setting | None = None,
) -> Measures:
    """Let a contestant do ``work`` once, with its first setting if none is given."""
    setting = setting or contestant.settings[0]
    work = replace(work, options={**work.options, **contestant.options, **setting.options})
    if contestant.lasts is not None:
        warm_up, seconds = contestant.lasts
        work = replace(work, warm_up=warm_up, seconds=seconds)
    for _ in range(ATTEMPTS - 1):
        try:
            return _attempt(contestant, work, sides, setting)
        except (TooFew, Failed) as error:
            if isinstance(error, Failed) and not contestant.may_fail:
                raise
            print(f"{contestant.module}, {setting.name}: {error}; once more", file=sys.stderr)
    return _attempt(contestant, work, sides, setting)


def _attempt(contestant: Contestant, work: Work, sides: tuple[str, str], setting: Setting) -> Measures:
    if not contestant.broker:
        return _run(contestant, work, sides, setting)
    from .broker import nats_server

    with nats_server() as broker:
        work = replace(work, options={**work.options, "broker": broker.address})
        before = broker.cpu_s()
        measures = _run(contestant, work, sides, setting)
        gigabytes = measures["messages"] * work.size / 1e9
        return measures | {"broker_cpu_s_per_GB": (broker.cpu_s() - before) / gigabytes}


def _run(contestant: Contestant, work: Work, sides: tuple[str, str], setting: Setting) -> Measures:
    module, settings = contestant.module, json.dumps(asdict(work))
    receive, send = sides
    with ExitStack() as stack:

        def start(function: str, core: int) -> Side:
            return stack.enter_context(side(function, module, settings, None if setting.free else core))

        receivers = [] if contestant.alone else [start(receive, core) for core, _ in contestant.cores]
        senders = [start(send, core) for _, core in contestant.cores]
        addresses = [receiver.hear()["address"] for receiver in receivers] or [""]
        for sender in senders:
            sender.hear()
        with company(contestant.company):
            for sender, address in zip(senders, addresses, strict=True):
                sender.tell(address)
            sent = [Result(**sender.hear()) for sender in senders]
            received = [Result(**receiver.hear()) for receiver in receivers]
        for started in (*senders, *receivers):
            started.end()
    arrived, gone = (sum(result.messages for result in results) for results in (received, sent))
    if received and arrived != gone:
        raise Failed(f"{module}: {gone} messages were sent, {arrived} arrived")
    total = _total([_merged(*results) for results in zip(sent, received or [Result()], strict=True)])
    return total | {"cpu_us_per_message": _cpu_s_per_gb(total) * work.size / 1e3, "messages": gone}


def _merged(sent: Result, received: Result) -> Measures:
    return sent.measures | received.measures


def _total(pairs: list[Measures]) -> Measures:
    """Of all pairs: what is per second adds up, and all else is the mean."""
    return {
        name: sum(pair[name] for pair in pairs) / (1 if name.endswith("_per_s") else len(pairs))
        for name in pairs[0]
    }


def _cpu_s_per_gb(measures: Measures) -> float:
    return sum(value for name, value in measures.items() if name.endswith("_cpu_s_per_GB"))


class Side:
    """A process, and what is said between us."""

    def __init__(self, process: subprocess.Popen[str], module: str) -> None:
        assert process.stdout is not None
        assert process.stdin is not None
        self._process, self._module = process, module
        self._out, self._in = process.stdout, process.stdin
        self.pid = process.pid

    def hear(self) -> dict[str, Any]:
        """What the process says next."""
        line = self._out.readline()
        if not line:
            status = self._process.wait(ENDS_WITHIN_S)
            raise Failed(f"{self._module}: a process ended before it had a result (exit {status})")
        heard: dict[str, Any] = json.loads(line)
        if "again" in heard:
            raise TooFew(heard["again"])
        return heard

    def tell(self, what: str) -> None:
        """Say something to it."""
        self._in.write(json.dumps(what) + "\n")
        self._in.flush()

    def end(self) -> None:
        """Wait until it is gone."""
        self._process.wait(ENDS_WITHIN_S)


@contextmanager
def side(function: str, module: str, settings: str, core: int | None) -> Iterator[Side]:
    """Start a side of a run, on a core if one is given; it is gone with the context."""

    def pin() -> None:
        if core is not None:
            os.sched_setaffinity(0, {core})

    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.side", function, module, settings],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        preexec_fn=pin if (os.cpu_count() or 1) > 1 else None,  # noqa: PLW1509 - one call, no threads yet
    ) as process:
        try:
            yield Side(process, module)
        finally:
            process.kill()
