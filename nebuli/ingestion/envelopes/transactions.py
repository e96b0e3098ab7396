"""The envelope that holds changes back until their transaction is whole."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nebuli.dataflow import zset
from nebuli.ingestion.errors import MessageInvalid

from .debezium import Debezium
from .envelope import Changes, Envelope
from .open_transactions import BEGIN, END, OVER, Held, OutstandingRows, Waiting, parts_of, weighted
from .time_order import Arrived

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from nebuli.ingestion.definition import DebeziumEnvelope
    from nebuli.ingestion.message_addresses import Messages

STATE = "transactions"
_Mark = tuple[int, str, str, int | None]
_REMEMBERED = 1024
"""So many transactions that are over are known, for what comes of them again: sources give some messages twice."""


class Transactions(Envelope):
    """Changes as `Debezium` takes them; those of a transaction are applied together, when it is complete.

    It is complete at the first time at which its END and as many rows as that announces are there; where transactions
    are ``ordered``, all that began earlier, by their BEGIN or first event, have to be complete, too. ABORT drops its
    rows. A row without a transaction is applied at once.

    Everything has a number, in the order of times, raw sources, parts and addresses. Those of one time are applied by
    the numbers of ENDs, or, where they are ordered, of the first events; rows without a transaction by their own. Rows
    of a transaction are in their ``total_order``, if all have one; one that has come already is passed over. So is what
    comes of any of the last 1,024 transactions that are over.

    Waiting ones are the state ``transactions``, in the form of `OutstandingRows`.
    """

    reads_output: ClassVar[bool] = True

    def __init__(self, schema: pa.Schema, settings: DebeziumEnvelope, *, source: str) -> None:
        self._inner = Debezium(schema, settings, source=source)
        self.schema, self.wants = self._inner.schema, self._inner.wants
        self._is_ordered = settings.transactions == "ordered"
        self._source = source
        self._outstanding = OutstandingRows(self.wants)
        self._waiting: dict[str, Waiting] = {}  # by the first thing of each
        self._over: deque[tuple[int, str]] = deque()
        self._over_names: set[str] = set()
        self._next = 0

    @property
    def states(self) -> Mapping[str, pa.Schema]:
        """The waiting transactions."""
        return {STATE: self._outstanding.schema}

    def rehydrate(self, output: pa.Table | None, states: Mapping[str, pa.Table]) -> None:
        """Begin with what was put out, and with what waits."""
        self._inner.rehydrate(output, {})
        self._waiting, over = self._outstanding.read(states[STATE])
        self._over = deque(over)
        self._over_names = {name for _, name in over}
        numbers = states[STATE].column("number")
        self._next = pc.max(numbers).as_py() + 1 if len(numbers) else 0

    def apply(self, messages: Mapping[str, Sequence[Messages]]) -> Changes:
        """Return the result of the transactions that are complete now, and the waiting ones. Raises MessageInvalid."""
        arrived = Arrived.of(messages, self.wants)
        if not arrived.rows.num_rows:
            return Changes([])
        step = self._step(arrived)
        going = self._going(arrived, step)
        rows = self._in_order(arrived, step, going)
        change = self._inner.changed(rows) if rows.rows.num_rows else None
        # Errors were raised: from here on it is kept.
        state = self._kept(arrived, step, going)
        output = [change] if change is not None and change.num_rows else []
        return Changes(output, {STATE: state} if state else {})

    # -- what has come

    def _step(self, arrived: Arrived) -> _Step:
        changes = self._inner.checked(arrived)
        has_id = (
            arrived.rows.column("transaction").flatten()[0].is_valid().to_numpy(zero_copy_only=False)[changes]
        )
        step = _Step(changes[~has_id])
        about = np.setdiff1d(np.arange(arrived.rows.num_rows), changes, assume_unique=True)
        things = sorted(
            [*self._said(arrived, about), *_rows_by_id(arrived, changes[has_id])], key=lambda each: each[0]
        )
        for row, name, said in things:
            if name in self._over_names:
                continue
            fresh = step.fresh.setdefault(name, _Fresh(self._next + row))
            self._add(arrived, name, fresh, said, row)
        return step

    def _said(self, arrived: Arrived, about: NDArray[np.int64]) -> list[tuple[int, str, _Said]]:
        rows = arrived.rows.select(["status", "id", "event_count"]).take(pa.array(about))
        said: list[tuple[int, str, _Said]] = []
        columns = (column.to_pylist() for column in rows.columns)
        for row, status, name, count in zip(about.tolist(), *columns, strict=True):
            is_known = status in ("BEGIN", "END", "ABORT")
            if not is_known or name is None or (status == "END" and (count is None or count < 0)):
                raise MessageInvalid(
                    f"{arrived.place(row, self._source)}: got status {status!r}, id {name!r} and event_count "
                    f"{count}; expected an id, and the status BEGIN, ABORT, or END with an event_count"
                )
            said.append((row, name, (status, count)))
        return said

    def _add(self, arrived: Arrived, name: str, fresh: _Fresh, said: _Said, row: int) -> None:
        known = self._waiting.get(name)
        match said:
            case ("BEGIN", _):
                if fresh.begin is None and (known is None or known.begin is None):
                    fresh.begin = self._next + row
            case ("END", int(count)):
                self._end(arrived, name, fresh, count, row)
            case ("ABORT", _):
                fresh.is_aborted = True
            case list():
                for place, order in said:
                    if order is None or not (order in fresh.orders or (known and order in known.orders)):
                        fresh.rows.append(place)
                        if order is not None:
                            fresh.orders.add(order)

    def _end(self, arrived: Arrived, name: str, fresh: _Fresh, count: int, row: int) -> None:
        known = self._waiting.get(name)
        end = fresh.end or (known.end if known else None)
        if end is None:
            fresh.end = (self._next + row, count)
        elif end[1] != count:
            raise MessageInvalid(
                f"{arrived.place(row, self._source)}: transaction {name} ends with event_count {count}, but an "
                f"earlier END has event_count {end[1]}; the two belong to different transactions"
            )

    # -- applied transactions

    def _going(self, arrived: Arrived, step: _Step) -> dict[str, int]:
        """Return the transactions that are complete now, with the number by which each is applied."""
        if self._is_ordered:
            going: dict[str, int] = {}
            for name in dict.fromkeys([*self._waiting, *step.fresh]):
                fresh, known = step.fresh.get(name), self._waiting.get(name)
                if fresh is not None and fresh.is_aborted:
                    continue
                if self._whole(arrived, name, known, fresh) is None:
                    break
                going[name] = known.first if known else fresh.first if fresh else 0
            return going
        ends = {
            name: self._whole(arrived, name, self._waiting.get(name), fresh)
            for name, fresh in step.fresh.items()
            if not fresh.is_aborted
        }
        return {name: end for name, end in ends.items() if end is not None}

    def _whole(self, arrived: Arrived, name: str, known: Waiting | None, fresh: _Fresh | None) -> int | None:
        """The number of its END if all is there."""
        end = (fresh.end if fresh else None) or (known.end if known else None)
        if end is None:
            return None
        count = (known.count if known else 0) + (len(fresh.rows) if fresh else 0)
        if count > end[1] and fresh is not None:
            row = fresh.rows[-1] if fresh.rows else end[0] - self._next
            raise MessageInvalid(
                f"{arrived.place(row, self._source)}: transaction {name} has {count} rows, but its END "
                f"announces {end[1]}; expected at most {end[1]} rows (if the source has the rows of only one "
                f"table, event_count must be the count of that table)"
            )
        return end[0] if count == end[1] else None

    def _in_order(self, arrived: Arrived, step: _Step, going: Mapping[str, int]) -> Arrived:
        """Return the applied rows, in their order."""
        fresh = {name: step.fresh[name].rows for name in going if name in step.fresh}
        rows = np.asarray([row for rows in fresh.values() for row in rows], dtype=np.int64)
        by = [number for name, some in fresh.items() for number in [going[name]] * len(some)]
        pool = [arrived.take(step.plain), arrived.take(rows)]
        came = [self._next + step.plain, self._next + rows]
        numbers = [self._next + step.plain, np.asarray(by, dtype=np.int64)]
        for part in parts_of((name, self._waiting[name]) for name in going if name in self._waiting):
            pool.append(part.arrived)
            came.append(part.numbers)
            numbers.append(np.asarray([going[name] for name in part.names], dtype=np.int64))
        everything = Arrived.together(pool)
        return everything.take(_order(everything, np.concatenate(numbers), np.concatenate(came)))

    # -- what stays

    def _kept(self, arrived: Arrived, step: _Step, going: Mapping[str, int]) -> list[pa.RecordBatch]:
        """Keep what waits now. Gives what is different in the state."""
        aborted = [name for name, fresh in step.fresh.items() if fresh.is_aborted]
        over = [*sorted(going, key=lambda name: going[name]), *aborted]
        ended = [(name, self._waiting.pop(name)) for name in over if name in self._waiting]
        gone = self._outstanding.of(ended)
        is_over = set(over)
        fresh = {name: some for name, some in step.fresh.items() if name not in is_over}
        marks = self._wait(fresh)
        added = self._hold(arrived, fresh)
        forgotten = self._remember(arrived.rows.num_rows, over, marks)
        added.append(self._outstanding.marks(marks))
        gone.append(self._outstanding.marks(forgotten))
        numbers = [int(pc.max(batch.column("number")).as_py()) for batch in added if batch.num_rows]
        self._next = max([self._next, *(number + 1 for number in numbers)])
        changes = [*weighted(added, 1), *weighted(gone, -1)]
        return [zset.consolidate(changes)] if changes else []

    def _wait(self, some: Mapping[str, _Fresh]) -> list[_Mark]:
        """Have transactions wait, without their rows; gives what is new of them."""
        marks: list[_Mark] = []
        for name, fresh in some.items():
            if fresh.begin is None and fresh.end is None and not fresh.rows:
                continue  # all of it was there
            known = self._waiting.setdefault(name, Waiting(fresh.first))
            if fresh.begin is not None:
                known.begin = fresh.begin
                marks.append((fresh.begin, BEGIN, name, None))
            if fresh.end is not None:
                known.end = fresh.end
                marks.append((fresh.end[0], END, name, fresh.end[1]))
        return marks

    def _hold(self, arrived: Arrived, some: Mapping[str, _Fresh]) -> list[pa.RecordBatch]:
        """Hold the rows of transactions that wait; gives them as rows of the state."""
        places = [row for fresh in some.values() for row in fresh.rows]
        if not places:
            return []
        rows = np.asarray(places, dtype=np.int64)
        held = Held(self._next + rows, arrived.take(rows))
        names: list[str] = []
        for name, fresh in some.items():
            if fresh.rows:
                start = len(names)
                names += [name] * len(fresh.rows)
                self._waiting[name].pieces.append((held, start, len(names)))
                self._waiting[name].orders |= fresh.orders
        return [self._outstanding.rows(names, held.numbers, held.arrived)]

    def _remember(self, count: int, over: Sequence[str], marks: list[_Mark]) -> list[_Mark]:
        """Remember the last finished ones, with the numbers after those of the ``count`` rows; returns the others."""
        new = [(self._next + count + place, name) for place, name in enumerate(over)]
        self._over.extend(new)
        self._over_names.update(over)
        forgotten = [self._over.popleft() for _ in range(len(self._over) - _REMEMBERED)]
        self._over_names.difference_update(name for _, name in forgotten)
        marks += [(number, OVER, name, None) for number, name in new]
        return [(number, OVER, name, None) for number, name in forgotten]


_Said = tuple[str, int | None] | list[tuple[int, int | None]]
"""A status and its count, or rows with their total orders."""


@dataclass(slots=True)
class _Fresh:
    """The new part of a transaction at this time, in addition to the waiting one."""

    first: int
    begin: int | None = None
    end: tuple[int, int] | None = None
    is_aborted: bool = False
    rows: list[int] = field(default_factory=list)
    orders: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Step:
    """The input of this time: rows without a transaction, and each transaction by its first event."""

    plain: NDArray[np.int64]
    fresh: dict[str, _Fresh] = field(default_factory=dict)


def _rows_by_id(arrived: Arrived, changes: NDArray[np.int64]) -> list[tuple[int, str, _Said]]:
    """Return, for each transaction, its first row, its name, and all of its rows."""
    ids, orders = arrived.rows.column("transaction").flatten()
    coded = ids.take(pa.array(changes)).dictionary_encode()
    codes = coded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    bounds = np.flatnonzero(np.diff(codes[order])) + 1
    names = coded.dictionary.to_pylist()
    places = changes[order]
    rows = list(zip(places.tolist(), orders.take(pa.array(places)).to_pylist(), strict=True))
    starts = [0, *bounds.tolist(), len(rows)] if rows else []
    groups = [rows[start:end] for start, end in pairwise(starts)]
    return [(some[0][0], name, some) for some, name in zip(groups, names, strict=True)]


def _order(arrived: Arrived, numbers: NDArray[np.int64], came: NDArray[np.int64]) -> NDArray[np.int64]:
    """The order by these numbers, and of one number by the total order, if all have one, or else as they came."""
    orders = arrived.rows.column("transaction").flatten()[1]
    values = orders.fill_null(0).to_numpy()
    lacking = np.unique(numbers[orders.is_null().to_numpy(zero_copy_only=False)])
    return np.lexsort((came, np.where(np.isin(numbers, lacking), 0, values), numbers))
