"""A plain file with a sync for as many bytes as the durable buffer had: the bound that there is for a disk."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from benchmarks.work import Result, Work


class Clock:
    """Until when, how much, and how fast."""

    def __init__(self, work: Work) -> None:
        self._size = work.size
        self._start = time.perf_counter()
        self._cpu = time.process_time()
        self._end = self._start + work.warm_up + work.seconds

    def more(self) -> bool:
        """Whether there is time left."""
        return time.perf_counter() < self._end

    def result(self, messages: int, syncs: int) -> dict[str, float]:
        """When so much is on disk."""
        seconds, bytes_ = time.perf_counter() - self._start, messages * self._size
        return {
            "durable_MB_per_s": bytes_ / seconds / 1e6,
            "syncs_per_s": syncs / seconds,
            "bytes_per_sync": bytes_ / syncs,
            "sender_cpu_s_per_GB": (time.process_time() - self._cpu) / (bytes_ / 1e9),
        }


def send(work: Work, _: str) -> Result:
    """As many bytes per sync as the durable buffer had, from one piece of memory."""
    messages = max(1, round(work.options["followed"]["bytes_per_sync"] / work.size))
    body = bytes(messages * work.size)
    syncs = 0
    with tempfile.NamedTemporaryFile(buffering=0) as file:
        clock = Clock(work)
        while clock.more():
            if file.write(body) != len(body):
                raise OSError(f"{file.name}: the disk took less than {len(body)} bytes")
            os.fdatasync(file.fileno())
            syncs += 1
        measures = clock.result(messages * syncs, syncs)
        if Path(file.name).stat().st_size != len(body) * syncs:
            raise OSError(f"{file.name} has not the size of what was written")
    return Result(messages * syncs, measures)
