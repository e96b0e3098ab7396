"""``python -m tests.power --seeds 200 --first 0 [--only send retain stage]``: stories, one after the other."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from .kinds import STORIES
from .machine import machine

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.power")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=STORIES, default=STORIES)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, machine(Path(folder)) as power:
        for kind in given.only:
            seeds = range(given.first, given.first + given.seeds)
            asyncio.run(STORIES[kind](power, [f"{kind} {seed}" for seed in seeds]))
