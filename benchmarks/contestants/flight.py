"""Arrow Flight: DoPut, in pyarrow. Bytes go as batches of one binary value."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.flight

from benchmarks.measuring import pace, watch
from benchmarks.work import Result, Work


class _Server(pyarrow.flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self, work: Work) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.watching = watch(work)
        self.done = threading.Event()
        self._look = self.watching.look()
        self._arrow = work.arrow

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        for chunk in reader:
            self._look(chunk.data if self._arrow else chunk.data.column(0)[0].as_buffer())
        self.done.set()


def receive(work: Work, ready: Callable[[str], None]) -> Result:
    """Serve one DoPut."""
    with _Server(work) as server:
        ready(f"grpc://127.0.0.1:{server.port}")
        server.done.wait()
        return server.watching.result()  # type: ignore[no-any-return]


def send(work: Work, address: str) -> Result:
    """Put one stream of batches."""
    batches = work.messages()
    if not work.arrow:
        batches = [pa.record_batch({"b": pa.array([message], pa.binary())}) for message in batches]
    with pyarrow.flight.connect(address) as client:
        client.wait_for_available()
        writer, reader = client.do_put(pyarrow.flight.FlightDescriptor.for_path("b"), batches[0].schema)
        pacing = pace(work)
        with writer:
            for _ in pacing:
                for batch in batches:
                    writer.write_batch(batch)
            writer.done_writing()
            reader.read()
    return pacing.result()  # type: ignore[no-any-return]
