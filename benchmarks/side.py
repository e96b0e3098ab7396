"""A contestant's process; it speaks in lines of JSON.

`python -m benchmarks.side receive .contestants.ours '{"size": 64}'` says where it listens and does its work. Given
`send` instead, it says that it is there, and reads from stdin where to.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import math
import signal
import sys
from typing import Any

import uvloop

from .work import TooFew, Work

DEADLINE_S, TIMES = 45, 4
"""After so long, and so many times the work's own duration, the kernel ends what hangs, as zenoh now and then does."""


def say(what: dict[str, Any]) -> None:
    """Tell the measuring process."""
    print(json.dumps(what), flush=True)


def main() -> None:
    """Do one side of one run."""
    name, module, settings = sys.argv[1:]
    work = Work(**json.loads(settings))
    signal.alarm(DEADLINE_S + math.ceil(TIMES * (work.warm_up + work.seconds)))
    function = getattr(importlib.import_module(module, __package__), name)
    if "ready" in inspect.signature(function).parameters:
        arguments: tuple[Any, ...] = (lambda address: say({"address": address}),)
    else:
        say({})
        arguments = (json.loads(sys.stdin.readline()),)
    try:
        result = function(work, *arguments)
        if inspect.iscoroutine(result):
            result = uvloop.run(result)
    except TooFew as error:
        say({"again": str(error)})
        return
    say(dataclasses.asdict(result))


if __name__ == "__main__":
    main()
