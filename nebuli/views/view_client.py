"""`Views`: a program's way to the views of a node, whichever of its processes have them."""

from __future__ import annotations

import asyncio
import math
from array import array
from contextlib import aclosing
from datetime import datetime, time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import netchannel
from nebuli.python_values import values_of
from nebuli.views.errors import (
    LookupTimedOut,
    RunsFree,
    UnknownView,
    ViewDenied,
    ViewError,
    ViewFailed,
    ViewsClosed,
    ViewUnreachable,
    WrongKey,
    WrongView,
)
from nebuli.views.values import Lookup, ViewDescription
from nebuli.views.view_calls import (
    ADDING,
    FREE,
    LISTING,
    NEVER,
    Away,
    Changed,
    Describe,
    Description,
    Found,
    Get,
    Refused,
    Watch,
    added_of,
    adding_bytes,
    answer_of,
    batch_of,
    bytes_of,
    listed_of,
    service_of,
)
from netchannel.resumable import Resumable
from netchannel.values import is_channel_id

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence
    from types import TracebackType
    from typing import Self

    from nebuli.rpc.status import ViewStatus
    from nebuli.views.view_calls import Answer, Question

    Key = tuple[Any, ...]

__all__ = ["Views"]

DEADLINE_S = 1.0
ADD_S = 120.0
"""A full view gets all rows so far before it is there."""
_ANSWER_S = 5.0
"""A process that is there answers in this time."""
_GRACE_S = 1.0
_SHOWN = 60
"""Characters of a name that cannot be one."""
"""How long an answer that keys were not there in time may be in transit."""
_WATCH_S = 30.0
"""How long a view keeps a question for news; then it is asked again."""
_AGAIN_S = 0.1
"""How long a watch waits for a view that has reported that it is away."""
_NAN = math.nan
_CODES = {pa.int8().id: "b", pa.int16().id: "h", pa.int32().id: "i", pa.int64().id: "q"}
"""Whole numbers, as `array` calls them."""
_NO_VALUES = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""Errors of Arrow for values that do not match a type."""
_MOST_KEYS = 4096
"""How many keys are requested at once; further ones are requested after them."""


class Views:
    """The views of a node, at ``HOST:PORT``; an async context manager.

    ``tls`` and ``secret`` are those of the node's topology. Lookups that are made at the same time are sent as one.
    """

    def __init__(self, url: str, *, tls: netchannel.Tls | None = None, secret: str | None = None) -> None:
        if not isinstance(url, str):
            raise TypeError(f"url is {url!r}: expected a string, as in Views('127.0.0.1:7700')")
        self.url = url
        self._caller = netchannel.Caller(url, tls=tls, secret=secret)
        self._views: dict[str, _View] = {}
        self._replaced: list[_View] = []
        """Views whose queries have made room for others, from which an answer may still be awaited."""

    async def __aenter__(self) -> Self:
        await self._caller.__aenter__()
        await asyncio.to_thread(
            pa.array, [0]
        )  # which imports pandas, the first time, where that is installed
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._caller.close()
        for view in (*self._replaced, *self._views.values()):
            await view.close()

    async def get(self, name: str, keys: Iterable[Any], deadline: float = DEADLINE_S) -> Lookup:
        """Return the rows of these keys of a view, and which keys were hits; within ``deadline`` seconds.

        A key is a value, or a tuple with a value for each column of the view's key. Missing keys are requested from the
        origin of the rows, and are in the view afterwards. A known key without rows is not missing. If the query runs
        in steps, all keys are read at the same step.

        Raises:
            WrongKey: one of the keys does not match the view's.
            UnknownView: no process at the node has the view.
            LookupTimedOut: some keys have not arrived in time; the error has the rows of the others. In steps it has no
                rows, and names the members that have not answered.
            ViewUnreachable, ViewDenied, ViewFailed: there was no answer.
        """
        _check(deadline)
        if isinstance(keys, str | bytes):
            raise TypeError(f"keys is a string ({keys!r:.50}): expected a list of keys, as in [{keys!r:.50}]")
        loop = asyncio.get_running_loop()
        until, listed = loop.time() + deadline, [*keys]
        while True:
            view = self._view(name)
            if not view.known:
                await view.describe(deadline)
            try:
                return await view.get(listed, until, deadline)
            except WrongKey:
                if not await view.is_other(deadline):
                    raise
            except _OtherView as error:
                if loop.time() >= until:
                    raise ViewFailed(f"{error}, and the deadline has passed: ask again") from error
            self._replace(name, view)

    def watch(self, name: str, key: Any) -> AsyncGenerator[pa.RecordBatch]:
        """Yield the rows of one key of a view, now and after each change; of quick changes, only the last.

        If the view does not answer, the iterator waits for it. If the view then has other columns, so have the rows. A
        cancelled call of the iterator takes no rows: the next call returns them. Raises WrongKey, ViewDenied,
        ViewFailed; UnknownView if the view does not exist at the start.
        """
        return Resumable(self._watch(name, key))

    async def _watch(self, name: str, key: Any) -> AsyncGenerator[Sequence[pa.RecordBatch], None]:
        async with aclosing(self._watched(name, key)) as changes:
            async for _, rows in changes:
                yield [rows]

    def watch_steps(self, name: str, key: Any) -> AsyncGenerator[tuple[int, pa.RecordBatch]]:
        """As `watch`, for a query in steps: yield the rows together with the step at which they were read.

        Raises as `watch`; RunsFree if the query does not run in steps.
        """
        return Resumable(self._watch_steps(name, key))

    async def _watch_steps(
        self, name: str, key: Any
    ) -> AsyncGenerator[Sequence[tuple[int, pa.RecordBatch]], None]:
        async with aclosing(self._watched(name, key)) as changes:
            async for step, rows in changes:
                if step == FREE:
                    raise RunsFree(
                        f"view {name!r} at {self.url} belongs to a free query, which has no steps: watch its "
                        "rows with 'watch', or run its query in steps (nebuli run --stepped --state DIR)"
                    )
                yield [(step, rows)]

    async def _watched(self, name: str, key: Any) -> AsyncGenerator[tuple[int, pa.RecordBatch]]:
        await self._view(name).describe(DEADLINE_S)
        version = NEVER
        while True:
            view = self._view(name)
            try:
                await view.describe(DEADLINE_S)
                changed = await view.ask(Watch(view.keys_of([key]), version, _WATCH_S, view.known), _WATCH_S)
            except (UnknownView, ViewUnreachable):
                await asyncio.sleep(_AGAIN_S)
                continue
            except WrongKey:
                if not await view.is_other(DEADLINE_S):
                    raise
            except _OtherView:
                pass
            else:
                assert isinstance(changed, Changed)
                if changed.version != version and changed.rows:
                    version = changed.version
                    yield changed.step, batch_of(changed.rows, view.schema)
                continue
            self._replace(name, view)
            version = NEVER

    async def describe(self, name: str, deadline: float = DEADLINE_S) -> ViewDescription:
        """Return the description of a view. Raises UnknownView, ViewUnreachable, ViewDenied, ViewFailed."""
        _check(deadline)
        view = self._view(name)
        description = await view.describe(deadline)
        return ViewDescription(
            view.schema, description.key, description.query, description.is_partial, description.in_steps
        )

    async def statuses(self, deadline: float = DEADLINE_S) -> list[ViewStatus]:
        """Return all views of the node, with their counters. Raises ViewUnreachable, ViewDenied, ViewFailed."""
        _check(deadline)
        try:
            return listed_of(await self._caller.call(LISTING, b"", deadline_s=deadline))
        except netchannel.CallTimedOut as error:
            raise ViewUnreachable(
                f"no process with views answers at {self.url} within {deadline:g} s: 'nebuli run' prints the address "
                f"of its views"
            ) from error
        except netchannel.NetChannelError as error:
            raise _meant(f"the node at {self.url}", error) from error

    async def add(self, text: str, file: str | None = None, deadline: float = ADD_S) -> list[str]:
        """Add views to the query that 'nebuli run' serves here; return their names. No effect if it has them already.

        ``text`` is JSON, as in a query file: operators that read operators of the query, or each other, and lead to
        views. ``file`` is the file name in messages about mistakes.

        Raises:
            WrongView: the query cannot have these views.
            ViewUnreachable, ViewDenied, ViewFailed: it is not known whether they were added; try again.
        """
        _check(deadline)
        if not isinstance(text, str):
            raise TypeError(f"text is {type(text).__name__}: expected JSON, as in a query's file")
        await self.statuses(min(deadline, _ANSWER_S))  # this wait is shorter than rows may take
        try:
            asked = adding_bytes(text, file)
        except UnicodeEncodeError as error:
            raise WrongView(f"the views to add cannot be encoded: {error}") from error
        try:
            answer = await self._caller.call(ADDING, asked, deadline_s=deadline)
        except netchannel.CallTimedOut as error:
            raise ViewUnreachable(
                f"no process that can add views has answered at {self.url} within {deadline:g} s: 'nebuli run' "
                f"prints the address of its views; for a query on workers, use 'nebuli view add --query ID'"
            ) from error
        except netchannel.NetChannelError as error:
            raise _meant(f"the query at {self.url}", error) from error
        names, why, again = added_of(answer)
        if again:
            raise ViewFailed(why)
        if why:
            raise WrongView(why)
        return names

    def _view(self, name: str) -> _View:
        if name not in self._views:
            self._views[name] = _View(self.url, self._caller, name)
        return self._views[name]

    def _replace(self, name: str, view: _View) -> None:
        """Get the view's description again, if that has not been done by another task."""
        if self._views.get(name) is view:
            self._replaced.append(self._views.pop(name))


class _Asked:
    """A lookup until it is answered; ``until`` is a time of the loop.

    ``given`` are its keys as tuples, ``keys`` the same as the view knows them, once they are to go out; ``found`` has
    those that have come, unless all came at once: then the lookup is ``whole``.
    """

    __slots__ = ("answer", "deadline", "found", "given", "keys", "step", "until", "whole", "why")

    def __init__(self, given: list[Key], until: float, deadline: float) -> None:
        self.given = given
        self.keys: list[Key] = []
        self.until = until
        self.deadline = deadline
        self.found: dict[Key, tuple[pa.RecordBatch, bool]] = {}
        self.whole: Lookup | None = None
        self.step: int | None = None
        self.why = "they are still being filled: ask again, or allow more time"
        """The explanation for keys that have not come."""
        self.answer: asyncio.Future[Lookup] | None = None

    @property
    def missing(self) -> list[Key]:
        return [] if self.whole is not None else [key for key in self.keys if key not in self.found]

    def lookup(self, schema: pa.Schema) -> Lookup:
        """All that has come."""
        if self.whole is not None:
            return self.whole
        if len(self.found) == len(self.keys) == 1:
            rows, hit = self.found[self.keys[0]]
            return Lookup(rows, [hit], self.step)
        parts = [self.found[key][0] for key in dict.fromkeys(self.keys) if key in self.found]
        rows = parts[0] if len(parts) == 1 else pa.concat_batches([_nothing(schema), *parts])
        return Lookup(rows, [key in self.found and self.found[key][1] for key in self.keys], self.step)


class _OtherView(Exception):
    """Another query has the view now, with another key or with other columns."""


class _View:
    """A view as it is described, with the lookups that are to go out."""

    def __init__(self, url: str, caller: netchannel.Caller, name: str) -> None:
        self._url = url
        self._caller = caller
        self._name = name
        self._service = service_of(name)
        self._has_service = is_channel_id(self._service)
        self._description: Description | None = None
        self.schema = pa.schema([])
        self._key_schema = pa.schema([])
        self.known = 0
        self._turn: asyncio.Handle | None = None
        self._gathered: list[_Asked] = []
        self._waiting: set[_Asked] = set()
        self._calls: set[asyncio.Task[None]] = set()

    async def describe(self, deadline: float) -> Description:
        if self._description is None:
            found = await self.ask(Describe(), deadline)
            assert isinstance(found, Description)
            try:
                self.schema = pa.ipc.read_schema(pa.py_buffer(found.schema))
                self._key_schema = pa.schema([self.schema.field(name) for name in found.key])
            except (pa.ArrowException, KeyError, OSError) as error:
                raise ViewFailed(f"view {self._name!r} at {self._url} has no schema: {error}") from error
            self._description, self.known = found, found.known
        return self._description

    async def is_other(self, deadline: float) -> bool:
        """True if it differs from its description: then an invalid key of the one may be valid for the other."""
        try:
            found = await self.ask(Describe(), deadline)
        except ViewError:
            return False
        return isinstance(found, Description) and found.known != self.known

    async def get(self, keys: list[Any], until: float, deadline: float) -> Lookup:
        """Look keys up: the first time in a turn of the loop at once, from then on with all that follow in it."""
        loop = asyncio.get_running_loop()
        asked = _Asked([self._tuple(key) for key in keys], until, deadline)
        if self._turn is None:
            self._turn = loop.call_soon(self._end_turn)
            await self._answer([asked])
            return self._lookup_of(asked)
        asked.answer = loop.create_future()
        self._gathered.append(asked)
        self._waiting.add(asked)
        try:
            return await asked.answer
        finally:
            self._waiting.discard(asked)

    def keys_of(self, keys: Sequence[Any]) -> bytes:
        """Keys as they are sent. Raises WrongKey."""
        return _serialized(self._batch_of(self._columns_of([self._tuple(key) for key in keys])))

    def _batch_of(self, columns: list[pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(columns, schema=self._key_schema)

    def _columns_of(self, tuples: Sequence[Key]) -> list[pa.Array]:
        columns = []
        for index, column in enumerate(self._key_schema):
            values = [key[index] for key in tuples]
            try:
                columns.append(_column(values, column.type))
            except _NO_VALUES as error:
                place = next((place for place, value in enumerate(values) if not _is(value, column.type)), 0)
                which = (
                    f" in key {place + 1} of {len(tuples)}, {str(tuples[place])[:100]}"
                    if len(tuples) > 1
                    else ""
                )
                raise WrongKey(
                    f"view {self._name!r} has a key of {_names(self._key_schema)}, and {values[place]!r:.100} is "
                    f"not a valid {column.name}{which}: {error}"
                ) from error
        return columns

    def _tuple(self, key: Any) -> Key:
        width = len(self._key_schema)
        found = key if isinstance(key, tuple) else (key,)
        try:
            hash(found)
        except TypeError as error:
            raise WrongKey(
                f"{str(key)[:100]} cannot be a key of view {self._name!r}: expected "
                + (
                    f"a value of {_names(self._key_schema)}"
                    if width == 1
                    else f"a tuple with the values of {_names(self._key_schema)}"
                )
                + f" ({error})"
            ) from error
        if len(found) != width:
            raise WrongKey(
                f"view {self._name!r} has a key of {_names(self._key_schema)}: expected {width} values for each "
                f"key, got {str(key)[:100]}"
            )
        return found

    def _end_turn(self) -> None:
        self._turn = None
        gathered, self._gathered = self._gathered, []
        if gathered:
            task = asyncio.get_running_loop().create_task(self._answer_all(gathered))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)

    async def _answer_all(self, asked: list[_Asked]) -> None:
        """Answer each, or fail it with the reason: by its own deadline, where others have more time."""
        loop = asyncio.get_running_loop()
        last = max(each.until for each in asked)
        timers = [
            loop.call_at(each.until + _GRACE_S, _tell, each, self._silent(each.deadline))
            for each in asked
            if each.until + _GRACE_S < last
        ]
        try:
            await self._answer(asked)
        except (WrongKey, ViewFailed) as error:
            if (
                len(asked) > 1
            ):  # a caller with an invalid key, or one with too many rows, gets that error, and no other does
                await asyncio.gather(*(self._answer_all([each]) for each in asked))
            else:
                _tell(asked[0], error)
        except Exception as error:  # noqa: BLE001 - waiting callers get it
            for each in asked:
                _tell(each, error)
        finally:
            for timer in timers:
                timer.cancel()

    def _silent(self, deadline: float) -> ViewUnreachable:
        return ViewUnreachable(
            f"view {self._name!r} at {self._url} did not answer within {deadline + _GRACE_S:g} s"
        )

    async def _answer(self, asked: list[_Asked]) -> None:
        """Ask for all, and again for what was missing, until it has come, or time is over."""
        loop = asyncio.get_running_loop()
        last = max(each.until for each in asked)
        keys, batch = self._different(asked)
        # In steps all are asked for at once, as they are read at one step.
        in_steps = self._description is not None and self._description.in_steps
        at_once = max(len(keys), 1) if in_steps else _MOST_KEYS
        # All calls of a batch are sent before one is waited for.
        waits_s = _patience_s(asked, loop.time()) if len(keys) <= at_once else 0.0
        again = False
        while True:
            for begin in range(0, len(keys), at_once):
                some = keys[begin : begin + at_once]
                patience_s = max(last - loop.time(), waits_s)
                sent = _serialized(batch if len(some) == len(keys) else batch.slice(begin, at_once))
                answer = await self.ask(Get(sent, waits_s, again, self.known), patience_s)
                self._take(answer, some, asked, again=again)
            now = loop.time()
            asked = [each for each in asked if not self._is_over(each, now)]
            if not asked:
                return
            missing = {key for each in asked for key in each.missing}
            places = [place for place, key in enumerate(keys) if key in missing]
            keys, batch = [keys[place] for place in places], batch.take(pa.array(places))
            waits_s, again = _patience_s(asked, now), True

    def _different(self, asked: list[_Asked]) -> tuple[list[Key], pa.RecordBatch]:
        """The keys of all, each once; they are noted where they were asked for. Raises WrongKey."""
        columns = self._columns_of([key for each in asked for key in each.given])
        keys, batch = _exact_keys(columns), self._batch_of(columns)
        end = 0
        for each in asked:
            begin, end = end, end + len(each.given)
            each.keys = keys[begin:end]
        if len({*keys}) == len(keys):
            return keys, batch
        first = {key: place for place, key in reversed([*enumerate(keys)])}
        places = sorted(first.values())
        return [keys[place] for place in places], batch.take(pa.array(places))

    def _take(self, answer: Answer, keys: list[Key], asked: list[_Asked], *, again: bool) -> None:
        """The keys in an answer are for all callers that have requested them."""
        if isinstance(answer, Away):
            for each in asked:
                each.why = answer.why
            return
        assert isinstance(answer, Found)
        rows = batch_of(answer.rows, self.schema)
        counts = np.frombuffer(answer.counts, dtype="<i4").tolist()
        if len(counts) != len(keys) or len(answer.hits) != len(keys):
            raise ViewFailed(f"the answer has {len(counts)} keys, but {len(keys)} were requested")
        step = None if answer.step == FREE else answer.step
        counts_as_hit = (
            not again or step is not None
        )  # in steps nothing is missing, however often it is asked for
        hits = [counts_as_hit and hit == 1 for hit in answer.hits]
        if len(asked) == 1 and asked[0].keys == keys and min(counts) >= 0:
            asked[0].whole = Lookup(rows, hits, step)
            return
        found, end = {}, 0
        for key, count, hit in zip(keys, counts, hits, strict=True):
            if count >= 0:
                found[key] = rows.slice(end, count), hit
                end += count
        for each in asked:
            for key in each.keys:
                if key in found and key not in each.found:
                    each.found[key] = found[key]
            each.step = step

    def _is_over(self, asked: _Asked, now: float) -> bool:
        """True if nothing is waited for any more; then the caller is notified."""
        if now < asked.until and asked.missing:
            return False
        if asked.answer is not None and not asked.answer.done():
            try:
                asked.answer.set_result(self._lookup_of(asked))
            except LookupTimedOut as error:
                _tell(asked, error)
        return True

    def _lookup_of(self, asked: _Asked) -> Lookup:
        """The answer. Raises LookupTimedOut."""
        found = asked.lookup(self.schema)
        if missing := asked.missing:
            raise LookupTimedOut(
                f"{len(missing)} of {len(asked.keys)} keys of view {self._name!r} were missing, "
                f"such as {missing[0]}, and did not arrive within {asked.deadline:g} s: "
                f"{asked.why}",
                found,
                missing,
            )
        return found

    async def ask(self, question: Question, within_s: float) -> Answer:
        """Return the answer of a view. Raises the errors of ``get``; _OtherView if it differs from its description."""
        where = f"view {self._name!r} at {self._url}"
        if not self._has_service:
            raise UnknownView(
                f"{self._name[:_SHOWN]!r} cannot be the name of a view: a name has at most 250 bytes of printable UTF-8"
            )
        try:
            body = await self._caller.call(self._service, bytes_of(question), deadline_s=within_s + _GRACE_S)
        except netchannel.CallTimedOut as error:
            if error.state == "unregistered":
                raise UnknownView(
                    f"no view {self._name!r} at {self._url}: 'nebuli view list' lists the views, and 'nebuli "
                    f"run' or 'nebuli start' runs a query that has one"
                ) from error
            if error.state == "unreached":
                raise ViewUnreachable(
                    f"no process answers at {self._url} within {within_s + _GRACE_S:g} s: 'nebuli run' "
                    f"prints the address of its views; for a query on workers, use the data address of the "
                    f"worker that has the view"
                ) from error
            raise ViewUnreachable(f"{where} did not answer within {within_s + _GRACE_S:g} s") from error
        except netchannel.CallFailed as error:
            if error.said:
                raise _meant(where, error) from error
            raise ViewUnreachable(
                f"{where} closed the connection before it answered: its process was restarted, or its query "
                "has ended"
            ) from error
        except netchannel.NetChannelError as error:
            raise _meant(where, error) from error
        answer = answer_of(body)
        if isinstance(answer, Refused):
            raise WrongKey(f"{where}: {answer.why}")
        if isinstance(answer, Description) and not isinstance(question, Describe):
            raise _OtherView(f"the columns or the key of {where} have changed")
        return answer

    async def close(self) -> None:
        """End calls in transit; waiting callers are notified."""
        for asked in self._waiting:
            _tell(
                asked, ViewsClosed(f"view {self._name!r} at {self._url}: these Views were closed meanwhile")
            )
        for task in self._calls:
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)


def _meant(where: str, error: netchannel.NetChannelError) -> ViewError:
    match error:
        case netchannel.HandshakeError():
            return ViewDenied(f"{where}: {error}")
        case netchannel.MessageTooLarge():
            return ViewFailed(f"{where}: {error}; ask for fewer keys at once")
        case netchannel.CallFailed():
            return ViewFailed(f"{where} could not answer: {error}")
        case netchannel.ChannelClosed():
            return ViewsClosed(f"{where}: these Views are closed, or not entered: use 'async with'")
    return ViewUnreachable(f"{where}: {error}")


def _exact_keys(columns: list[pa.Array]) -> list[Key]:
    """Keys as the view knows them, of which equal ones are equal: also NaN, and what is rounded to a float32."""
    values = (
        map(_with_one_nan, column.to_pylist()) if pa.types.is_floating(column.type) else values_of(column)
        for column in columns
    )
    return [*zip(*values, strict=True)]


def _serialized(batch: pa.RecordBatch) -> bytes:
    return batch.serialize().to_pybytes()  # type: ignore[no-any-return]


def _with_one_nan(value: Any) -> Any:
    return _NAN if value is not None and math.isnan(value) else value


def _patience_s(asked: Iterable[_Asked], now: float) -> float:
    """How long the first of them waits."""
    return max(min((each.until - now for each in asked), default=0.0), 0.0)


def _tell(asked: _Asked, error: Exception) -> None:
    if asked.answer is not None and not asked.answer.done():  # or the caller has given up
        asked.answer.set_exception(error)


def _nothing(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, column.type) for column in schema], schema=schema)


def _column(values: list[Any], type_: pa.DataType) -> pa.Array:
    """Values as a column. Raises one of `_NO_VALUES`."""
    code = _CODES.get(type_.id)
    if code is not None and {*map(type, values)} == {int}:  # Arrow looks longer at what each value is
        return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(array(code, values))])
    return pa.array(_exact(values, type_), type_)


def _is(value: Any, type_: pa.DataType) -> bool:
    try:
        _column([value], type_)
    except _NO_VALUES:
        return False
    return True


def _exact(values: list[Any], type_: pa.DataType) -> list[Any]:
    """The values, if they do not lose anything as that type, which Arrow would let them. Raises ValueError."""
    if pa.types.is_integer(type_):
        for value in values:
            if isinstance(value, float | np.floating) and not value.is_integer():
                raise ValueError(f"{value} is not a whole number")
    elif pa.types.is_date(type_):
        for value in values:
            if isinstance(value, datetime) and value.time() != time.min:
                raise ValueError(f"{value} has a time of day")
    return values


def _names(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name} ({column.type})" for column in schema)


def _check(deadline: float) -> None:
    if not 0 < deadline < math.inf:
        raise ValueError(f"expected seconds above 0 as deadline, got {deadline}")
