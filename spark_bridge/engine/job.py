"""What the worker tells the driver process, and what it hears: lines of JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

RUN, DRAIN = "run", "drain"
"""To the driver: all rows of a bounded job are there; all rows of an endless one were sent."""
DONE, FAILED = "done", "failed"
"""From the driver."""


@dataclass(frozen=True, slots=True)
class Input:
    """A channel that is kept, which the query reads by a view of the same name; its columns as DDL."""

    channel: str
    columns: str


@dataclass(frozen=True, slots=True)
class Job:
    """One fragment. The driver may use ``directory``, and removes it at its end."""

    name: str
    master: str
    bounded: bool
    sql: str
    inputs: tuple[Input, ...]
    source: str
    target: str
    result: str
    directory: str
    secret: str = field(repr=False)

    def to_line(self) -> str:
        """As JSON on one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Job:
        """What `to_line` has made."""
        data = json.loads(line)
        return cls(**{**data, "inputs": tuple(Input(**each) for each in data["inputs"])})


@dataclass(frozen=True, slots=True)
class Report:
    """``event`` is DONE or FAILED, and then ``error`` says why."""

    event: str
    error: str = ""

    def to_line(self) -> str:
        """As JSON on one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Report:
        """What `to_line` has made."""
        return cls(**json.loads(line))
