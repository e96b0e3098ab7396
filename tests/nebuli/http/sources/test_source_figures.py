"""What Prometheus is told of sources, as its own client reads it."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from nebuli.http.sources.source_figures import source_metrics
from nebuli.ingestion.source_status import HeldBack, SourceStatus
from tests.nebuli.cli.rows.test_source_views import INSTANCE, NOW, RAW, STATUS


def read(*found: tuple[str, SourceStatus]) -> dict[tuple[str, frozenset[str]], float]:
    """Values by the metric's name and the values of its labels."""
    families = text_string_to_metric_families(source_metrics(found, NOW))
    samples = [sample for each in families for sample in each.samples]
    values = {(each.name, frozenset(each.labels.values())): each.value for each in samples}
    assert len(values) == len(samples)
    return values


def at(name: str, *labels: str) -> tuple[str, frozenset[str]]:
    return f"nebuli_source_{name}", frozenset({"kept", "sales", *labels})


def test_figures_of_a_source() -> None:
    """ST-AUX-1: the lag by raw source, in its unit and in seconds; instances by how they fare, and ages."""
    instances = [
        INSTANCE,
        replace(INSTANCE, instance="2", health="ended"),
        replace(INSTANCE, instance="3", at=NOW - 60_000),
        replace(INSTANCE, instance="4", health="conflict"),
    ]
    holds = [
        HeldBack("sales", "mine", NOW - 60_000, None),
        HeldBack("sales.raw", "history", NOW - 600_000, None),
        HeldBack("sales", "new", 0, None),
    ]
    values = read(("kept", replace(STATUS, instances=instances, holds=holds)))
    assert values == {
        at("lag", "data", "bytes"): 28,
        at("answers", "data"): 1,
        at("lag_seconds"): 1.501,
        at("remap_upper_seconds"): (NOW - 500) / 1000,
        at("upper_seconds"): (NOW - 1_500) / 1000,
        at("replicas"): 2,
        at("supervisors"): 1,
        at("instances", "starting"): 0,
        at("instances", "running"): 1,
        at("instances", "waiting"): 0,
        at("instances", "conflict"): 1,
        at("instances", "ended"): 1,
        at("instances", "gone"): 1,
        at("held_up"): 0,
        at("error_age_seconds"): 300,
        at("hold_age_seconds", "mine"): 60,
        at("hold_age_seconds", "sales.raw", "history"): 600,
    }


def test_what_is_not_known_has_no_value() -> None:
    away = replace(RAW, ends=None, lag=None, error="it is away")
    new = replace(STATUS, raw_sources={"data": away}, lag_ms=None, last_error_at=None, holds=[])
    values = read(("kept", new), ("other", STATUS))
    assert values[at("answers", "data")] == 0
    known = [
        "answers",
        "remap_upper_seconds",
        "upper_seconds",
        "replicas",
        "instances",
        "supervisors",
        "held_up",
    ]
    assert {name for name, labels in values if "kept" in labels} == {
        f"nebuli_source_{each}" for each in known
    }


def test_an_error_that_holds_is_told_apart_from_one_that_is_over() -> None:
    held = replace(STATUS, health="waiting", error=STATUS.last_error)
    values = read(("kept", held), ("other", STATUS))
    other = "nebuli_source_held_up", frozenset({"other", "sales"})
    assert (values[at("held_up")], values[other]) == (1, 0)


def test_a_name_with_quotes_is_one() -> None:
    odd = replace(STATUS, holds=[HeldBack("sales", 'a "reader"\\', NOW - 1_000, None)])
    assert read(("kept", odd))[at("hold_age_seconds", 'a "reader"\\')] == 1
