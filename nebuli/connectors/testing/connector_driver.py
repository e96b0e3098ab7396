"""Sources and sinks as a fragment has them: made on an event loop, called by one thread, and gone at the end."""

from __future__ import annotations

import asyncio
import gc
import queue
import time
from collections import Counter
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from threading import enumerate as threads
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pytest

from nebuli.connectors.endpoints import Output, Signal, Source
from nebuli.dataflow import WEIGHT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

_DESCRIPTORS = Path("/proc/self/fd")


class Driven:
    """The result of ``make``, given a ``wake``. A call that takes longer than ``limit_s`` fails the test."""

    def __init__(self, make: Callable[[Callable[[], None]], Any], limit_s: float) -> None:
        self._limit_s = limit_s
        self.woken = Event()
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._threads = [
            Thread(target=target, daemon=True) for target in (self._loop.run_forever, self._serve)
        ]
        for thread in self._threads:
            thread.start()

        async def made() -> Any:
            return make(self.woken.set)

        self.end = asyncio.run_coroutine_threadsafe(made(), self._loop).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:  # what has failed here is not to fail the next test by what it holds
            self.end.interrupt()
            self.begin(self._let_go)
        self._calls.put(None)
        self._threads[1].join(self._limit_s)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._threads[0].join()
        self._loop.close()

    def _let_go(self) -> None:
        match self.end:
            case Source() as source:
                source.close("the test has failed")
            case Output() as output:
                output.discard()
            case sink:
                sink.abort("the test has failed")

    def begin(self, work: Callable[[], Any]) -> Future[Any]:
        """Have the thread do something; at once where it has nothing else to do."""
        future: Future[Any] = Future()
        self._calls.put((future, work))
        return future

    def call(self, name: str, *arguments: object) -> Any:
        """Have it call a method, and wait for the end of that."""
        future = self.begin(lambda: getattr(self.end, name)(*arguments))
        try:
            return future.result(self._limit_s)
        except TimeoutError:
            if future.done():  # it has raised that itself
                raise
            self.end.interrupt()
            pytest.fail(
                f"{name} did not return within {self._limit_s:g} s, during which a query cannot be stopped"
            )

    def read(self, most_rows: float) -> pa.Table:
        """Poll for Z-sets, to the end or for so many rows."""
        batches: list[pa.RecordBatch] = []
        while sum(each.num_rows for each in batches) < most_rows:
            self.woken.clear()
            found = self.call("poll")
            if found is Signal.END:
                break
            if found is Signal.LATER:
                assert self.woken.wait(self._limit_s), (
                    "poll returned LATER, but the source did not wake the fragment"
                )
            elif isinstance(found, pa.RecordBatch):
                batches.append(found)
        return pa.Table.from_batches(batches) if batches else pa.table({})

    def _serve(self) -> None:
        while (each := self._calls.get()) is not None:
            future, work = each
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
                future.set_exception(error)


@contextmanager
def nothing_held(limit_s: float) -> Iterator[None]:
    """Fail where threads run, or descriptors are open, that were not before, and are so for longer than that."""
    before = held()
    yield
    deadline = time.monotonic() + limit_s
    while (more := held() - before) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert not more, f"not released: {', '.join(more)}"


def held() -> Counter[str]:
    """Threads that run and descriptors that are open now, by what they are."""
    there = Counter(f"thread {each.name}" for each in threads())
    for each in _DESCRIPTORS.iterdir() if _DESCRIPTORS.exists() else ():
        try:
            there[f"descriptor of {each.readlink()}"] += 1
        except OSError:  # that by which the directory is read
            continue
    return there


def counted(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> Counter[str]:
    """Rows as often as they are there, by their weights where these have such; values as Arrow gives them."""
    found: Counter[str] = Counter()
    for row in pa.Table.from_pylist(list(rows), schema).to_pylist():
        weight = row.pop(WEIGHT, 1)
        found[repr(row)] += weight
    return Counter({row: count for row, count in found.items() if count})
