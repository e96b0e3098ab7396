"""Figures of sources, for Prometheus: times are in seconds, and since 1970 where they are not ages."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, get_args

from nebuli.http.prometheus_text import family
from nebuli.ingestion.entries import Health

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nebuli.ingestion.source_status import SourceStatus

    Series = list[tuple[Mapping[str, str], float]]

GONE = "gone"
"""The health of an instance that has not reported for a while, nor its end."""
_HEALTHS = (*get_args(Health), GONE)


def source_metrics(found: Sequence[tuple[str, SourceStatus]], now: int) -> str:
    """Return the metrics of sources, each with its store's name; ``now`` is in milliseconds since 1970.

    Unknown figures have no value: the lag while a raw source does not answer, and ages of events that never happened.
    """
    return "".join(f"{line}\n" for line in _lines(found, now))


def _lines(found: Sequence[tuple[str, SourceStatus]], now: int) -> Iterator[str]:
    labelled = [({"store": store, "source": each.name}, each) for store, each in found]
    raw = [
        ({**labels, "raw": name}, each)
        for labels, status in labelled
        for name, each in status.raw_sources.items()
    ]
    yield from _gauge(
        "lag",
        "the amount that a raw source has beyond its recorded bindings, in the unit of this source",
        [({**labels, "unit": each.unit}, each.lag) for labels, each in raw if each.lag is not None],
    )
    yield from _gauge(
        "answers",
        "1 if a raw source reports how much data it has",
        [(at, int(each.ends is not None)) for at, each in raw],
    )
    yield from _gauge(
        "lag_seconds",
        "age of the time below which the collection is complete",
        [(at, each.lag_ms / 1000) for at, each in labelled if each.lag_ms is not None],
    )
    yield from _gauge(
        "remap_upper_seconds",
        "the time below which bindings are recorded",
        [(at, each.remap_upper / 1000) for at, each in labelled if each.raw_sources],
    )
    yield from _gauge(
        "upper_seconds",
        "the time below which the collection is complete",
        [(at, each.upper / 1000) for at, each in labelled],
    )
    yield from _gauge(
        "replicas",
        "how many instances each host should have",
        [(at, each.replicas) for at, each in labelled],
    )
    yield from _gauge(
        "instances",
        "how many instances there are, by health",
        [
            ({**at, "health": health}, number)
            for at, each in labelled
            for health, number in _healths(each, now).items()
        ],
    )
    yield from _gauge(
        "supervisors",
        "how many hosts have a process that restarts instances of the source",
        [(at, len(each.supervisors)) for at, each in labelled],
    )
    yield from _gauge(
        "held_up",
        "1 if an error stops a running instance from making progress now",
        [(at, int(each.error is not None)) for at, each in labelled],
    )
    yield from _gauge(
        "undecoded",
        "how many messages are in the source's collection of errors",
        [(at, each.undecoded) for at, each in labelled if each.undecoded is not None],
    )
    yield from _gauge(
        "error_age_seconds",
        "how long ago the last error occurred, even if it is resolved",
        [(at, (now - each.last_error_at) / 1000) for at, each in labelled if each.last_error_at is not None],
    )
    yield from _gauge(
        "hold_age_seconds",
        "age of the earliest time at which a hold keeps a collection readable",
        [
            ({**at, "collection": hold.collection, "hold": hold.name}, (now - hold.time) / 1000)
            for at, each in labelled
            for hold in each.holds
            if hold.time  # one at 0 has no rows yet
        ],
    )


def _healths(status: SourceStatus, now: int) -> dict[str, int]:
    found = Counter(
        each.health if each.health == "ended" or each.is_living(now) else GONE for each in status.instances
    )
    return {health: found[health] for health in _HEALTHS}


def _gauge(name: str, text: str, series: Series) -> Iterator[str]:
    return family(f"nebuli_source_{name}", "gauge", text, series)
