"""Durations of steps and checkpoints, as a coordinator counts them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Timings:
    """The number, the rows and the duration of steps and checkpoints, since the coordinator's process has begun.

    A step is timed from its order until all members have made it, a checkpoint until all have committed it; replayed
    steps count again.
    """

    rows: int = 0
    """The rows that steps were issued with, without those of replayed steps."""
    steps: int = 0
    step_seconds: float = 0.0
    checkpoints: int = 0
    checkpoint_seconds: float = 0.0
    failed_checkpoints: int = 0
    checkpoint_at: float | None = None
    """When the last one was made, by the clock of the events."""

    def stepped(self, seconds: float) -> None:
        """Count a step."""
        self.steps += 1
        self.step_seconds += seconds

    def saved(self, since: float, now: float) -> None:
        """Count a checkpoint that was begun then."""
        self.checkpoints += 1
        self.checkpoint_seconds += now - since
        self.checkpoint_at = now
