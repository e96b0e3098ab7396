"""Processes that a measuring one starts beside itself, and the folder that all of them have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.running import Side, side
from benchmarks.work import Result, Work


@contextmanager
def started(function: str, module: str, work: Work, folder: Path) -> Iterator[Side]:
    """A process that does its part of the work with a folder, which it has as an option; it is gone with the context.

    It has said that it is there.
    """
    given = replace(work, options={**work.options, "folder": str(folder)})
    with side(function, module, json.dumps(asdict(given)), None) as other:
        other.hear()
        yield other


def begun(other: Side) -> None:
    """Have it begin, which waits for a word."""
    other.tell("")


def ended(other: Side) -> Result:
    """What it has to say, once it is gone, and has closed what it had open."""
    result = Result(**other.hear())
    other.end()
    return result


def done(function: str, module: str, work: Work, folder: Path) -> Result:
    """The same, from its start to its end."""
    with started(function, module, work, folder) as other:
        begun(other)
        return ended(other)


def folder_of(work: Work) -> Path:
    """Where all of them work."""
    return Path(work.options["folder"])
