"""Where rows come into a query with views and go out of it, as the plan of its state has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from topology.schema import Schema  # noqa: TC001 - fragments, which have such nodes, are validated by it


@dataclass(frozen=True, slots=True)
class Base:
    """Where rows come in. All of them are kept."""

    id: str
    columns: Schema
    type: Literal["base"] = "base"


@dataclass(frozen=True, slots=True)
class Stream:
    """Where rows come in that nobody keeps, so that none of them comes again."""

    id: str
    columns: Schema
    type: Literal["stream"] = "stream"


@dataclass(frozen=True, slots=True)
class View:
    """Where rows of ``input`` are read by ``key``. All of them go on to whoever reads it."""

    id: str
    input: str
    key: tuple[str, ...]
    type: Literal["view"] = "view"


@dataclass(frozen=True, slots=True)
class Output:
    """What takes all rows of ``input``, as a sink does."""

    id: str
    input: str
    type: Literal["output"] = "output"
