"""`Transfer`: the state of a member to its successors, over a channel to each, most of it while steps continue."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import astuple
from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.dataflow.steps.saved_runs import encoded
from nebuli.steps.logs.remap import LogPosition
from nebuli.steps.member.scaling import handover_messages as say
from nebuli.steps.member.scaling.layout import channel
from netchannel import BufferPolicy, FaultPolicy, NetChannelError
from placement.stepped_plan import TIME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nebuli.steps.logs.output_log import OutputLog
    from nebuli.steps.member.member import Member
    from nebuli.steps.member.scaling.layout import Layout
    from netchannel import SenderChannel

_AWAY_S = 5.0
"""One that follows and is without a connection for so long has ended."""
_BUFFER = BufferPolicy(max_bytes=1 << 26)
_ROUNDS = 4
"""How often it is looked what is new, at most: steps may make more of it than can be given meanwhile."""
_LITTLE = 1 << 23
"""So few bytes that were new are not worth another round."""


class Transfer:
    """Begins its channels. Immutable data, runs of state and the steps of outputs, is given once."""

    def __init__(self, member: Member, layout: Layout, addresses: Sequence[str]) -> None:
        self.layout = layout
        self._member = member
        self._circuit = member.circuit
        self._sharing = member.circuit.sharing(layout.plan)
        self._given_until: dict[str, int] = {}
        """Below which step an output was given."""
        self._followers = [
            member.sender.register_channel(
                channel(layout.transfer, member.number, number),
                to=address,
                codec="bytes",
                buffer=_BUFFER,
                fault=FaultPolicy(retry=_AWAY_S),
            )
            for number, address in enumerate(addresses)
        ]

    @property
    def is_of_this_epoch(self) -> bool:
        """True if the state that it gives is still the member's."""
        return self._member.circuit is self._circuit

    async def give_ahead(self) -> None:
        """Give what is there, and what is new by then, until that is little; those that follow have it durably.

        Raises StorageError, NetChannelError.
        """
        for _ in range(_ROUNDS):
            size = await self._give_runs() + await self._give_outputs()
            await asyncio.gather(*(follower.flush() for follower in self._followers))
            if size <= _LITTLE:
                return

    async def give_rest(self) -> None:
        """Between two steps: what is new, and which of all that was given counts; all of it is durable then.

        Raises StorageError, NetChannelError.
        """
        await self._give_runs()
        await self._give_outputs()
        await self._say_what_counts()
        await self._give_sinks()
        await self._give_log()
        await asyncio.gather(*(follower.close() for follower in self._followers))

    async def abort(self) -> None:
        """Those that follow get no more."""
        why = f"member {self._member.number} does not hand over its state"

        async def leave(follower: SenderChannel) -> None:
            with suppress(NetChannelError):
                await follower.abort(why)

        await asyncio.gather(*map(leave, self._followers))

    async def _give_runs(self) -> int:
        """The runs that are there and were not given; how many bytes these are."""
        size = 0
        for node, run in self._sharing.uncut():
            for to, part in await asyncio.to_thread(self._sharing.cut, node, run):
                data = await asyncio.to_thread(encoded, part.run)
                size += data.size
                about = say.RunPart(part.operator, part.run.name.decode())
                await self._followers[to].send(data, note=say.header(about))
        return size

    async def _say_what_counts(self) -> None:
        numbers = say.numbers_as_bytes(self._circuit.numbers)
        for follower, counting in zip(self._followers, self._sharing.counting(), strict=True):
            await follower.send(numbers, note=say.header(say.OperatorNumbers()))
            await follower.send(say.counting_as_bytes(counting), note=say.header(say.RunsCount()))

    # -- outputs

    async def _give_outputs(self) -> int:
        """The steps of outputs that are kept and were not given; how many bytes these are."""
        log = self._member.outputs
        if log is None:
            return 0
        return sum([await self._give_output(log, output) for output in log.schemas])

    async def _give_output(self, log: OutputLog, output: str) -> int:
        follower = self._follower_of(output)
        first, until = log.first_of(output), log.last
        at = max(first, self._given_until.get(output, 0))
        size = 0
        while at < until:
            span = await anext(log.follow(output, at))
            for step, rows in span.updates:
                data = say.rows_as_bytes(rows)
                size += data.size
                await follower.send(data, note=say.header(say.OutputPart(output, first, step)))
            at = span.upper
        self._given_until[output] = at
        await follower.send(b"", note=say.header(say.OutputStands(output, first, at)))
        return size

    async def _give_sinks(self) -> None:
        """How far the sinks of outputs are."""
        log = self._member.outputs
        if log is not None:
            for output in log.schemas.keys() - {TIME}:
                await _give_sink(log, output, self._follower_of(output))

    def _follower_of(self, output: str) -> SenderChannel:
        return self._followers[self.layout.plan.homes[output]]

    # -- the input log

    async def _give_log(self) -> None:
        member, layout = self._member, self.layout
        standing = await member.log.standing()
        for number, follower in enumerate(self._followers):
            part = _part(standing, layout, member.number, number)
            for handle, rows in part.waiting.items():
                await follower.send(say.rows_as_bytes(rows), note=say.header(say.Waiting(handle)))
            await follower.send(say.rows_as_bytes(part.producers), note=say.header(say.ProducersKnown()))
            # The last message, which is acknowledged when all is durable.
            await follower.send(
                say.addresses_as_bytes(part.addresses),
                note=say.header(say.Stands(part.step)),
            )


def _part(standing: LogPosition, layout: Layout, before: int, member: int) -> LogPosition:
    """Return the part of a log's position that is another member's."""
    names = standing.producers.column("producer").to_pylist()
    known = pa.array([layout.producer(name) == member for name in names], pa.bool_())
    return LogPosition(
        standing.step,
        {handle: rows for handle, rows in standing.waiting.items() if layout.rows(handle, before) == member},
        standing.producers.filter(known),
        {
            source: address
            for source, address in standing.addresses.items()
            if layout.source(source) == member
        },
    )


async def _give_sink(log: OutputLog, output: str, follower: SenderChannel) -> None:
    position = await (await log.delivered(output)).last()
    if position is not None:
        await follower.send(json.dumps(astuple(position)).encode(), note=say.header(say.SinkStands(output)))
    net = await log.net(output)
    for rows in await net.rows():
        await follower.send(say.rows_as_bytes(rows), note=say.header(say.SinkRows(output)))
    if net.step:
        await follower.send(b"", note=say.header(say.SinkAdded(output, net.step)))
