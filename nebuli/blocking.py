"""The same as `nebuli`, for programs without an event loop: each call waits for its result."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from nebuli import circuits
from nebuli.circuits.circuit_client import DEADLINE_S
from nebuli.store.collections import collections
from nebuli.store.collections.clock import TICK_S, now_ms
from nebuli.store.collections.collections import HISTORY_S
from nebuli.store.shards.shard import DEADLINE_S as SNAPSHOT_S
from nebuli.views import view_client
from nebuli.views.errors import ViewsClosed
from nebuli.views.view_client import ADD_S
from nebuli.views.view_client import DEADLINE_S as LOOKUP_S

if TYPE_CHECKING:
    import os
    from collections.abc import (
        AsyncGenerator,
        Callable,
        Coroutine,
        Generator,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from types import TracebackType
    from typing import Self

    import pyarrow as pa

    import netchannel
    from nebuli.circuits import CircuitStatus
    from nebuli.rpc.status import ViewStatus
    from nebuli.store.collections.catalog import Timed
    from nebuli.store.collections.collection_reader import Part
    from nebuli.store.collections.collections import Rows
    from nebuli.store.collections.controller import CollectionStatus
    from nebuli.store.shards.shard import Span
    from nebuli.store.store import Store
    from nebuli.store.store_url import StoreUrl
    from nebuli.views import Lookup, ViewDescription

__all__ = ["Circuit", "Collections", "Views"]

_Result = TypeVar("_Result")


class _Thread:
    """An event loop on a thread of its own, and calls from other threads, that wait for what it does."""

    def __init__(self, name: str, closed: type[Exception] = RuntimeError) -> None:
        self._name = name
        self._closed = closed
        self._is_open = False
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
        self._thread.start()
        self._is_open = True

    def end(self) -> None:
        self._is_open = False
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def wait(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        if not self._is_open:
            work.close()
            raise self._closed(f"{self._name} is not entered, or was closed: use 'with'")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # of this thread, as Ctrl-C is: what it waited for is not wanted any more
            future.cancel()
            raise

    def each(self, source: AsyncGenerator[_Result]) -> Generator[_Result]:
        """What it gives, one after the other; it is closed with this."""
        # Ctrl-C does not wait for what it cancels, which has to be over before the closing.
        turn = asyncio.Lock()

        async def following() -> list[_Result]:
            async with turn:
                try:
                    return [await anext(source)]
                except StopAsyncIteration:
                    return []

        async def closed() -> None:
            async with turn:
                await source.aclose()

        try:
            while found := self.wait(following()):
                yield found[0]
        finally:
            # Where its owner was closed first, all that this would close is closed.
            if self._is_open:
                self.wait(closed())


class Circuit:
    """`nebuli.Circuit`, from any thread, several at once: the same names, and each call waits."""

    def __init__(
        self,
        address: str,
        *,
        secret: str | None = None,
        tls: netchannel.Tls | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._circuit = circuits.Circuit(address, secret=secret, tls=tls, deadline_s=deadline_s)
        self._thread = _Thread("nebuli-circuit")
        self._wait = self._thread.wait

    @property
    def address(self) -> str:
        """Where the circuit is served."""
        return self._circuit.address

    @property
    def inputs(self) -> Mapping[str, pa.Schema]:
        """What can be pushed: the schema of its rows, by input."""
        return self._circuit.inputs

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """What can be read: the schema of its rows, by output."""
        return self._circuit.outputs

    def __enter__(self) -> Self:
        """As `nebuli.Circuit`."""
        self._thread.start()
        try:
            self._wait(self._circuit.__aenter__())
        except BaseException:
            self._thread.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Disconnect; the circuit runs on."""
        try:
            self._wait(self._circuit.__aexit__(kind, error, traceback))
        finally:
            self._thread.end()

    def push(self, handle: str, batch: pa.RecordBatch | pa.Table, *, producer: str, sequence: int) -> int:
        """As `nebuli.Circuit.push`."""
        return self._wait(self._circuit.push(handle, batch, producer=producer, sequence=sequence))

    def stage(
        self, handle: str, batch: pa.RecordBatch | pa.Table, *, producer: str, sequence: int
    ) -> str | None:
        """As `nebuli.Circuit.stage`."""
        return self._wait(self._circuit.stage(handle, batch, producer=producer, sequence=sequence))

    def push_staged(self, handle: str, pieces: Sequence[str], *, producer: str, sequence: int) -> int:
        """As `nebuli.Circuit.push_staged`."""
        return self._wait(self._circuit.push_staged(handle, pieces, producer=producer, sequence=sequence))

    def drop_staged(self, handle: str, pieces: Sequence[str], *, producer: str) -> None:
        """As `nebuli.Circuit.drop_staged`."""
        self._wait(self._circuit.drop_staged(handle, pieces, producer=producer))

    def next_sequence(self, handle: str, producer: str) -> int:
        """As `nebuli.Circuit.next_sequence`."""
        return self._wait(self._circuit.next_sequence(handle, producer))

    def output(self, name: str, from_step: int = 0) -> Iterator[tuple[int, pa.RecordBatch]]:
        """As `nebuli.Circuit.output`."""
        yield from self._thread.each(self._circuit.output(name, from_step))

    def offsets(self, step: int) -> dict[str, tuple[int, int]]:
        """As `nebuli.Circuit.offsets`."""
        return self._wait(self._circuit.offsets(step))

    def query(self, sql: str) -> tuple[int, pa.Table]:
        """As `nebuli.Circuit.query`."""
        return self._wait(self._circuit.query(sql))

    def checkpoint(self) -> int:
        """As `nebuli.Circuit.checkpoint`."""
        return self._wait(self._circuit.checkpoint())

    def pause(self) -> None:
        """As `nebuli.Circuit.pause`."""
        self._wait(self._circuit.pause())

    def start(self) -> None:
        """As `nebuli.Circuit.start`."""
        self._wait(self._circuit.start())

    def scale(self, members: int) -> int:
        """As `nebuli.Circuit.scale`."""
        return self._wait(self._circuit.scale(members))

    def shut_down(self) -> None:
        """As `nebuli.Circuit.shut_down`."""
        self._wait(self._circuit.shut_down())

    def status(self) -> CircuitStatus:
        """As `nebuli.Circuit.status`."""
        return self._wait(self._circuit.status())


class Collections:
    """`nebuli.Collections`, from any thread, several at once: the same names, and each call waits."""

    def __init__(
        self,
        url: str | os.PathLike[str] | StoreUrl | Store,
        *,
        now: Callable[[], int] = now_ms,
        tick_s: float = TICK_S,
    ) -> None:
        self._collections = collections.Collections(url, now=now, tick_s=tick_s)
        self._thread = _Thread("nebuli-collections")
        self._wait = self._thread.wait

    def __enter__(self) -> Self:
        """As `nebuli.Collections`."""
        self._thread.start()
        try:
            self._wait(self._collections.__aenter__())
        except BaseException:
            self._thread.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End what was begun, and close."""
        try:
            self._wait(self._collections.__aexit__(kind, error, traceback))
        finally:
            self._thread.end()

    def create(
        self,
        name: str,
        schema: pa.Schema,
        *,
        shards: int = 1,
        timed: Timed = "store",
        history_s: float = HISTORY_S,
    ) -> None:
        """As `nebuli.Collections.create`."""
        self._wait(self._collections.create(name, schema, shards=shards, timed=timed, history_s=history_s))

    def drop(self, name: str) -> None:
        """As `nebuli.Collections.drop`."""
        self._wait(self._collections.drop(name))

    def names(self) -> list[str]:
        """As `nebuli.Collections.names`."""
        return self._wait(self._collections.names())

    def describe(self, name: str) -> CollectionStatus:
        """As `nebuli.Collections.describe`."""
        return self._wait(self._collections.describe(name))

    def insert(
        self, name: str, rows: Rows, *, producer: str | None = None, sequence: int | None = None
    ) -> int:
        """As `nebuli.Collections.insert`."""
        return self._wait(self._collections.insert(name, rows, producer=producer, sequence=sequence))

    def stage(self, name: str, rows: Rows, *, producer: str, sequence: int) -> str:
        """As `nebuli.Collections.stage`."""
        return self._wait(self._collections.stage(name, rows, producer=producer, sequence=sequence))

    def insert_staged(self, name: str, pieces: Sequence[str], *, producer: str, sequence: int) -> int:
        """As `nebuli.Collections.insert_staged`."""
        return self._wait(self._collections.insert_staged(name, pieces, producer=producer, sequence=sequence))

    def drop_staged(self, name: str, pieces: Sequence[str], *, producer: str) -> None:
        """As `nebuli.Collections.drop_staged`."""
        self._wait(self._collections.drop_staged(name, pieces, producer=producer))

    def next_sequence(self, name: str, producer: str) -> int:
        """As `nebuli.Collections.next_sequence`."""
        return self._wait(self._collections.next_sequence(name, producer))

    def write(
        self,
        name: str,
        updates: Iterable[tuple[int, Rows]],
        lower: int,
        upper: int,
        *,
        rendition: str | None = None,
    ) -> None:
        """As `nebuli.Collections.write`."""
        self._wait(self._collections.write(name, updates, lower, upper, rendition=rendition))

    def write_all(
        self, updates: Mapping[str, Iterable[tuple[int, Rows]]], lower: int, upper: int, *, rendition: str
    ) -> bool:
        """As `nebuli.Collections.write_all`."""
        return self._wait(self._collections.write_all(updates, lower, upper, rendition=rendition))

    def written(self, name: str, rendition: str, at: int, *, deadline_s: float = SNAPSHOT_S) -> None:
        """As `nebuli.Collections.written`."""
        self._wait(self._collections.written(name, rendition, at, deadline_s=deadline_s))

    def snapshot(
        self,
        name: str,
        as_of: int | None = None,
        *,
        weighted: bool = False,
        deadline_s: float = SNAPSHOT_S,
        part: Part | None = None,
        rendition: str | None = None,
    ) -> pa.Table:
        """As `nebuli.Collections.snapshot`."""
        return self._wait(
            self._collections.snapshot(
                name, as_of, weighted=weighted, deadline_s=deadline_s, part=part, rendition=rendition
            )
        )

    def parts(self, name: str, as_of: int) -> int:
        """As `nebuli.Collections.parts`."""
        return self._wait(self._collections.parts(name, as_of))

    def latest(self, name: str) -> int:
        """As `nebuli.Collections.latest`."""
        return self._wait(self._collections.latest(name))

    def subscribe(self, name: str, as_of: int | None = None, *, snapshot: bool = False) -> Generator[Span]:
        """As `nebuli.Collections.subscribe`; closed before the collections are."""
        yield from self._thread.each(self._collections.subscribe(name, as_of, snapshot=snapshot))

    def hold(self, name: str, hold: str, at: int, *, lease_s: float | None = None) -> None:
        """As `nebuli.Collections.hold`."""
        self._wait(self._collections.hold(name, hold, at, lease_s=lease_s))

    def release(self, name: str, hold: str) -> None:
        """As `nebuli.Collections.release`."""
        self._wait(self._collections.release(name, hold))

    def move_on(self) -> None:
        """As `nebuli.Collections.move_on`."""
        self._wait(self._collections.move_on())

    def create_rendition(self, name: str, rendition: str, *, shards: int = 1) -> None:
        """As `nebuli.Collections.create_rendition`."""
        self._wait(self._collections.create_rendition(name, rendition, shards=shards))

    def hand_over(
        self,
        name: str,
        rendition: str,
        *,
        built_from: int | None = None,
        deadline_s: float = SNAPSHOT_S,
    ) -> int:
        """As `nebuli.Collections.hand_over`."""
        return self._wait(
            self._collections.hand_over(name, rendition, built_from=built_from, deadline_s=deadline_s)
        )

    def drop_rendition(self, name: str, rendition: str) -> None:
        """As `nebuli.Collections.drop_rendition`."""
        self._wait(self._collections.drop_rendition(name, rendition))

    def keep_house(self, names: Sequence[str] | None = None) -> None:
        """As `nebuli.Collections.keep_house`."""
        self._wait(self._collections.keep_house(names))


class Views:
    """`nebuli.Views`, from any thread, several at once: the same names, and each call waits."""

    def __init__(self, url: str, *, tls: netchannel.Tls | None = None, secret: str | None = None) -> None:
        self._views = view_client.Views(url, tls=tls, secret=secret)
        self._thread = _Thread("nebuli-views", ViewsClosed)
        self._wait = self._thread.wait

    @property
    def url(self) -> str:
        """Where the views are."""
        return self._views.url

    def __enter__(self) -> Self:
        """As `nebuli.Views`."""
        self._thread.start()
        try:
            self._wait(self._views.__aenter__())
        except BaseException:
            self._thread.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Disconnect; the query runs on."""
        try:
            self._wait(self._views.__aexit__(kind, error, traceback))
        finally:
            self._thread.end()

    def get(self, name: str, keys: Iterable[Any], deadline: float = LOOKUP_S) -> Lookup:
        """As `nebuli.Views.get`."""
        return self._wait(self._views.get(name, keys, deadline))

    def watch(self, name: str, key: Any) -> Generator[pa.RecordBatch]:
        """As `nebuli.Views.watch`; closed before the views are."""
        yield from self._thread.each(self._views.watch(name, key))

    def watch_steps(self, name: str, key: Any) -> Generator[tuple[int, pa.RecordBatch]]:
        """As `nebuli.Views.watch_steps`; closed before the views are."""
        yield from self._thread.each(self._views.watch_steps(name, key))

    def describe(self, name: str, deadline: float = LOOKUP_S) -> ViewDescription:
        """As `nebuli.Views.describe`."""
        return self._wait(self._views.describe(name, deadline))

    def statuses(self, deadline: float = LOOKUP_S) -> list[ViewStatus]:
        """As `nebuli.Views.statuses`."""
        return self._wait(self._views.statuses(deadline))

    def add(self, text: str, file: str | None = None, deadline: float = ADD_S) -> list[str]:
        """As `nebuli.Views.add`."""
        return self._wait(self._views.add(text, file, deadline))
