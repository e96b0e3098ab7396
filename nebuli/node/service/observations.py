"""A worker's reports other than its fragments: its channels, its health, and the throughput of a link to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nebuli.node.service.channel_state import channels
from nebuli.node.service.inspection import inspect
from nebuli.node.service.probe import expect, probe

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from nebuli.node.hosted_fragment import Host
    from nebuli.node.worker_node import WorkerNode
    from nebuli.rpc import worker_pb2 as wire

__all__ = ["Observed"]


@dataclass(frozen=True, slots=True)
class Observed:
    """A worker's fragments, and what these have in common. To be used on their loop."""

    node: WorkerNode
    host: Host

    def channels(self, prefix: str) -> wire.ChannelsReply:
        """How its channels are."""
        reports = self.node.running_reports()
        senders = [self.host.sender.statistics(), *(each.sender for each in reports)]
        receivers = [self.host.receiver.statistics(), *(each.receiver for each in reports)]
        return channels(senders, receivers, prefix)

    def inspect(self) -> wire.InspectReply:
        """Return the facts about the worker."""
        return inspect(self.host.receiver.address, self.host.trust)

    def expect(self, channel_id: str) -> AsyncGenerator[None, None]:
        """Take what a probe sends."""
        return expect(self.host, channel_id)

    async def probe(self, request: wire.ProbeRequest) -> wire.ProbeReply:
        """Send to another worker, and measure."""
        return await probe(self.host.sender, request)
