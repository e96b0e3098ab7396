"""What a process holds of the machine."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

PAGE = os.sysconf("SC_PAGE_SIZE")


class Resources(NamedTuple):
    """Counts, and resident bytes; threads are Python's: libraries keep others for themselves."""

    descriptors: int
    threads: int
    tasks: int
    resident: int


@contextmanager
def memory_of_the_system() -> Iterator[None]:
    """Have Arrow take its memory from the system: its own allocator keeps tens of MiB of what was given back."""
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)


def measure() -> Resources:
    """What this process holds once what is free in it was given back."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
    return Resources(
        len(list(Path("/proc/self/fd").iterdir())) - 1,  # one lists them
        threading.active_count(),
        len(asyncio.all_tasks()),
        int(Path("/proc/self/statm").read_text("utf-8").split()[1]) * PAGE,
    )
