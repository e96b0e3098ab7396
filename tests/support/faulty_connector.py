"""A source and a sink that break one promise of connectors each, so that it is seen whether the kit finds that."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any, ClassVar, Literal

import pyarrow as pa

from nebuli.connectors import InputError, Output, Schema, Signal, Source
from nebuli.connectors.sinks.outputs import csv_rows
from nebuli.dataflow import arrow_schema, insertions
from topology import SinkConnector, SourceConnector

ROWS = [{"n": number} for number in range(5)]


class FaultySource(SourceConnector):
    """``waits``: with nothing to give, for a moment."""

    implementation = "tests.support.faulty_connector:Reading"
    repeatable = True

    type: Literal["Faulty"]
    fault: str = ""
    waits: bool = False


class Reading(Source):
    times: ClassVar[int] = 0

    def __init__(self, settings: FaultySource, columns: Schema, wake: Callable[[], None]) -> None:
        self.waits = settings.waits
        self.fault = settings.fault
        self.schema = arrow_schema(columns)
        self.wake = wake
        self.left = [*ROWS]
        self.descriptor = -1
        self.over = Event()
        self.thread: Thread | None = None

    def open(self) -> None:
        if self.fault == "cannot be read":
            raise InputError("the row of socks is empty")
        if self.fault == "raises anything" and self.waits:
            raise OSError("it is empty")
        Reading.times += 1
        self.descriptor = os.open(os.devnull, os.O_RDONLY)
        self.thread = Thread(target=self.over.wait, name="a thread of the source", daemon=True)
        self.thread.start()

    def skip(self, rows: int) -> None:
        self.left = self.left[rows + (self.fault == "skips more") :]

    def poll(self) -> pa.RecordBatch | Signal:
        if self.waits:
            self.waits = False
            if self.fault == "blocks":
                self.over.wait(30)
            if self.fault != "does not wake":
                self.wake()
            return Signal.LATER
        if len(self.left) <= (self.fault == "forgets a row"):
            return Signal.LATER if self.fault == "does not end" else Signal.END
        rows, self.left = self.left[:2], self.left[2:]
        if self.fault == "changes" and Reading.times % 2:
            rows = rows[::-1]
        batch = pa.RecordBatch.from_pylist(rows, self.schema)
        return batch if self.fault == "no weights" else insertions(batch)

    def close(self, reason: str) -> None:
        if self.thread is not None and self.fault != "keeps its thread":
            self.over.set()
            self.thread.join()
        if self.descriptor >= 0 and self.fault != "keeps its descriptor":
            os.close(self.descriptor)
            self.descriptor = -1


class FaultySink(SinkConnector):
    """Writes to a file, aside at first."""

    implementation = "tests.support.faulty_connector:Writing"
    begins_anew = True

    type: Literal["Faulty"]
    path: str
    fault: str = ""


class Writing(Output):
    def __init__(self, settings: FaultySink) -> None:
        self.path = Path(settings.path)
        self.fault = settings.fault
        self.aside = self.path if self.fault == "writes in place" else self.path.with_suffix(".aside")
        self.over = Event()
        self.file: Any = None

    def open(self, schema: pa.Schema) -> None:
        if self.fault == "keeps its descriptor":
            os.open(os.devnull, os.O_RDONLY)
        self.file = self.aside.open("wb")
        self.rows = csv_rows(self.file, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        if self.fault == "forgets a row":
            batch = batch.slice(1)
        if self.fault == "spoils" and batch.num_rows:
            batch = batch.set_column(1, "n", pa.array([7] * batch.num_rows))
        if self.fault == "cannot be stopped":
            self.over.wait(2)
        self.rows.write_table(pa.Table.from_batches([batch]))
        self.file.flush()

    def publish(self) -> None:
        self.rows.close()
        self.file.close()
        self.aside.replace(self.path)

    def discard(self) -> None:
        if self.file is None or self.file.closed:
            return
        if self.fault == "publishes what is broken":
            self.publish()
        self.file.close()
