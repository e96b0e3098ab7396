"""Views in a worker's metrics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from nebuli.node.service.metrics import ViewCollector
from nebuli.rpc.status import FragmentState, FragmentStatus, ViewStatus


def test_views_are_counted_by_name_and_fragment() -> None:
    """PS-EV-2: what a budget does is seen. A status goes to other machines and back as it is."""
    hours = ViewStatus("hours", ("shop", "hour"), partial=True, keys=3, bytes=900, lookups=10, hits=6,
                       upqueries=2, evictions=1)  # fmt: skip
    all_ = ViewStatus("all", ("shop",), partial=False, lookups=4, hits=4)
    status = FragmentStatus("7", "query/hours", FragmentState.RUNNING, views=(hours, all_))
    assert FragmentStatus.of(status.message) == status
    node: Any = SimpleNamespace(statuses=lambda: [status])
    found = {
        (sample.name, sample.labels["view"], sample.labels["fragment"], sample.labels["id"]): sample.value
        for family in ViewCollector(node).collect()
        for sample in family.samples
    }
    where = "query/hours", "7"
    counters = {"lookups": (10, 4), "hits": (6, 4), "upqueries": (2, 0), "evictions": (1, 0)}
    expected = {
        (f"nebuli_view_{name}_total", view, *where): value
        for name, values in counters.items()
        for view, value in zip(("hours", "all"), values, strict=True)
    }
    gauges = {"keys": (3, 0), "bytes": (900, 0)}
    expected |= {
        (f"nebuli_view_{name}", view, *where): value
        for name, values in gauges.items()
        for view, value in zip(("hours", "all"), values, strict=True)
    }
    assert found == expected
