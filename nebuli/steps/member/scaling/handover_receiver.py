"""Taking: a member that begins with what the members before it have given.

Parts of the state are durable as they come. The end lists which of them count, with the step at which they do.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nebuli.dataflow import SteppedCircuit
from nebuli.dataflow.steps.saved_runs import Saved, decoded
from nebuli.dataflow.zset import added
from nebuli.steps.errors import SourcesGone
from nebuli.steps.logs.input_log import PRODUCERS, InputLog
from nebuli.steps.logs.output_log import SinkPosition
from nebuli.steps.logs.remap import LogPosition
from nebuli.steps.member.member_store import LOG, own_output_log
from nebuli.steps.member.saved_state import SavedState
from nebuli.steps.member.scaling import handover_messages as say
from nebuli.steps.member.scaling.layout import channel
from nebuli.steps.protocol.errors import MalformedMessage
from nebuli.store import Store
from netchannel import BufferPolicy, EndOfChannel
from placement.stepped_plan import TIME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from nebuli.dataflow.steps.resharding import Counting, Numbers
    from nebuli.dataflow.steps.saved_runs import Key, Tables
    from nebuli.steps.logs.output_log import OutputLog
    from nebuli.steps.logs.remap import Address
    from nebuli.steps.member.member_order import MemberOrder
    from nebuli.steps.member.scaling.layout import Takeover
    from nebuli.store.store_url import StorePlace
    from netchannel import ReceiverChannel, ReceiverServer

_BUFFER = BufferPolicy(max_bytes=1 << 26)
_OUTPUT_BYTES = 1 << 24
"""So much of an output is appended at once."""


async def has_taken(place: StorePlace) -> bool:
    """True if a member's store has its handed-over state. Raises StorageError."""
    async with Store.at(place) as store:
        return await _is_there(SavedState(store.state_store(LOG)))


async def _is_there(state: SavedState) -> bool:
    return (await state.checkpoints())[-1].version > 0


async def take(
    order: MemberOrder, takeover: Takeover, receiver: ReceiverServer, listening: Callable[[], None]
) -> None:
    """Take the state of the earlier members, and have it durably, once; ``listening`` is called when they can give it.

    Waits for them without a deadline: its starter ends it. Raises MalformedMessage, StorageError,
    NetChannelError; SourcesGone where it is given what none of its feeds reads.
    """
    async with Store.at(order.store) as store:
        state = SavedState(store.state_store(LOG))
        if await _is_there(state):
            return  # in a process before this one
        inboxes = [
            receiver.register_channel(
                channel(takeover.transfer, number, order.member),
                codec="bytes",
                ack="explicit",
                buffer=_BUFFER,
            )
            for number in range(takeover.before)
        ]
        listening()
        circuit = SteppedCircuit(
            order.plan,
            order.member,
            max_state_bytes=order.max_state_bytes,
            keep_contents_bytes=order.keep_contents_bytes,
        )
        await state.open(0)
        taking = _Taking(
            state,
            await InputLog.open(store, LOG, circuit.inputs),
            await own_output_log(store, order.plan, order.member, circuit.outputs),
        )
        try:
            async with asyncio.TaskGroup() as group:
                given = [group.create_task(taking.hear(*each)) for each in enumerate(inboxes)]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        standings = [each.result() for each in given]
        tables = circuit.put_together(
            [each.counting for each in standings], [each.numbers for each in standings]
        )
        standing = taking.together(standings)
        unread = {*standing.addresses} - {feed.name for feed in order.feeds} - {TIME}
        if unread:  # now, while the earlier members can continue
            raise SourcesGone(order.member, sorted(unread))
        await taking.log.stand(standing)
        await state.write(taking.saved(tables), standing.step)
        await state.commit()
        for inbox, each in zip(inboxes, standings, strict=True):
            await inbox.ack(each.messages)
        for inbox in inboxes:
            with suppress(EndOfChannel):  # until then the giver may be busy with another one
                await inbox.recv()
            await inbox.close()


class _Standing:
    """The messages of one of the earlier members; the position of its logs is the last one."""

    def __init__(self) -> None:
        self.messages = 0
        self.numbers: Numbers = {}
        self.counting: Counting = {}
        self.step: int | None = None
        self.addresses: Mapping[str, Address] = {}


class _Taking:
    def __init__(self, state: SavedState, log: InputLog, outputs: OutputLog | None) -> None:
        self.log = log
        self._state = state
        self._outputs = outputs
        self._parts: set[Key] = set()
        self._counts: set[Key] = set()
        self._waiting: dict[str, list[pa.RecordBatch]] = defaultdict(list)
        self._producers: list[pa.RecordBatch] = []
        self._rows: dict[str, list[tuple[int, pa.RecordBatch]]] = defaultdict(list)
        self._net: dict[str, list[pa.RecordBatch]] = defaultdict(list)

    async def hear(self, before: int, inbox: ReceiverChannel) -> _Standing:
        """All that one member gives."""
        heard = _Standing()
        sender = f"previous member {before}"
        while heard.step is None:
            data, note, sequence, _ = await inbox.recv_message()
            given = say.read_header(note, sender)
            try:
                await self._take(given, data, heard)
            except (ValueError, OSError, KeyError) as error:
                raise MalformedMessage(sender, f"sent {given} that cannot be read: {error!r}") from error
            heard.messages = sequence + 1
            if heard.step is None:  # else it is acknowledged when all is durable
                await inbox.ack(heard.messages)
        return heard

    async def _take(self, given: say.Given, data: Any, heard: _Standing) -> None:
        match given:
            case say.RunPart(operator, name):
                decoded(data)  # no other than a run is kept
                await self._state.keep(operator, name.encode(), data)
                self._parts.add((operator, name.encode()))
            case say.RunsCount():
                heard.counting = say.counting_of(data)
                counts = set(_keys(heard.counting))
                if not counts <= self._parts:
                    raise ValueError(f"missing: {counts - self._parts}")
                self._counts |= counts
            case say.OperatorNumbers():
                heard.numbers = say.numbers_of(data)
            case say.Waiting(handle):
                self._waiting[handle].append(say.rows_of(data, self.log.schemas[handle]))
            case say.ProducersKnown():
                self._producers.append(say.rows_of(data, PRODUCERS))
            case say.Stands(step):
                heard.step = step
                heard.addresses = say.addresses_of(data)
            case _:
                await self._take_output(given, data)

    async def _take_output(self, given: Any, data: Any) -> None:
        log = self._outputs
        if log is None:
            raise KeyError(given.output)
        output = given.output
        match given:
            case say.OutputPart(_, first, step):
                waiting = self._rows[output]
                waiting.append((step, say.rows_of(data, log.schemas[output])))
                if sum(rows.nbytes for _, rows in waiting) >= _OUTPUT_BYTES and waiting[0][0] < step:
                    self._rows[output] = [waiting.pop()]  # its step may have more rows
                    await log.continue_with(output, first, step, waiting)
            case say.OutputStands(_, first, until):
                if until:
                    await log.continue_with(output, first, until, self._rows.pop(output, []))
            case say.SinkStands():
                step, kind, text, rows = json.loads(bytes(data))
                await (await log.delivered(output)).keep(SinkPosition(step, kind, text, rows))
            case say.SinkRows():
                self._net[output].append(say.rows_of(data, log.schemas[output]))
            case say.SinkAdded(_, until):
                rows = [(until - 1, each) for each in self._net.pop(output, [])]
                await (await log.net(output)).add(rows, until)

    def saved(self, tables: Tables) -> Saved:
        """The state that these manifests are of, where the parts that count are kept already."""
        new = [(table, key) for table, manifest in tables.items() for key in manifest]
        return Saved(tables, new, [*(self._parts - self._counts)], kept=lambda: None)

    def together(self, standings: Sequence[_Standing]) -> LogPosition:
        """Where the log is to stand. Raises MalformedMessage where the members before stand at different steps."""
        steps = {each.step for each in standings}
        if len(steps) != 1 or None in steps:
            raise MalformedMessage(
                "the previous members", f"are at different steps: {sorted(map(str, steps))}"
            )
        addresses: dict[str, Address] = {}
        for each in standings:
            addresses |= each.addresses
        return LogPosition(
            step=steps.pop() or 0,
            waiting={handle: added(rows, self.log.schemas[handle]) for handle, rows in self._waiting.items()},
            producers=added(self._producers, PRODUCERS),
            addresses=addresses,
        )


def _keys(counting: Counting) -> Iterator[Key]:
    """Where the parts are that count."""
    for operator, states in counting.items():
        for state in states:
            for parts in state:
                for name, _ in parts:
                    yield operator, name.encode()
