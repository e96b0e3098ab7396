"""When the coordinator issues a step or begins a checkpoint. A function of values, without a clock.

It is asked between steps. A checkpoint that is due comes before a step: otherwise steps that never pause would put it
off forever.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SPACING_S = 0.05
"""Between two steps, where rows come all the time: the fixed cost of a step is a small part of that."""
MANY_ROWS = 1 << 17
"""With so many rows the fixed cost of a step is negligible."""


@dataclass(frozen=True, slots=True)
class TriggerSettings:
    """When to step: at ``rows`` that wait, or ``delay_s`` after the first of fewer, and every ``tick_s`` without any.

    And how long after the last checkpoint began to begin another. None: never for this reason.

    Rows do not make a step within ``spacing_s`` of the one before, unless there are ``many_rows`` by then: where they
    come all the time, steps are few and large, and where they do not, each is taken at once.
    """

    rows: int = 1
    delay_s: float | None = None
    tick_s: float | None = None
    checkpoint_s: float | None = 60.0
    spacing_s: float = 0.0
    many_rows: int = MANY_ROWS

    def __post_init__(self) -> None:
        """Raise ValueError for what no clock comes to, and no number of rows is."""
        for name in ("delay_s", "tick_s", "checkpoint_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"expected a number of seconds above 0, or None, as {name}, got {value}")
        if not 0 <= self.spacing_s < math.inf:
            raise ValueError(f"expected at least 0 seconds as spacing_s, got {self.spacing_s}")
        if self.rows < 1 or self.many_rows < 1:
            raise ValueError(f"expected rows and many_rows above 0, got {self.rows} and {self.many_rows}")


@dataclass(frozen=True, slots=True)
class Situation:
    """The situation between two steps; times are of the same clock as ``now``.

    ``rows`` wait, by member, the first of them since ``rows_since``. ``wanted``: a checkpoint is requested.
    ``checkpointing``: one has begun and not ended. ``replaying``: a member has the next step in its log.
    ``ending``: all inputs have ended, and no step has reported that yet.
    """

    now: float
    rows: tuple[int, ...]
    rows_since: float
    stepped_at: float
    checkpoint_at: float
    wanted: bool = False
    checkpointing: bool = False
    replaying: bool = False
    ending: bool = False
    paused: bool = False


@dataclass(frozen=True, slots=True)
class StepNow:
    """Issue the next step."""

    replayed: bool = False
    ended: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointNow:
    """Begin a checkpoint."""


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Ask again when something happens, and at this time; None: no time changes it."""

    at: float | None


def decide(settings: TriggerSettings, found: Situation) -> StepNow | CheckpointNow | WaitUntil:
    """Return what to do now. While it is paused, a checkpoint is made if it is requested, and nothing else."""
    due = _due(settings, found)
    if not found.checkpointing and (found.wanted or (due is not None and due <= found.now)):
        return CheckpointNow()
    if found.paused:
        return WaitUntil(None)
    if found.replaying:
        return StepNow(replayed=True)
    if found.ending:  # the rest is taken at once, and then the end
        return StepNow(ended=not any(found.rows))
    times = [time for time in (_rows_due(settings, found), _tick(settings, found)) if time is not None]
    if any(time <= found.now for time in times):
        return StepNow()
    return WaitUntil(min([*times, *([due] if due is not None else [])], default=None))


def _due(settings: TriggerSettings, found: Situation) -> float | None:
    """When a checkpoint is, if time makes one."""
    if settings.checkpoint_s is None or found.checkpointing or found.paused:
        return None
    return found.checkpoint_at + settings.checkpoint_s


def _rows_due(settings: TriggerSettings, found: Situation) -> float | None:
    """When the rows that wait are enough, or have waited long enough, and the step before is long enough ago."""
    waiting = sum(found.rows)
    if waiting >= settings.rows:
        due = found.rows_since
    elif waiting and settings.delay_s is not None:
        due = found.rows_since + settings.delay_s
    else:
        return None
    return due if waiting >= settings.many_rows else max(due, found.stepped_at + settings.spacing_s)


def _tick(settings: TriggerSettings, found: Situation) -> float | None:
    """When the clock makes a step: any step is as good as a tick."""
    return None if settings.tick_s is None else found.stepped_at + settings.tick_s
