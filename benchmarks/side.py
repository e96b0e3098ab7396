"""A contestant's process: `python -m benchmarks.side receive ours '{"size": 64}'`; it speaks in lines of JSON."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import sys
from typing import Any

import uvloop

from .work import Work


def say(what: dict[str, Any]) -> None:
    """Tell the measuring process."""
    print(json.dumps(what), flush=True)


def main() -> None:
    """Do one side of one run."""
    role, name, settings, *address = sys.argv[1:]
    work = Work(**json.loads(settings))
    function = getattr(importlib.import_module(f"benchmarks.contestants.{name}"), role)
    arguments: list[Any] = [work, *address]
    if role == "receive":
        arguments.append(lambda where: say({"address": where}))
    result = function(*arguments)
    if inspect.isawaitable(result):
        result = uvloop.run(result)
    say(dataclasses.asdict(result))


if __name__ == "__main__":
    main()
