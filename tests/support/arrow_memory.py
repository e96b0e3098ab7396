"""The memory of Arrow that a piece of a test allocates, and nothing else in the process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

_POOLS: list[pa.MemoryPool] = []
"""All that were ever made: whoever lets go of a buffer later, gives it back to the pool that it is from."""


@contextmanager
def memory_pool() -> Iterator[pa.MemoryPool]:
    """A pool from which all is allocated within the context; what others had, and let go of meanwhile, is not in it."""
    gc.collect()  # none of what is made in here is to be let go of later than where it is used last
    pool, before = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    _POOLS.append(pool)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)
