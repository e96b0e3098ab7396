"""The metrics of a worker at ``/metrics``, for Prometheus: its fragments, its channels, itself."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

try:
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
except ImportError as error:
    raise ImportError(
        "a worker's metrics need prometheus-client, which is not installed: pip install 'nebuli[metrics]'"
    ) from error

from netchannel.prometheus import RECEIVER, SENDER, families

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    import netchannel
    from nebuli.node.worker_node import WorkerNode

__all__ = ["FragmentCollector", "NodeCollector", "ViewCollector", "serving"]

_COUNTERS = {
    "rows_in": "Rows that came into the fragment.",
    "rows_out": "Rows that its sink has sent or written.",
    "bytes_in": "Bytes, in memory, of the fragment's input.",
    "bytes_out": "Bytes, in memory, of the fragment's output.",
    "late_rows": "Rows that arrived after their window had closed, and were dropped.",
    "rows_without_time": "Rows whose time was null at a window, and were dropped.",
}
_VIEW_COUNTERS = {
    "lookups": "Keys that were looked up.",
    "hits": "Looked-up keys that were in memory; all other looked-up keys are misses.",
    "upqueries": "Upqueries that the view has sent, each for one or more keys.",
    "evictions": "Keys that were evicted.",
}
_VIEW_GAUGES = {
    "keys": "Keys that the view has, if it is partial.",
    "bytes": "Bytes, in memory, that the view holds.",
}
_LABELS = ("fragment", "id")


class FragmentCollector:
    """The fragments of a node, read when they are scraped."""

    def __init__(self, node: WorkerNode) -> None:
        self._node = node

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """A series per fragment and number, and which state each is in."""
        statuses = self._node.statuses()
        for name, text in _COUNTERS.items():
            family = CounterMetricFamily(f"nebuli_fragment_{name}", text, labels=_LABELS)
            for status in statuses:
                family.add_metric((status.fragment, status.id), getattr(status, name))
            yield family
        held = GaugeMetricFamily(
            "nebuli_fragment_state_bytes",
            "Bytes, in memory, that the fragment's operators keep.",
            labels=_LABELS,
        )
        watermarks = GaugeMetricFamily(
            "nebuli_fragment_watermark_seconds",
            "Event time that the fragment has reached, in seconds since 1970 UTC.",
            labels=_LABELS,
        )
        for status in statuses:
            held.add_metric((status.fragment, status.id), status.state_bytes)
            if status.watermark is not None:
                watermarks.add_metric((status.fragment, status.id), status.watermark / 1e6)
        yield held
        yield watermarks
        states = GaugeMetricFamily(
            "nebuli_fragment_state", "1 for the current state of the fragment.", labels=(*_LABELS, "state")
        )
        for status in statuses:
            states.add_metric((status.fragment, status.id, str(status.state)), 1)
        yield states


class ViewCollector:
    """The views of a node's fragments, read when they are scraped."""

    def __init__(self, node: WorkerNode) -> None:
        self._node = node

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """A series per view and number; of a view that is full there are no keys."""
        found = [
            ((view.name, status.fragment, status.id), view)
            for status in self._node.statuses()
            for view in status.views
        ]
        for kind, numbers in ((CounterMetricFamily, _VIEW_COUNTERS), (GaugeMetricFamily, _VIEW_GAUGES)):
            for name, text in numbers.items():
                family = kind(f"nebuli_view_{name}", text, labels=("view", *_LABELS))
                for labels, view in found:
                    family.add_metric(labels, getattr(view, name))
                yield family


class NodeCollector:
    """The channels of a node: the worker's own, and those of its fragments' processes, which are reported by these.

    A process's counters stay when it has ended; its channels end with it.
    """

    def __init__(
        self, node: WorkerNode, receiver: netchannel.ReceiverServer, sender: netchannel.SenderServer
    ) -> None:
        self._node = node
        self._receiver = receiver
        self._sender = sender

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """All metrics of `netchannel.prometheus`, as of one process."""
        running = {each.id for each in self._node.statuses() if not each.state.is_final}
        reports = self._node.reports()
        for side, own, name in (
            (SENDER, self._sender.statistics(), "sender"),
            (RECEIVER, self._receiver.statistics(), "receiver"),
        ):
            live = [getattr(report, name) for id_, report in reports.items() if id_ in running]
            over = [getattr(report, name) for id_, report in reports.items() if id_ not in running]
            yield from families(side, _together(own, live, over))


def _together(own: Any, live: Iterable[Any], over: Iterable[Any]) -> Any:
    """One `ServerStatistics` of several."""
    live = [each for each in live if each is not None]
    all_ = [own, *live, *(each for each in over if each is not None)]
    return replace(
        own,
        peers=tuple(peer for each in (own, *live) for peer in each.peers),
        channels={key: channel for each in (*live, own) for key, channel in each.channels.items()},
        connections=sum(each.connections for each in (own, *live)),
        bytes_sent=sum(each.bytes_sent for each in all_),
        bytes_received=sum(each.bytes_received for each in all_),
        loop_lag_s=max(each.loop_lag_s for each in (own, *live)),
        loop_lag_max_s=max(each.loop_lag_max_s for each in (own, *live)),
    )


@contextmanager
def serving(
    address: str, node: WorkerNode, receiver: netchannel.ReceiverServer, sender: netchannel.SenderServer
) -> Iterator[str]:
    """Serve ``/metrics`` from a thread of its own; gives the address. Raises OSError."""
    registry = CollectorRegistry()
    registry.register(NodeCollector(node, receiver, sender))
    registry.register(FragmentCollector(node))
    registry.register(ViewCollector(node))
    host, _, port = address.rpartition(":")
    server, thread = start_http_server(int(port), host.strip("[]"), registry)
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
