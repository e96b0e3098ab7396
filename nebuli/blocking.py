"""The clients of `nebuli` for programs without an event loop: each call waits for its result."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from nebuli import circuits
from nebuli.circuits.circuit_client import DEADLINE_S
from nebuli.store.collections import collections
from nebuli.store.collections.clock import TICK_S, now_ms
from nebuli.views import view_client
from nebuli.views.errors import ViewsClosed

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType
    from typing import Self

    import pyarrow as pa

    import netchannel
    from nebuli.control.local_queries import Given, TopologyFile
    from nebuli.store.store import Store
    from nebuli.store.store_url import StoreUrl

__all__ = ["Circuit", "Collections", "Views", "collect", "run"]

_ENDS_WITHIN_S = 5.0
"""Seconds that tasks have to end once they are cancelled."""

_Result = TypeVar("_Result")
_Given = ParamSpec("_Given")
_Client = TypeVar("_Client", bound="AbstractAsyncContextManager[object]")


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
        asyncio.run_coroutine_threadsafe(_cancel_the_others(), self._loop).result()
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
        """Yield its items, one after the other; it is closed with this."""
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


async def _cancel_the_others() -> None:
    """End all other tasks of the loop, such as those of calls that gRPC has cancelled, as `asyncio.run` does."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=_ENDS_WITHIN_S)


class _Blocking(Generic[_Client]):
    """A client for coroutines, on a thread that has a loop."""

    def __init__(self, client: _Client, thread: _Thread) -> None:
        self._client = client
        self._thread = thread

    def __enter__(self) -> Self:
        """As the class of the same name in `nebuli`."""
        self._thread.start()
        try:
            self._thread.wait(self._client.__aenter__())
        except BaseException:
            self._thread.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """As the class of the same name in `nebuli`."""
        try:
            self._thread.wait(self._client.__aexit__(kind, error, traceback))
        finally:
            self._thread.end()


def _waiting(
    method: Callable[Concatenate[_Client, _Given], Coroutine[Any, Any, _Result]],
) -> Callable[Concatenate[_Blocking[_Client], _Given], _Result]:
    """The same method of a blocking client: it waits for the result."""

    @functools.wraps(method)
    def call(self: _Blocking[_Client], /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        return self._thread.wait(method(self._client, *args, **kwargs))

    return call


def _iterating(
    method: Callable[Concatenate[_Client, _Given], AsyncGenerator[_Result]],
) -> Callable[Concatenate[_Blocking[_Client], _Given], Generator[_Result]]:
    """The same method of a blocking client: it waits for each result, and is closed before its client is."""

    @functools.wraps(method)
    def call(self: _Blocking[_Client], /, *args: _Given.args, **kwargs: _Given.kwargs) -> Generator[_Result]:
        yield from self._thread.each(method(self._client, *args, **kwargs))

    return call


class Circuit(_Blocking[circuits.Circuit]):
    """A `nebuli.Circuit` for any number of threads: the methods have the same names, and wait for their results."""

    def __init__(
        self,
        address: str,
        *,
        secret: str | None = None,
        tls: netchannel.Tls | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        client = circuits.Circuit(address, secret=secret, tls=tls, deadline_s=deadline_s)
        super().__init__(client, _Thread("nebuli-circuit"))

    def _repr_html_(self) -> str:
        """As `nebuli.Circuit` is shown in a notebook."""
        return self._client._repr_html_()

    @property
    def address(self) -> str:
        """The address of the circuit."""
        return self._client.address

    @property
    def inputs(self) -> Mapping[str, pa.Schema]:
        """The inputs that accept pushed rows, each with the schema of its rows."""
        return self._client.inputs

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """The outputs that can be read, each with the schema of its rows."""
        return self._client.outputs

    push = _waiting(circuits.Circuit.push)
    stage = _waiting(circuits.Circuit.stage)
    push_staged = _waiting(circuits.Circuit.push_staged)
    drop_staged = _waiting(circuits.Circuit.drop_staged)
    next_sequence = _waiting(circuits.Circuit.next_sequence)
    output = _iterating(circuits.Circuit.output)
    offsets = _waiting(circuits.Circuit.offsets)
    query = _waiting(circuits.Circuit.query)
    checkpoint = _waiting(circuits.Circuit.checkpoint)
    pause = _waiting(circuits.Circuit.pause)
    start = _waiting(circuits.Circuit.start)
    scale = _waiting(circuits.Circuit.scale)
    shut_down = _waiting(circuits.Circuit.shut_down)
    status = _waiting(circuits.Circuit.status)


class Collections(_Blocking[collections.Collections]):
    """A `nebuli.Collections` for any number of threads: the methods have the same names, and wait for their results."""

    def __init__(
        self,
        url: str | os.PathLike[str] | StoreUrl | Store,
        *,
        now: Callable[[], int] = now_ms,
        tick_s: float = TICK_S,
    ) -> None:
        super().__init__(collections.Collections(url, now=now, tick_s=tick_s), _Thread("nebuli-collections"))

    create = _waiting(collections.Collections.create)
    drop = _waiting(collections.Collections.drop)
    list = _waiting(collections.Collections.list)
    describe = _waiting(collections.Collections.describe)
    insert = _waiting(collections.Collections.insert)
    stage = _waiting(collections.Collections.stage)
    insert_staged = _waiting(collections.Collections.insert_staged)
    drop_staged = _waiting(collections.Collections.drop_staged)
    next_sequence = _waiting(collections.Collections.next_sequence)
    write = _waiting(collections.Collections.write)
    write_all = _waiting(collections.Collections.write_all)
    written = _waiting(collections.Collections.written)
    snapshot = _waiting(collections.Collections.snapshot)
    parts = _waiting(collections.Collections.parts)
    latest = _waiting(collections.Collections.latest)
    subscribe = _iterating(collections.Collections.subscribe)
    hold = _waiting(collections.Collections.hold)
    release = _waiting(collections.Collections.release)
    move_on = _waiting(collections.Collections.move_on)
    new_rendition = _waiting(collections.Collections.new_rendition)
    handover = _waiting(collections.Collections.handover)
    drop_rendition = _waiting(collections.Collections.drop_rendition)
    keep_house = _waiting(collections.Collections.keep_house)


class Views(_Blocking[view_client.Views]):
    """A `nebuli.Views` for any number of threads: the methods have the same names, and wait for their results."""

    def __init__(self, url: str, *, tls: netchannel.Tls | None = None, secret: str | None = None) -> None:
        super().__init__(view_client.Views(url, tls=tls, secret=secret), _Thread("nebuli-views", ViewsClosed))

    @property
    def url(self) -> str:
        """The address of the views."""
        return self._client.url

    get = _waiting(view_client.Views.get)
    watch = _iterating(view_client.Views.watch)
    watch_steps = _iterating(view_client.Views.watch_steps)
    describe = _waiting(view_client.Views.describe)
    statuses = _waiting(view_client.Views.statuses)
    add = _waiting(view_client.Views.add)


def collect(
    topology: TopologyFile,
    query: Given,
    *,
    state: str | os.PathLike[str] | None = None,
    members: int | None = None,
) -> pa.Table:
    """Run a query and return its rows, as `nebuli.collect` does; from any thread, which waits for them."""
    from nebuli.control import local_queries  # only here: clients need none of it

    return _once(local_queries.collect(topology, query, state=state, members=members))


def run(topology: TopologyFile, query: Given) -> None:
    """Run a query with a sink, as `nebuli.run` does; from any thread, which waits for the end of the query."""
    from nebuli.control import local_queries  # as above

    _once(local_queries.run(topology, query))


def _once(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine on a loop of its own, also where the thread has a running one, as in a notebook."""
    thread = _Thread("nebuli-query")
    thread.start()
    try:
        return thread.wait(work)
    finally:
        thread.end()
