"""Notices of a worker to the neighbours of a dead fragment, which cannot send them itself."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import netchannel
from nebuli.dataflow import zset
from nebuli.dataflow.types import arrow_schema
from nebuli.free import engine_of
from nebuli.limits import DEFAULT_MAX_STATE_BYTES
from placement.partial.node_plan import planned_of
from placement.plan import Fragment, NetworkSink, NetworkSource

if TYPE_CHECKING:
    import pyarrow as pa

    from placement.stepped_plan import AnyFragment

__all__ = ["close_inputs", "fail_output"]


async def close_inputs(fragment: AnyFragment, receiver: netchannel.ReceiverServer, reason: str) -> None:
    """Notify present and later senders to the fragment that nothing is wanted any more, with the reason."""
    for operator in fragment.operators:
        if isinstance(operator, NetworkSource):
            schema = zset.weighted(arrow_schema(operator.columns))
            with suppress(
                netchannel.ChannelInUse
            ):  # another process has it: then it is not this fragment's any more
                await receiver.register_channel(operator.channel, schema=schema).close(reason)


async def fail_output(fragment: AnyFragment, sender: netchannel.SenderServer, reason: str) -> None:
    """Notify the fragment's reader that it has failed, with the reason; an absent reader is not waited for long."""
    sinks = [each for each in fragment.operators if isinstance(each, NetworkSink)]
    if isinstance(fragment, Fragment):
        await asyncio.gather(*(_fail(each, _schema_of(fragment, each), sender, reason) for each in sinks))


async def _fail(
    operator: NetworkSink, schema: pa.Schema, sender: netchannel.SenderServer, reason: str
) -> None:
    with suppress(netchannel.NetChannelError):  # the stream has ended in another way, or there is no reader
        channel = sender.register_channel(
            operator.channel, to=operator.address, schema=schema, stream=operator.channel, replayable=True
        )
        await channel.abort(reason)


def _schema_of(fragment: Fragment, sink: NetworkSink) -> pa.Schema:
    if fragment.views:
        return zset.weighted(arrow_schema(planned_of(fragment).schemas[sink.input]))
    return engine_of(fragment, DEFAULT_MAX_STATE_BYTES).schema
