"""Sources without an end, and results that wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placement.plan import BoundSink, BoundSource
from topology import NullSink

if TYPE_CHECKING:
    from collections.abc import Iterable

    from placement.plan import FragmentOperator


def endless_sources(operators: Iterable[FragmentOperator]) -> list[BoundSource]:
    """The sources that never end; not those that are ended from outside."""
    return [each for each in operators if isinstance(each, BoundSource) and each.physical.ends == "never"]


def waits_for_ever(operators: Iterable[FragmentOperator]) -> str | None:
    """Why a plan never gives its result, in a sentence; None if it may."""
    operators = list(operators)
    endless = ", ".join(each.id for each in endless_sources(operators))
    final = [
        each.sink
        for each in operators
        if isinstance(each, BoundSink)
        and each.target.mode == "final"
        and not isinstance(each.target, NullSink)
    ]
    if not (endless and final):
        return None
    return (
        f"the sink {final[0]} (mode final) writes its result after all sources have ended, but "
        f"{endless} never ends; give that source an end (for a generator, a 'count'), or give the "
        f"sink the mode append or changes"
    )
