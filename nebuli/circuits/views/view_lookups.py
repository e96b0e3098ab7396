"""`ViewLookups`: keys of a circuit's views, all of a lookup at one step of all its members.

Each key's rows are at the one member selected by its hash. Members are asked at the same time, each for the keys that
it has, and report the step at which they have read: mostly the same one, as each holds the state before its last two.
Those that have read an earlier one than the last of them are asked once more, for that: they have held the view
meanwhile. Steps continue.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nebuli.circuits.pin_releases import PinReleases
from nebuli.dataflow import SteppedCircuit, hashing
from nebuli.dataflow.partial.key_sets import batch_of as as_keys
from nebuli.dataflow.partial.key_sets import distinct
from nebuli.dataflow.steps.exchange_parts import owners_of
from nebuli.rpc.status import ViewStatus
from nebuli.steps.coordinator.call_connection import TooManyPieces, Unpinned
from nebuli.store.errors import StorageError
from nebuli.views.errors import ViewFailed
from nebuli.views.shown_rows import expanded, found_bytes, version_of
from nebuli.views.view_calls import (
    NEVER,
    Away,
    Changed,
    Describe,
    Description,
    Get,
    Refused,
    Watch,
    batch_of,
    bytes_of,
    question_of,
)
from placement.steps.whereabouts import divisions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine, Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from nebuli.steps.coordinator.circuit_run import AnyRun
    from nebuli.steps.member.calls.call_messages import LookedUp
    from placement.plan import ViewOperator
    from placement.steps.whereabouts import Division

_ATTEMPT_S = 5.0
"""A process that has not answered for so long may no longer be a member: the current members are asked."""
_SOON_S, _AGAIN_S = 0.005, 0.1
_LOOK_S = 0.02
"""How often to check for a step that is waited for."""
_FIGURES_S, _MEASURE_S = 1.0, 5.0
"""How long members may take to report the size of their views, and how often they are asked."""
_LEAST_S, _LONGEST_S = 0.5, 3600.0
"""Keys that are present are answered even if no time is left: the wait is longer than that."""


class _NotInTime(Exception):
    """Members have not answered; the message names them."""


@dataclass(slots=True)
class _View:
    operator: ViewOperator
    schema: pa.Schema
    """The schema of its rows, the weight last."""
    description: Description
    known: int
    """The number of known keys in the description."""
    lookups: int = 0
    bytes: int = 0

    @property
    def name(self) -> str:
        return self.operator.name or self.operator.id

    @property
    def key_schema(self) -> pa.Schema:
        return pa.schema([self.schema.field(column) for column in self.operator.key])


@dataclass(slots=True)
class _Part:
    """The keys of a lookup that a member has, as they are sent, and which of all they are."""

    member: int
    keys: bytes
    places: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of keys, in the order of the keys, and how many each has, before a step."""

    step: int
    rows: pa.RecordBatch
    counts: NDArray[np.int32]


class ViewLookups:
    """Answers what is asked of views, as fragments of queries that run free do, on the loop of the coordinator.

    ``query`` is what it is called there.
    """

    def __init__(self, run: AnyRun, query: str) -> None:
        self._run = run
        self._query = query
        circuit = SteppedCircuit(run.plan, 0)
        views = [self._view(each, circuit.tables[each.id]) for each in run.plan.views]
        self._views = {each.name: each for each in views}
        self._divisions: tuple[int, Mapping[str, Division]] = (0, {})
        self._releases = PinReleases()
        self._measuring: asyncio.Task[None] | None = None
        self._next_measure = 0.0

    def _view(self, operator: ViewOperator, schema: pa.Schema) -> _View:
        shown = schema.remove(len(schema) - 1).serialize().to_pybytes()
        description = Description(
            self._query, operator.id, shown, operator.key, is_partial=False, in_steps=True
        )
        return _View(operator, schema, description, description.known)

    @property
    def names(self) -> list[str]:
        """Return the names by which views are read."""
        return [*self._views]

    async def close(self) -> None:
        """Ask members nothing any more."""
        await self._releases.close()
        if self._measuring is not None:
            self._measuring.cancel()
            await asyncio.gather(self._measuring, return_exceptions=True)

    # -- how they are

    @property
    def statuses(self) -> tuple[ViewStatus, ...]:
        """All of them, with the memory that they took a moment ago: members are asked for it whenever this is."""
        now = asyncio.get_running_loop().time()
        if now >= self._next_measure and (self._measuring is None or self._measuring.done()):
            self._next_measure = now + _MEASURE_S
            self._measuring = asyncio.create_task(self._measure())
        return tuple(map(_status, self._views.values()))

    async def measured(self) -> tuple[ViewStatus, ...]:
        """Return all of them, with the memory that they take at those members that report it in time."""
        await self._measure()
        return tuple(map(_status, self._views.values()))

    async def _measure(self) -> None:
        asking = [asyncio.create_task(line.figures()) for line in self._run.calls]
        if asking:
            await asyncio.wait(asking, timeout=_FIGURES_S)
        for each in asking:
            each.cancel()
        found = await asyncio.gather(*asking, return_exceptions=True)
        figures = [each["operators"] for each in found if not isinstance(each, BaseException)]
        if len(figures) < len(asking):
            return  # what it was counts for the others, too
        for view in self._views.values():
            view.bytes = sum(int(each[view.operator.id]["state_bytes"]) for each in figures)

    # -- what is asked

    def answer(self, name: str, body: bytes) -> bytes | Awaitable[bytes]:
        """The answer to a call about a view. Raises ViewFailed, if the question is malformed."""
        view = self._views[name]
        match question_of(body):
            case Describe():
                return bytes_of(view.description)
            case Get(known=known) | Watch(known=known) if known != view.known:
                return bytes_of(view.description)
            case Get(keys, within_s, again):
                return self._get(view, keys, within_s, again=again)
            case Watch(keys, version, within_s):
                return self._watch(view, keys, version, within_s)

    async def _get(self, view: _View, data: bytes, within_s: float, *, again: bool) -> bytes:
        keys = _keys(view, data)
        if distinct(keys).num_rows < keys.num_rows:
            return bytes_of(Refused(f"{keys.num_rows} keys, some of which are equal: give each key once"))
        try:
            found = await self._look_up(view, keys, _until(within_s))
        except _NotInTime as error:
            return bytes_of(Away(str(error)))
        if not again:
            view.lookups += keys.num_rows
        return found_bytes(found.rows, found.counts, np.ones(keys.num_rows, dtype=np.bool_), found.step)

    async def _watch(self, view: _View, data: bytes, version: int, within_s: float) -> bytes:
        keys = _keys(view, data)
        if keys.num_rows != 1:
            return bytes_of(Refused(f"expected one key to watch, got {keys.num_rows}"))
        until = _until(within_s)
        view.lookups += version == NEVER
        try:
            while True:
                found = await self._look_up(view, keys, until)
                now = version_of(found.rows)
                if now != version:
                    return bytes_of(Changed(now, expanded(found.rows).serialize().to_pybytes(), found.step))
                async with asyncio.timeout_at(until):
                    while self._run.coordinator.complete <= found.step:  # noqa: ASYNC110 - of whichever there is
                        await asyncio.sleep(_LOOK_S)
        except (_NotInTime, TimeoutError):
            return bytes_of(Changed(version, b""))

    # -- lookups

    async def _look_up(self, view: _View, keys: pa.RecordBatch, until: float) -> _Rows:
        """Return the rows of keys at one step of all members, in a new attempt if a member was restarted or replaced.

        Raises _NotInTime, ViewFailed.
        """
        loop = asyncio.get_running_loop()
        while True:
            asked: set[int] = set()
            failed = ""
            try:
                async with asyncio.timeout_at(min(until, loop.time() + _ATTEMPT_S)):
                    return await self._at_one_step(view, keys, until, asked)
            except (Unpinned, TimeoutError):
                await asyncio.sleep(_SOON_S)
            except TooManyPieces as error:
                raise ViewFailed(f"{error}: request fewer keys at once") from None
            except StorageError as error:
                failed = f" ({error})"
                await asyncio.sleep(min(_AGAIN_S, max(until - loop.time(), 0.0)))
            if loop.time() >= until:
                raise _NotInTime(f"{self._waited_for(asked)}{failed}; ask again, or allow more time")

    def _waited_for(self, asked: set[int]) -> str:
        """Return the members that have not answered, and the circuit's state."""
        members = self._run.plan.members
        coordinator = self._run.coordinator
        named = f"member{'s' * (len(asked) > 1)} {', '.join(map(str, sorted(asked)))}"
        what = (
            f"no answer from {named} of {members}" if asked else f"not all {members} members were at one step"
        )
        return (
            f"{what}; members may be restarting: the circuit is {coordinator.phase.value}, in "
            f"epoch {coordinator.epoch}"
        )

    async def _at_one_step(self, view: _View, keys: pa.RecordBatch, until: float, asked: set[int]) -> _Rows:
        """One attempt; ``asked`` has those that have not answered. Raises Unpinned, StorageError, TooManyPieces."""
        lines = [*self._run.calls]
        parts = self._parts(view, keys, len(lines))
        seen = self._run.calls
        done = max(self._run.coordinator.complete, seen.seen)
        name = secrets.token_hex(8) if len(parts) > 1 else ""  # one member has one step
        within_s = max(until - asyncio.get_running_loop().time(), _AGAIN_S)

        async def told(part: _Part, step: int | None) -> LookedUp:
            asked.add(part.member)
            line, id_ = lines[part.member], view.operator.id
            answer: LookedUp
            if step is None:
                answer = await line.look_up(id_, part.keys, name, done, within_s)
            else:
                answer = await line.look_up_pinned(id_, part.keys, name, step)
            asked.discard(part.member)
            return answer

        try:
            found = await _all([told(part, None) for part in parts])
            step = max(each.step for each in found)
            behind = [index for index, each in enumerate(found) if each.step < step]
            again = await _all([told(parts[index], step) for index in behind])
        finally:
            if name:
                self._releases.release(name, [lines[part.member] for part in parts])
        for index, each in zip(behind, again, strict=True):
            found[index] = each
        if len({each.epoch for each in found}) > 1:
            raise Unpinned
        seen.has_seen(step)
        return _put_together(step, parts, found, view.schema, keys.num_rows)

    def _parts(self, view: _View, keys: pa.RecordBatch, members: int) -> list[_Part]:
        """The keys, by the member that has each."""
        plan = self._run.plan
        if members != plan.members:
            raise Unpinned  # others take their place just now
        if self._divisions[0] != members:
            self._divisions = (members, divisions(plan))
        division = self._divisions[1][view.operator.id]
        if isinstance(division, int):
            return [_Part(division, bytes(keys.serialize()), np.arange(keys.num_rows))]
        hashes = hashing.hash_rows([keys.column(column) for column in division], keys.num_rows)
        owners = owners_of(hashes, members)
        parts = []
        for member in np.unique(owners).tolist():
            places = np.flatnonzero(owners == member)
            parts.append(_Part(member, bytes(keys.take(pa.array(places)).serialize()), places))
        return parts


async def _all(asking: Sequence[Coroutine[Any, Any, LookedUp]]) -> list[LookedUp]:
    """All answers, or the first error: then the others are not waited for."""
    tasks = [asyncio.create_task(each) for each in asking]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _put_together(
    step: int, parts: Sequence[_Part], found: Sequence[LookedUp], schema: pa.Schema, keys: int
) -> _Rows:
    batches = [pa.ipc.read_record_batch(pa.py_buffer(each.rows), schema) for each in found]
    counts = [np.frombuffer(each.counts, dtype="<i4") for each in found]
    if len(parts) == 1:
        return _Rows(step, batches[0], counts[0])
    all_counts = np.zeros(keys, dtype=np.int32)
    for part, of_part in zip(parts, counts, strict=True):
        all_counts[part.places] = of_part
    owners = np.concatenate([np.repeat(part.places, each) for part, each in zip(parts, counts, strict=True)])
    rows = pa.concat_batches(batches).take(pa.array(np.argsort(owners, kind="stable")))
    return _Rows(step, rows, all_counts)


def _keys(view: _View, data: bytes) -> pa.RecordBatch:
    """Keys that were asked for, under the names of their columns. Raises ViewFailed."""
    columns = as_keys(batch_of(data, view.key_schema).columns).columns
    return pa.record_batch(columns, schema=view.key_schema)


def _until(within_s: float) -> float:
    return asyncio.get_running_loop().time() + min(max(within_s, _LEAST_S), _LONGEST_S)


def _status(view: _View) -> ViewStatus:
    """Full, it has all keys: each lookup is a hit."""
    return ViewStatus(
        name=view.name,
        key=view.operator.key,
        partial=False,
        bytes=view.bytes,
        lookups=view.lookups,
        hits=view.lookups,
    )
