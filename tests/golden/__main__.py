"""``python -m tests.golden``: make the files of this version anew; ``written`` and the wire's vectors stay."""

from __future__ import annotations

import asyncio
import shutil
from importlib.metadata import version
from pathlib import Path

from .making import MADE, make

if __name__ == "__main__":
    folder = Path(__file__).parent / version("netchannel")
    for made in MADE:
        shutil.rmtree(folder / made, ignore_errors=True)
    asyncio.run(make(folder, folder / "written"))
