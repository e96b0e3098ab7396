"""What a worker shows at ``/metrics``, for Prometheus: its fragments, its channels, itself."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

try:
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
except ImportError as error:
    raise ImportError(
        "a worker's metrics need prometheus-client, which is not installed: pip install 'netchannel[metrics]'"
    ) from error

from netchannel.prometheus import ChannelCollector

if TYPE_CHECKING:
    from collections.abc import Iterator

    import netchannel
    from nebuli.worker.node import Node

__all__ = ["FragmentCollector", "serving"]

_COUNTERS = {
    "rows_in": "Rows that came into the fragment.",
    "rows_out": "Rows that its sink has sent or written.",
    "bytes_in": "Bytes, in memory, of what came into the fragment.",
    "bytes_out": "Bytes, in memory, of what was computed from them.",
    "late_rows": "Rows that came when their window was over, and were dropped.",
}
_LABELS = ("fragment", "id")


class FragmentCollector:
    """The fragments of a node, read when they are scraped."""

    def __init__(self, node: Node) -> None:
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
            "nebuli_fragment_state_bytes", "Bytes, in memory, that its operators keep.", labels=_LABELS
        )
        watermarks = GaugeMetricFamily(
            "nebuli_fragment_watermark_seconds",
            "How far event time has come in it, in seconds since 1970 UTC.",
            labels=_LABELS,
        )
        for status in statuses:
            held.add_metric((status.fragment, status.id), status.state_bytes)
            if status.watermark is not None:
                watermarks.add_metric((status.fragment, status.id), status.watermark / 1e6)
        yield held
        yield watermarks
        states = GaugeMetricFamily(
            "nebuli_fragment_state", "1 for the state that the fragment is in.", labels=(*_LABELS, "state")
        )
        for status in statuses:
            states.add_metric((status.fragment, status.id, str(status.state)), 1)
        yield states


@contextmanager
def serving(
    address: str, node: Node, receiver: netchannel.ReceiverServer, sender: netchannel.SenderServer
) -> Iterator[str]:
    """Serve ``/metrics`` from a thread of its own; gives the address. Raises OSError."""
    registry = CollectorRegistry()
    registry.register(ChannelCollector(sender, receiver))
    registry.register(FragmentCollector(node))
    host, _, port = address.rpartition(":")
    server, thread = start_http_server(int(port), host.strip("[]"), registry)
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
