"""A fragment of a query with views: a part of its graph, that runs until it is asked to end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

import netchannel
from nebuli.connectors.endpoints import Contents, Signal
from nebuli.connectors.errors import FragmentError, FragmentStopped, InputLost, ViewInUse
from nebuli.connectors.part_channels import CUT, PartMessage, PartSink, PartSource
from nebuli.dataflow import Progress
from nebuli.dataflow.errors import DataflowError
from nebuli.dataflow.partial import (
    Budget,
    PartialGraph,
    Upquery,
    ViewBudget,
    at_random,
    least_recently_used,
)
from nebuli.dataflow.partial.part_encoding import KEY_BYTES, PartEncoding, sendable
from nebuli.dataflow.partial.traffic import Data, Eviction
from nebuli.dataflow.types import arrow_schema
from nebuli.dataflow.zset import weighted
from nebuli.free.fragment_thread import FragmentThread
from nebuli.node.parts.view_reads import ViewReads
from nebuli.rpc.status import FragmentStatus, ViewStatus
from nebuli.views.view_calls import service_of
from placement.errors import UnfitNodes
from placement.partial.node_plan import planned_of
from placement.plan import (
    BoundSink,
    BoundSource,
    NetworkSink,
    NetworkSource,
    SharderOperator,
    ViewOperator,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nebuli.connectors.endpoints import Sink, Source
    from nebuli.connectors.provider import Provider
    from nebuli.connectors.sinks.sink_locks import SinkLock
    from nebuli.dataflow.partial import Edge, Filled
    from nebuli.dataflow.partial.traffic import Message
    from placement.plan import Addition, Fragment, FragmentOperator

__all__ = ["PartRunner", "budget_of", "check_part"]

_log = logging.getLogger(__name__)

_HELD_S = 0.002
"""For so long the graph is moved before reads get their turn."""
_YIELD_S = 2e-5
"""A read takes about so long."""
_AGAIN_S = 0.5
"""How often an unanswered upquery to another part is repeated."""
_BUDGET_S = 0.05
"""So often it is looked at most whether partial state is within its budget, if something has moved."""
_CLOSE_S = 5.0


class PartRunner(FragmentThread):
    """Moves a part of a graph: what its sources give, what other parts send, and what is read of its views.

    Killed and restarted, it has nothing, and gets again the keys that are read; a base reads its source again.
    """

    def __init__(
        self,
        id_: str,
        fragment: Fragment,
        on_end: Callable[[], None],
        *,
        max_state_bytes: int,
        resumed: bool = False,
        locks: Sequence[SinkLock] = (),
    ) -> None:
        super().__init__(id_, fragment, on_end, resumed=resumed, locks=locks)
        ends = (BoundSink, NetworkSource, NetworkSink)
        here = (each.id for each in fragment.operators if not isinstance(each, ends))
        self._graph = PartialGraph(fragment.views, here, max_state_bytes=max_state_bytes)
        for addition in fragment.added:
            self._have(addition)
        self._encoding = PartEncoding(self._graph)
        self._lock = Lock()
        self._reads = ViewReads(id_, self._graph, self._lock, self._wake.set)
        self._views = _views_of(fragment.own)
        self._additions: deque[tuple[Addition, asyncio.Future[None]]] = deque()
        self._max_state_bytes = max_state_bytes
        self._budget = budget_of(self._partial_views(), max_state_bytes)
        self._sources: dict[str, Source] = {}
        self._rebuilding: set[str] = set()
        self._ended: list[Source] = []
        self._sink: Sink | None = None
        self._from: dict[Edge, PartSource] = {}
        self._to: dict[Edge, PartSink] = {}
        self._upqueries: deque[tuple[Edge, bytes]] = deque()
        self._services: list[tuple[str, netchannel.Service]] = []
        """By the names of views."""
        self._loop: asyncio.AbstractEventLoop
        self._changes: dict[str, int] = {}
        self._too_large: set[int] = set()
        """The paths for which that was logged."""
        self._next_again = self._next_budget = 0.0
        self._grown = False

    @property
    def status(self) -> FragmentStatus:
        """The fragment as it is now."""
        return replace(self._status, views=tuple(map(self._view_status, self._views)))

    def _view_status(self, view: ViewOperator) -> ViewStatus:
        node, counts = self._graph.view(view.id), self._reads.counts[view.id]
        return ViewStatus(
            name=view.name or view.id,
            key=view.key,
            partial=not node.rows.full,
            keys=len(node.rows.present),
            bytes=node.rows.nbytes,
            lookups=counts.lookups,
            hits=counts.hits,
            upqueries=self._graph.upqueries_into(view.id),
            evictions=node.evicted,
        )

    # -- on the loop

    @property
    def _inputs(self) -> Mapping[str, Source | PartSource]:
        return {**self._sources, **{str(edge): source for edge, source in self._from.items()}}

    @property
    def _outputs(self) -> Sequence[Sink | PartSink]:
        return [*self._to.values()] if self._sink is None else [self._sink]

    def _make(self, operator: FragmentOperator, provider: Provider) -> None:
        match operator:
            case BoundSource():
                self._sources[operator.id] = provider.source(operator, self._wake.set)
            case NetworkSource():
                source = PartSource(operator, provider.receiver, self._wake.set)
                self._from[self._edge_to(operator)] = source
            case NetworkSink():
                edge = self._edge_from(operator)
                self._to[edge] = PartSink(operator, provider.sender, partial(self._hear, edge))
            case BoundSink():
                self._sink = provider.sink(operator)

    def _edge_to(self, source: NetworkSource) -> Edge:
        """Return the edge of a channel into this part, or, if it only forwards, by its target."""
        edges = [edge for edge in self._graph.plan.edges if edge.producer == source.id]
        within = next((edge for edge in edges if self._graph.is_here(edge.consumer)), None)
        if within is not None:
            return within
        sinks = (each for each in self.fragment.operators if isinstance(each, NetworkSink))
        return self._edge_from(next(each for each in sinks if each.input == source.id))

    def _edge_from(self, sink: NetworkSink) -> Edge:
        """Return the edge of a channel: a sharder has several, distinguished by the id."""
        edges = [edge for edge in self._graph.plan.edges if edge.producer == sink.input]
        node = self._graph.plan.nodes[sink.input]
        if not isinstance(node, SharderOperator):
            return edges[0]
        shard = node.shards[int(sink.id.rpartition(">")[2])]
        return next(edge for edge in edges if edge.consumer == shard)

    def _begin(self, provider: Provider) -> None:
        self._loop = asyncio.get_running_loop()
        self._receiver = provider.receiver
        for view in self._views:
            try:
                self._serve(view)
            except FragmentError as error:
                self._unusable = error

    def _serve(self, view: ViewOperator) -> None:
        """Answer reads of a view. Raises FragmentError if its name is in use."""
        name = view.name or view.id
        try:
            service = self._receiver.register_service(service_of(name), partial(self._reads.answer, view.id))
        except netchannel.ChannelInUse as error:
            raise ViewInUse(name, error) from error
        self._services.append((name, service))

    async def add(self, addition: Addition) -> None:
        """Have more operators, while it runs, if it has not. Raises DataflowError if they do not fit.

        FragmentError: it has ended meanwhile.
        """
        if addition in self.fragment.added:
            return
        added = self._loop.create_future()
        self._additions.append((addition, added))
        self._wake.set()
        await added
        if addition.fragment == self.fragment.id:
            for view in _views_of(addition.operators):
                self._reads.add(view.id)
                self._serve(view)
                self._views.append(view)

    def _hear(self, edge: Edge, upquery: bytes) -> None:
        self._upqueries.append((edge, upquery))
        self._wake.set()

    # -- in the thread

    def _work(self) -> None:
        self._open()
        while True:
            self._wake.clear()  # before anything is asked: what arrives meanwhile is not slept over
            if self._stopping:
                raise FragmentStopped("stopped")
            self._check_services()
            busy = self._take_additions()
            busy = self._poll_sources() or busy
            busy = self._poll_parts() or busy
            self._take_upqueries()
            busy = self._move() or busy
            self._ask_again()
            if not busy:
                self._wake.wait(_AGAIN_S)

    def _take_additions(self) -> bool:
        """Have what is to be added, with nothing on its way meanwhile; whether there was anything."""
        busy = bool(self._additions)
        while self._additions:
            while self._move_once():
                pass
            addition, added = self._additions.popleft()
            try:
                with self._lock:
                    self._have(addition)
            except (DataflowError, UnfitNodes) as error:
                self._loop.call_soon_threadsafe(_fail, added, DataflowError(str(error)))
                continue
            self.fragment = self.fragment.model_copy(update={"added": (*self.fragment.added, addition)})
            self._budget = budget_of(self._partial_views(), self._max_state_bytes)
            _log.info(
                "fragment %s has %s", self.fragment.id, " ".join(each.id for each in addition.operators)
            )
            self._loop.call_soon_threadsafe(_done, added)
        return busy

    def _have(self, addition: Addition) -> None:
        is_here = addition.fragment == self.fragment.id
        self._graph.add(addition.nodes, [each.id for each in addition.operators] if is_here else [])

    def _partial_views(self) -> list[ViewOperator]:
        return [each for each in _views_of(self.fragment.own) if not self._graph.view(each.id).rows.full]

    def _check_services(self) -> None:
        """Raise if another process of the node turned out to have a view of the same name."""
        for name, service in [*self._services]:
            if service.error is not None:
                raise ViewInUse(name, service.error)

    def _open(self) -> None:
        for id_, source in self._sources.items():
            source.open()
            if id_ in self._graph.bases_here:
                self._graph.rebuild(id_)
                self._rebuilding.add(id_)
        for edge, part in self._to.items():
            part.open(self._schema(edge))
        if self._sink is not None:
            root = self.fragment.operators[-1]
            assert isinstance(root, BoundSink)
            self._sink.open(weighted(arrow_schema(self._graph.plan.schemas[root.input])))

    def _schema(self, edge: Edge) -> object:
        return weighted(arrow_schema(self._graph.plan.schemas[edge.producer]))

    def _poll_sources(self) -> bool:
        """Take a batch of each source; whether any had something."""
        busy = False
        for id_, source in [*self._sources.items()]:
            match source.poll():
                case Signal.LATER:
                    if isinstance(source, Contents) and source.is_whole:
                        self._has_been_read(id_)
                    continue
                case Signal.END:
                    self._has_been_read(id_)
                    self._ended.append(self._sources.pop(id_))
                case Progress():
                    pass
                case batch:
                    self._status.rows_in += batch.num_rows
                    self._status.bytes_in += batch.nbytes
                    with self._lock:
                        self._graph.write(id_, batch)
            busy = True
        return busy

    def _has_been_read(self, base: str) -> None:
        """A base has all that there is now: it answers."""
        if base in self._rebuilding:
            self._rebuilding.discard(base)
            with self._lock:
                self._graph.is_rebuilt(base)
            _log.info("fragment %s has read all of %s, and now answers reads", self.fragment.id, base)

    def _poll_parts(self) -> bool:
        """Take what has come from other parts; whether there may be more."""
        more = False
        for edge, part in self._from.items():
            while (item := part.poll()) is not None:
                if isinstance(item, PartMessage):
                    self._status.rows_in += item.batch.num_rows
                    self._status.bytes_in += item.batch.nbytes
                    self._take(edge, item)
                else:
                    assert item is CUT
                    self._cut(edge)
                if self._graph.is_here(edge.consumer):
                    more = True
                    break  # what it means is worked off, and the others have their turn
        return more

    def _take(self, edge: Edge, item: PartMessage) -> None:
        if not self._graph.is_here(edge.consumer):  # it only passes
            self._to[edge].send(item)
            return
        message = self._encoding.message(edge, item.batch, item.note)
        with self._lock:
            self._graph.arrives(edge, message)

    def _cut(self, edge: Edge) -> None:
        """The feeder of an edge was restarted."""
        if self._graph.leads_to_full(edge):
            raise InputLost(
                f"the fragment of {edge.producer} was restarted, and rows derived from it cannot be "
                f"requested again: restart the query"
            )
        _log.warning(
            "fragment %s: the fragment of %s was restarted: keys that were read through it are requested "
            "again",
            self.fragment.id,
            edge.producer,
        )
        if self._graph.is_here(edge.consumer):
            with self._lock:
                self._graph.cut(edge)
                self._next_again = 0.0
            return
        for path in self._graph.plan.paths:
            if edge in path.edges:
                self._send(edge, Eviction(path.number, None))

    def _take_upqueries(self) -> None:
        while self._upqueries:
            edge, body = self._upqueries.popleft()
            if not self._graph.is_here(edge.producer):
                self._from[edge].ask(body)
                continue
            if (upquery := self._encoding.upquery(edge, body)) is not None:
                with self._lock:
                    self._graph.arrives(edge, upquery)

    def _move(self) -> bool:
        """Move until nothing is left, and send on what leaves; whether there is more to do.

        Waiting receivers need the interpreter, too: nothing is checked twice.
        """
        while self._move_once():
            if self._upqueries or self._stopping:
                break
        if not self._grown or (now := time.monotonic()) < self._next_budget:
            return False
        self._next_budget, self._grown = now + _BUDGET_S, False
        with self._lock:
            evicted = self._budget.enforce(self._graph)
        self._status.state_bytes = sum(node.state_bytes for node in self._graph.nodes.values())
        return evicted > 0

    def _move_once(self) -> bool:
        """Move for a moment, and send on what leaves; whether there is more to move."""
        filled: list[Filled] = []
        while self._reads.is_reading:
            time.sleep(_YIELD_S)
        with self._lock:
            until = time.monotonic() + _HELD_S
            while (moves := self._graph.moves()) and time.monotonic() < until and not self._reads.is_reading:
                filled += self._graph.step(moves[0])
                self._grown = True
            leaving = [*self._graph.leaving()]
            changed = self._changed()
        if filled:
            self._loop.call_soon_threadsafe(self._reads.filled, filled)
        if changed:
            self._loop.call_soon_threadsafe(self._reads.changed, changed)
        for edge, message in leaving:
            if not isinstance(message, Upquery):
                self._send(edge, message)
                continue
            self._ask(edge, message)
        return bool(moves)

    def _ask(self, edge: Edge, upquery: Upquery) -> None:
        keys = sendable(upquery.keys)
        if keys.num_rows < upquery.keys.num_rows and upquery.path not in self._too_large:
            self._too_large.add(upquery.path)
            _log.warning(
                "fragment %s: a key is larger than %d bytes, the limit of a request to the fragment of %s: "
                "reads that need this key get no answer",
                self.fragment.id,
                KEY_BYTES,
                edge.producer,
            )
        if keys.num_rows:
            for body in self._encoding.asked(Upquery(upquery.path, keys)):
                self._from[edge].ask(body)

    def _send(self, edge: Edge, message: Message) -> None:
        if edge not in self._to:
            assert isinstance(message, Data), "nothing is asked for by a sink"
            assert self._sink is not None
            self._status.rows_out += self._sink.write(message.batch)
            self._status.bytes_out += message.batch.nbytes
            return
        for batch, note in self._encoding.encoded(edge, message):
            self._status.rows_out += batch.num_rows
            self._status.bytes_out += batch.nbytes
            self._to[edge].send(PartMessage(batch, note))

    def _changed(self) -> list[str]:
        """Return the watched views that have changed."""
        now = {view: self._graph.view(view).changes for view in self._reads.watched}
        changed = [view for view, count in now.items() if count != self._changes.get(view)]
        self._changes = now
        return changed

    def _ask_again(self) -> None:
        if self._from and (now := time.monotonic()) >= self._next_again:
            self._next_again = now + _AGAIN_S
            with self._lock:
                self._graph.ask_again()

    # -- ends

    def _fail(self, why: str) -> None:
        """Nothing else is written."""

    def _let_go(self) -> None:
        self._close(self._ended, "it has ended")
        if not self._loop.is_closed():
            ended = FragmentStopped(f"fragment {self.fragment.id} has ended meanwhile")
            while self._additions:
                self._loop.call_soon_threadsafe(_fail, self._additions.popleft()[1], ended)
            closing = asyncio.run_coroutine_threadsafe(self._close_services(), self._loop)
            with suppress(TimeoutError):
                closing.result(_CLOSE_S)

    async def _close_services(self) -> None:
        await asyncio.gather(*(service.close() for _, service in self._services))


def budget_of(views: Sequence[ViewOperator], max_state_bytes: int) -> Budget:
    """Return the bounds on keys of a fragment with these partial views: for each view its own.

    All together have their sum, if all have one, and never more than the worker's bound.
    """
    any_ = at_random(0)
    said = [view.max_bytes for view in views if view.max_bytes is not None]
    return Budget(
        min(sum(said), max_state_bytes) if views and len(said) == len(views) else max_state_bytes,
        {
            view.id: ViewBudget(view.max_bytes, any_ if view.evict == "random" else least_recently_used)
            for view in views
        },
    )


def check_part(fragment: Fragment) -> None:
    """Raises DataflowError if the operators of its query do not fit together."""
    try:
        planned_of(fragment)
    except UnfitNodes as error:
        raise DataflowError(str(error)) from error


def _views_of(operators: Iterable[FragmentOperator]) -> list[ViewOperator]:
    return [each for each in operators if isinstance(each, ViewOperator)]


def _done(added: asyncio.Future[None]) -> None:
    if not added.done():
        added.set_result(None)


def _fail(added: asyncio.Future[None], error: Exception) -> None:
    if not added.done():
        added.set_exception(error)
