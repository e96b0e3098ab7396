"""A busy machine: messages in each company, and the same alone, in one table and so in the same rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .company import COMPANIES, LOOPS
from .peers import OURS, PEERS
from .row import Row
from .targets import AtLeast, FairShare, KeepsLike, Target
from .work import Work

MEASURE = "messages_per_s"
FAIR, AHEAD = 0.8, 1.2
SMALL = ("pyzmq", "zenoh")
LARGE = (*SMALL, "raw socket")
"""Whoever is within reach of ours alone: all others are several times behind, and would be here too."""


def alone(name: str) -> str:
    """What a contestant is called in such a table without company."""
    return f"{name} alone"


def in_company(name: str, company: str) -> str:
    """And in company."""
    return f"{name} with {company}"


def _targets(company: str, yardstick: str) -> tuple[Target, Target]:
    """Ours ahead of pyzmq, and with its fair share: of the processor's time, or as others have it.

    What processes that wake each other and those that fill memory leave to others is for the scheduler and the memory
    to say; so it is what somebody without a part of ours keeps.
    """
    ours = in_company(OURS, company)
    ahead = AtLeast(AHEAD, (in_company("pyzmq", company),), MEASURE, ours)
    if company in LOOPS:
        return FairShare(FAIR, 1 / (1 + LOOPS[company]), alone(OURS), MEASURE, ours), ahead
    theirs = in_company(yardstick, company), alone(yardstick)
    return KeepsLike(FAIR, theirs, MEASURE, (ours, alone(OURS))), ahead


def _row(name: str, size: int, peers: tuple[str, ...], yardstick: str) -> Row:
    names = (OURS, *peers)
    contestants = {alone(each): PEERS[each] for each in dict.fromkeys((OURS, "pyzmq", yardstick))}
    bases: Mapping[str, str] = {
        in_company(each, company): in_company(OURS, company) for each in names for company in COMPANIES
    }
    for company in COMPANIES:
        contestants |= {in_company(each, company): replace(PEERS[each], company=company) for each in names}
    return Row(
        f"a busy machine: {name}",
        Work(size, seconds=0.6, warm_up=0.2),
        contestants,
        (MEASURE, "MB_per_s", "cpu_us_per_message"),
        tuple(target for company in COMPANIES for target in _targets(company, yardstick)),
        base=alone(OURS),
        bases=bases,
        rounds=2,  # of many contestants: all of `make bench` takes twenty minutes
    )


BUSY = (
    _row("64 B", 64, SMALL, "pyzmq"),
    _row("1 KiB", 1 << 10, SMALL, "pyzmq"),
    _row("64 KiB", 1 << 16, LARGE, "raw socket"),
)
