"""The state of a query, from those of its fragments."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from nebuli.rpc.status import FragmentState

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["GlobalState", "combined"]


class GlobalState(StrEnum):
    """The state of a query as a whole; the first that fits."""

    FAILED = "failed"
    """A fragment has failed, or its worker knows nothing of it any more."""
    UNREACHABLE = "unreachable"
    """A worker does not answer."""
    STOPPED = "stopped"
    """No fragment runs, or will, and at least one was stopped."""
    PARTIALLY_STOPPED = "partially stopped"
    """A fragment was stopped, and another one was not."""
    REGISTERED = "registered"
    """No fragment was started."""
    RUNNING = "running"
    FINISHED = "finished"
    """All fragments have come to their end."""


def combined(states: Iterable[FragmentState | None]) -> GlobalState:
    """The state of a query whose fragments are in ``states``; None where the worker does not answer."""
    found = set(states)
    known = {state for state in found if state is not None}
    if FragmentState.FAILED in known:
        return GlobalState.FAILED
    if None in found:
        return GlobalState.UNREACHABLE
    if FragmentState.STOPPED in known:
        over = all(state.is_final for state in known)
        return GlobalState.STOPPED if over else GlobalState.PARTIALLY_STOPPED
    if known == {FragmentState.REGISTERED}:
        return GlobalState.REGISTERED
    if known == {FragmentState.FINISHED}:
        return GlobalState.FINISHED
    return GlobalState.RUNNING
