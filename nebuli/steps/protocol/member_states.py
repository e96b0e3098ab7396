"""The states of a member, as pause and stop go through them.

`Run` takes steps as they are issued. `Pause` has been asked to pause, and is in a step that was issued before; when
that is done it is `Paused`. `Stop` runs what is issued below a step, and commits there; `Stopped` has nothing open, as
in the beginning.

A member is never paused while other members' step needs it: a step is issued to all of them, and a member that is asked
to pause finishes it first. So all pause at the same step. If each started steps on its own, one might wait in an
exchange for another that is paused already, forever.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Run:
    """Open; steps are run as they are issued."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause is requested, and a step is running."""


@dataclass(frozen=True, slots=True)
class Paused:
    """Nothing runs; ``step`` is the next one."""

    step: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Going to commit before ``step``, or at it."""

    step: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """Nothing is open."""


MemberState = Run | Pause | Paused | Stop | Stopped
