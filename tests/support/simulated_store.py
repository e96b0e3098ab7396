"""A store in memory, for any number of processes on one loop in virtual time, whose calls fail, are late and unclear.

What is drawn by the seed: how long each call waits for its thread, and its answer for the loop; which processes make
calls of their own in the middle of one; and what goes wrong, for some calls of a process behind each other.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from random import Random
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from nebuli.store import Store
from nebuli.store.collections import clock, handover, inserts, reader_holds
from nebuli.store.errors import Conflict, StoreClosed, StoreFailed, Unclear
from nebuli.store.ordering import Bell, Change, Entry
from nebuli.store.shards import access, ledger, payloads, shard, shard_state
from tests.support.virtual_time import VirtualLoop, VirtualTime

T = TypeVar("T")
_Asked = tuple["asyncio.Future[Any]", Callable[..., Any], tuple[Any, ...]]

_INLINE_BYTES = 1000
"""What is larger is in blobs: a few rows."""
_ENTRIES = 12
"""A shard is compacted as often."""
_TROUBLE, _TROUBLE_AT_APPEND = 0.003, 0.05
"""How likely it is that a call, or one that appends, begins a time of trouble."""
_DELAYS_S = (0.0, 0.0, 0.0002, 0.002, 0.02)


class SimulatedStore:
    """The logs and blobs that all processes see. ``seen`` counts what went wrong."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        self.loop = loop
        self.seed = seed
        self.draw = Random(f"{seed} store")
        self.logs: dict[str, dict[int, bytes]] = {}
        self.blobs: defaultdict[str, dict[str, bytes]] = defaultdict(dict)
        self.version = 0
        self.calm = False
        self.seen: Counter[str] = Counter()
        self.threads: list[Threads] = []
        self._bells: dict[int, Random] = {}
        self.numbers = count(1)

    def opened(self) -> Store:
        """As one more process opens it."""
        return Store(_Ordering(self), _Blobs(self))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """A context within which stores have these threads and this time."""
        time = VirtualTime(self.loop)
        with ExitStack() as stack:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            for module in (clock, handover, reader_holds, shard_state, ledger, shard):
                patch.setattr(module, "time", time)
            patch.setattr(clock, "random", Random(f"{self.seed} clock"))
            patch.setattr(os, "urandom", Random(f"{self.seed} ids").randbytes)
            patch.setattr(access, "StoreThreads", lambda: Threads(self))
            patch.setattr(access, "ENTRIES", _ENTRIES)
            for module in (payloads, inserts):
                patch.setattr(module, "INLINE_BYTES", _INLINE_BYTES)
            yield

    def others(self) -> None:
        """In the middle of a call, others make theirs."""
        while self.draw.random() < 0.3:
            waiting = [each for each in self.threads if each.is_waiting]
            if not waiting:
                return
            self.draw.choice(waiting).run()

    def bell(self) -> _Bell:
        """One more that rings."""
        made = _Bell(self.loop, next(self.numbers))
        self._bells[made.fileno()] = Random(f"{self.seed} bell {made.fileno()}")
        return made

    def ring(self) -> None:
        """All bells ring, each after a while; some do not."""
        for number, draw in self._bells.items():
            if draw.random() < 0.95:
                self.loop.call_later(draw.choice(_DELAYS_S), self.loop.ready.add, number)


class _Bell:
    def __init__(self, loop: VirtualLoop, number: int) -> None:
        self._loop = loop
        self._number = number

    def fileno(self) -> int:
        return self._number

    def silence(self) -> None:
        self._loop.ready.discard(self._number)

    def close(self) -> None:
        self.silence()


class Threads:
    """In the place of `Work`: one thread for calls in their order, and some for blobs."""

    def __init__(self, store: SimulatedStore) -> None:
        self._store = store
        self._loop = store.loop
        self._draw = Random(f"{store.seed} threads {len(store.threads)}")
        store.threads.append(self)
        self._asked: deque[_Asked] = deque()
        self._is_busy = self._closed = self._killed = False
        self._open = 0
        self._ended: asyncio.Future[None] | None = None
        self._told_until = 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether there is a call that can be made now."""
        return bool(self._asked) and not self._is_busy

    async def in_order(self, call: Callable[..., T], *arguments: Any) -> T:
        """As `Work` has it."""
        if self._closed:
            raise StoreClosed
        told = self._loop.create_future()
        self._open += 1
        self._asked.append((told, call, arguments))
        self._loop.call_later(self._delay(), self.run)
        done: T = await told
        return done

    def run(self) -> None:
        """The next call, if it was not made before its time."""
        if not self.is_waiting:
            return
        told, call, arguments = self._asked.popleft()
        self._is_busy = True
        say = self._called(told, call, arguments)
        self._is_busy = False
        # One thread: what came first is told first.
        self._told_until = max(self._told_until + 1e-6, self._loop.now + self._delay())
        self._loop.call_at(self._told_until, say)

    async def on_blobs(self, call: Callable[..., T], *arguments: Any) -> T:
        """As `Work` has it."""
        if self._closed:
            raise StoreClosed
        told = self._loop.create_future()
        self._open += 1

        def run() -> None:
            if self._killed:
                told.cancel()
            say = self._called(told, call, arguments)
            self._loop.call_later(self._delay(), say)

        self._loop.call_later(self._delay(), run)
        done: T = await told
        return done

    async def close(self, last: Callable[[], None]) -> None:
        """As `Work` has it."""
        self._closed = True
        if self._open:
            self._ended = self._loop.create_future()
            await self._ended
        last()

    def kill(self) -> None:
        """The process is killed: nothing of what it has asked for is done any more, and nobody is told."""
        self._closed = self._killed = True
        for told, _, _ in self._asked:
            told.cancel()
        self._open -= len(self._asked)
        self._asked.clear()

    def _delay(self) -> float:
        return self._draw.choice(_DELAYS_S) * self._draw.random()

    def _called(
        self, told: asyncio.Future[Any], call: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> Callable[[], None]:
        came, error = None, None
        if not told.cancelled():
            try:
                came = call(*arguments)
            except BaseException as raised:  # noqa: BLE001 - whoever waits gets it
                error = raised

        def say() -> None:
            self._open -= 1
            if self._ended is not None and not self._open:
                self._ended.set_result(None)
            if told.done():
                return
            if error is None:
                told.set_result(came)
            else:
                told.set_exception(error)

        return say


_CHANGING = {"append", "put", "delete"}


class _Seam:
    """What one process has of the store."""

    def __init__(self, store: SimulatedStore) -> None:
        self._store = store
        self._draw = Random(f"{store.seed} seam {next(store.numbers)}")
        self._trouble = 0

    def _fate(self, call: str) -> str:
        """What becomes of a call: nothing, or that it fails before (``lost``) or behind (``unclear``) it."""
        self._store.others()
        if self._store.calm:
            return ""
        if not self._trouble:
            if self._draw.random() >= (_TROUBLE_AT_APPEND if call == "append" else _TROUBLE):
                return ""
            self._trouble = self._draw.choice([1, 2, 8, 50])
        self._trouble -= 1
        fate = self._draw.choice(["lost", "unclear"]) if call in _CHANGING else "lost"
        self._store.seen[f"{call} {fate}"] += 1
        return fate

    def _fail(self, call: str, fate: str, *, fails_at: str = "lost") -> None:
        if fate == fails_at:
            raise StoreFailed("the store", call, "it has its troubles")


class _Ordering(_Seam):
    """As `Ordering` has it."""

    _version = -1

    def open(self) -> None:
        pass

    def hurry(self) -> None:
        pass

    def close(self) -> None:
        pass

    def heads(self, keys: Sequence[str]) -> dict[str, int]:
        self._fail("heads", self._fate("heads"))
        return {key: self._head(key) for key in keys}

    def scan(self, key: str, after: int) -> list[Entry]:
        self._fail("scan", self._fate("scan"))
        log = self._store.logs.get(key, {})
        return [Entry(sequence, data) for sequence, data in log.items() if sequence > after]

    def append(self, changes: Sequence[Change]) -> None:
        fate = self._fate("append")
        if fate == "lost":
            if self._draw.random() < 0.5:
                raise Unclear("appending", "the question was lost")
            raise StoreFailed("the store", "appending", "it has its troubles")
        found = {each.key: self._head(each.key) for each in changes}
        if any(found[each.key] != each.expected for each in changes):
            raise Conflict(found)
        for each in changes:
            self._store.logs.setdefault(each.key, {})[each.expected + 1] = each.data
        self._store.version += 1
        self._store.ring()
        if fate == "unclear":
            raise Unclear("appending", "the answer was lost")

    def truncate(self, key: str, below: int) -> None:
        self._fail("truncate", self._fate("truncate"))
        log = self._store.logs.get(key, {})
        for sequence in [each for each in log if each < min(below, self._head(key))]:
            del log[sequence]

    def _head(self, key: str) -> int:
        return next(reversed(self._store.logs.get(key, {0: b""})))

    def keys(self, prefix: str) -> list[str]:
        return sorted(key for key in self._store.logs if key.startswith(prefix))

    def unchanged(self) -> bool:
        before, self._version = self._version, self._store.version
        return before == self._version

    def bell(self) -> Bell:
        return self._store.bell()

    def lock(self, name: str) -> Any:
        raise NotImplementedError


class _Blobs(_Seam):
    """As `Blobs` has it."""

    def put(self, folder: str, name: str, buffers: Sequence[Any]) -> None:
        fate = self._fate("put")
        self._fail("put", fate)
        self._store.blobs[folder][name] = b"".join(bytes(each) for each in buffers)
        self._fail("put", fate, fails_at="unclear")

    def get(self, folder: str, name: str) -> pa.Buffer:
        self._fail("get", self._fate("get"))
        try:
            return pa.py_buffer(self._store.blobs[folder][name])
        except KeyError:
            raise FileNotFoundError(name) from None

    def delete(self, folder: str, names: Sequence[str]) -> None:
        fate = self._fate("delete")
        self._fail("delete", fate)
        for name in names:
            self._store.blobs[folder].pop(name, None)
        self._fail("delete", fate, fails_at="unclear")

    def names(self, folder: str) -> list[str]:
        self._fail("names", self._fate("names"))
        return sorted(self._store.blobs[folder])
