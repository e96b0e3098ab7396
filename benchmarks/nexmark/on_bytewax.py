"""Nexmark's queries in bytewax, in an environment that has it, with the folders of `main`'s arguments in its variables.

Batches of Arrow come in; where rows are independent they stay batches, elsewhere each row is an item with its key, as
its operators want it. Each worker writes what comes out at it to a file of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
import bytewax.operators.windowing as win
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators import StatefulBatchLogic
from bytewax.outputs import DynamicSink, StatelessSinkPartition

QUERY, FOLDER, RESULT = (os.environ[f"NEXMARK_{name}"] for name in ("QUERY", "FOLDER", "RESULT"))
BATCH = 10_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LENGTH, HOP = timedelta(seconds=10), timedelta(seconds=2)


class _File(StatefulSourcePartition):  # type: ignore[misc] # it is not installed where types are checked
    def __init__(self, path: Path, columns: list[str], position: int) -> None:
        self._position = position
        self._batches = pq.ParquetFile(path).iter_batches(BATCH, columns=columns)
        for _ in range(position):
            next(self._batches)

    def next_batch(self) -> Iterable[pa.RecordBatch]:
        batch = next(self._batches)  # its end is that of the source
        self._position += 1
        return [batch]

    def snapshot(self) -> int:
        return self._position


class _Stream(FixedPartitionedSource):  # type: ignore[misc] # as above
    def __init__(self, name: str, columns: list[str]) -> None:
        self._path, self._columns = Path(FOLDER) / f"{name}.parquet", columns

    def list_parts(self) -> list[str]:
        return [self._path.name]

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> _File:
        return _File(self._path, self._columns, resume_state or 0)


class _Result(StatelessSinkPartition):  # type: ignore[misc] # as above
    """Batches, or rows as tuples of the columns' values."""

    def __init__(self, path: Path, columns: list[str]) -> None:
        self._path, self._columns = path, columns
        self._rows: list[tuple[Any, ...]] = []
        self._writer: pq.ParquetWriter | None = None

    def write_batch(self, items: list[Any]) -> None:
        for item in items:
            if isinstance(item, pa.RecordBatch):
                self._write(item)
            else:
                self._rows.append(item)
        if len(self._rows) >= BATCH:
            self._write_rows()

    def close(self) -> None:
        self._write_rows()
        if self._writer is not None:
            self._writer.close()

    def _write_rows(self) -> None:
        if self._rows:
            columns = map(pa.array, zip(*self._rows, strict=True))
            self._write(pa.record_batch(dict(zip(self._columns, columns, strict=True))))
            self._rows = []

    def _write(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, batch.schema)
        self._writer.write_batch(batch)


class _Results(DynamicSink):  # type: ignore[misc] # as above
    def __init__(self, *columns: str) -> None:
        self._columns = list(columns)

    def build(self, step_id: str, worker_index: int, worker_count: int) -> _Result:
        return _Result(Path(RESULT) / f"{worker_index}.parquet", self._columns)


def _rows(batch: pa.RecordBatch, keep: pc.Expression | None = None) -> Iterable[tuple[Any, ...]]:
    if keep is not None:
        batch = pa.table(batch).filter(keep)
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _keyed(flow: Dataflow, name: str, columns: list[str], keep: pc.Expression | None = None) -> Any:
    """The rows of a stream by their first column, which is the key."""
    batches = op.input(name, flow, _Stream(name, columns))
    return op.flat_map(
        f"{name}_rows", batches, lambda batch: ((str(row[0]), row) for row in _rows(batch, keep))
    )


def q1(flow: Dataflow) -> None:
    """Currency conversion, a batch at a time."""

    def convert(batch: pa.RecordBatch) -> pa.RecordBatch:
        price = pc.multiply(batch.column("price").cast(pa.float64()), 0.908)
        return batch.set_column(batch.schema.get_field_index("price"), "price", price)

    bid = op.input("bid", flow, _Stream("bid", ["auction", "bidder", "price", "date_time"]))
    op.output("result", op.map("in_euros", bid, convert), _Results())


def q3(flow: Dataflow) -> None:
    """Local item suggestion: what is for sale waits for its seller."""

    def sold(state: Any, row: tuple[Any, ...]) -> tuple[Any, list[tuple[Any, ...]]]:
        person, waiting = state or (None, [])
        if len(row) == 4:
            return (row, []), [(*row[1:], auction) for auction in waiting]
        if person is None:
            return (None, [*waiting, row[1]]), []
        return (person, waiting), [(*person[1:], row[1])]

    auction = _keyed(flow, "auction", ["seller", "id", "category"], pc.field("category") == 10)
    near = pc.field("state").isin(["OR", "ID", "CA"])
    person = _keyed(flow, "person", ["id", "name", "city", "state"], near)
    joined = op.stateful_flat_map("joined", op.merge("both", auction, person), sold)
    op.output("result", op.key_rm("columns", joined), _Results("name", "city", "state", "auction"))


class _Highest(StatefulBatchLogic):  # type: ignore[misc] # as above
    """Of an auction's bids the highest in time, when all have come; bids that are there before it wait."""

    def __init__(self, state: Any) -> None:
        self._auction, self._final, self._early = state or (None, None, [])

    def on_batch(self, values: list[tuple[Any, ...]]) -> tuple[Iterable[Any], bool]:
        bids = self._early
        for row in values:
            if len(row) == 4:
                self._auction = row
            else:
                bids.append(row)
        if self._auction is None:
            return (), StatefulBatchLogic.RETAIN
        _, _, begins, expires = self._auction
        prices = [price for _, price, at in bids if begins <= at <= expires]
        self._early = []
        if prices:
            self._final = max(prices) if self._final is None else max(self._final, *prices)
        return (), StatefulBatchLogic.RETAIN

    def on_eof(self) -> tuple[Iterable[Any], bool]:
        found = [] if self._final is None else [(self._auction[1], self._final)]
        return found, StatefulBatchLogic.RETAIN

    def snapshot(self) -> Any:
        return self._auction, self._final, list(self._early)


def q4(flow: Dataflow) -> None:
    """Average price for a category, once all bids are there."""
    auction = _keyed(flow, "auction", ["id", "category", "date_time", "expires"])
    bid = _keyed(flow, "bid", ["auction", "price", "date_time"])
    final = op.stateful_batch("final", op.merge("both", auction, bid), _Highest)
    by_category = op.map("category", final, lambda item: (str(item[1][0]), item[1][1]))
    summed = op.fold_final(
        "sum", by_category, lambda: (0, 0), lambda sum_, price: (sum_[0] + price, sum_[1] + 1)
    )
    averages = op.map("average", summed, lambda item: (int(item[0]), item[1][0] / item[1][1]))
    op.output("result", averages, _Results("category", "price"))


def _clock(ts: Callable[[Any], datetime]) -> win.EventClock:
    # Its event time moves on with the system's clock, too: without waiting, rows that a worker comes to later are late.
    return win.EventClock(ts_getter=ts, wait_for_system_duration=timedelta(minutes=1))


def q5(flow: Dataflow) -> None:
    """Hot items: each auction's bids by window, then the most of each window."""
    batches = op.input("bid", flow, _Stream("bid", ["auction", "date_time"]))
    bid = op.flat_map("bids", batches, _rows)
    windows = win.SlidingWindower(length=LENGTH, offset=HOP, align_to=EPOCH)
    counts = win.count_window(
        "counts",
        bid,
        _clock(lambda row: row[1].replace(tzinfo=UTC)),
        windows,
        key=lambda row: str(row[0]),
    )
    by_window = op.map("by_window", counts.down, lambda item: (str(item[1][0]), (item[1][1], int(item[0]))))

    def most(state: tuple[int, list[int]], item: tuple[int, int]) -> tuple[int, list[int]]:
        num, auctions = state
        if item[0] > num:
            return item[0], [item[1]]
        return (num, [*auctions, item[1]]) if item[0] == num else state

    hottest = op.fold_final("most", by_window, lambda: (0, []), most)
    rows = op.flat_map(
        "rows", hottest, lambda item: [(EPOCH + int(item[0]) * HOP, item[1][0], each) for each in item[1][1]]
    )
    op.output("result", rows, _Results("window_start", "num", "auction"))


def q8(flow: Dataflow) -> None:
    """New users: persons and auctions of the same window."""
    person = _keyed(flow, "person", ["id", "name", "date_time"])
    auction = _keyed(flow, "auction", ["seller", "date_time"])
    windows = win.TumblingWindower(length=LENGTH, align_to=EPOCH)
    joined = win.join_window(
        "joined",
        _clock(lambda row: row[-1].replace(tzinfo=UTC)),
        windows,
        person,
        auction,
        insert_mode="last",
        emit_mode="final",
    )
    both = op.filter("both", joined.down, lambda item: None not in item[1][1])
    rows = op.map("rows", both, lambda item: (*item[1][1][0][:2], EPOCH + item[1][0] * LENGTH))
    op.output("result", rows, _Results("id", "name", "window_start"))


flow = Dataflow(QUERY)
{"q1": q1, "q3": q3, "q4": q4, "q5": q5, "q8": q8}[QUERY](flow)
