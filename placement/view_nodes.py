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
    """An input whose rows are not kept, so that none of them can be read again."""

    id: str
    columns: Schema
    type: Literal["stream"] = "stream"


@dataclass(frozen=True, slots=True)
class View:
    """Where rows of ``input`` are read by ``key``. All of them are passed on to its readers."""

    id: str
    input: str
    key: tuple[str, ...]
    type: Literal["view"] = "view"


@dataclass(frozen=True, slots=True)
class Output:
    """A consumer of all rows of ``input``, like a sink."""

    id: str
    input: str
    type: Literal["output"] = "output"
