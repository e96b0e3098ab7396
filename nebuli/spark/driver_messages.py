"""Messages between the worker and the driver process: lines of JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

RUN, DRAIN = "run", "drain"
"""Messages to the driver: all rows of a bounded job are there; all rows of an endless one were sent."""
DONE, FAILED, PHASE = "done", "failed", "phase"
"""Messages of the driver: it is over, the last one; or Spark's phase, any number of times before."""


@dataclass(frozen=True, slots=True)
class Input:
    """A channel that is kept, read by a view of the same name; its columns as DDL.

    ``time`` is the column that its watermark comes from, which lags by ``lateness``.
    """

    channel: str
    columns: str
    time: str | None = None
    lateness: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One fragment: ``steps`` are views with their SQL, of which the last is the result.

    The driver may use ``directory``, and removes it at its end.
    """

    name: str
    master: str
    bounded: bool
    inputs: tuple[Input, ...]
    steps: tuple[tuple[str, str], ...]
    source: str
    target: str
    result: str
    directory: str
    secret: str = field(repr=False)

    def to_line(self) -> str:
        """The job as JSON on one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Job:
        """Parse the result of `to_line`."""
        data = json.loads(line)
        inputs = tuple(Input(**each) for each in data["inputs"])
        return cls(**{**data, "inputs": inputs, "steps": tuple(map(tuple, data["steps"]))})


@dataclass(frozen=True, slots=True)
class Report:
    """``event`` is DONE; FAILED, and then ``error`` has the reason; or PHASE, and then ``phase`` names it."""

    event: str
    error: str = ""
    phase: str = ""

    def to_line(self) -> str:
        """The report as JSON on one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Report:
        """Parse the result of `to_line`."""
        return cls(**json.loads(line))
