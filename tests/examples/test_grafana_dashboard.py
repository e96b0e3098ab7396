"""The dashboard for Grafana asks for metrics that workers, circuits and channels export, by labels that these have."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import CollectorRegistry, generate_latest

import netchannel
from nebuli.http import circuit_figures
from nebuli.node.service.metrics import FragmentCollector, ViewCollector
from netchannel.prometheus import ChannelCollector
from tests.docs.markdown import ROOT

DASHBOARD = json.loads((ROOT / "examples" / "monitoring" / "grafana-dashboard.json").read_text("utf-8"))
PANELS = [each for each in DASHBOARD["panels"] if each["type"] != "row"]
STATS: dict[str, Any] = {
    "name": "q", "paused": False, "epoch": 1, "next_step": 7, "complete": 7, "checkpoints": [{"version": 1, "step": 5}],
    "timings": {
        "steps": 7, "step_seconds": 0.5, "checkpoints": 1, "checkpoint_seconds": 0.25, "failed_checkpoints": 2,
        "checkpoint_age_seconds": 3.5, "input_lag_seconds": 0.0,
    },
    "operators": {}, "members": [{"member": 0, "away": True}],
}  # fmt: skip


async def exported() -> set[str]:
    """The names of all samples."""
    registry = CollectorRegistry()
    node = cast("Any", SimpleNamespace(statuses=list))
    async with netchannel.SenderServer() as sender, netchannel.ReceiverServer() as receiver:
        for each in (FragmentCollector(node), ViewCollector(node), ChannelCollector(sender, receiver)):
            registry.register(each)
        text = generate_latest(registry).decode() + "\n".join(circuit_figures._lines(STATS))
    found = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    return {name for name, kind in found if kind != "summary"} | {
        f"{name}_{part}" for name, kind in found if kind == "summary" for part in ("sum", "count")
    }


async def test_every_metric_of_the_dashboard_is_exported() -> None:
    asked = [target["expr"] for panel in PANELS for target in panel["targets"]]
    names = {name for each in asked for name in re.findall(r"\b(?:nebuli|netchannel)_\w+", each)}
    assert len(names) >= 25
    assert names <= await exported()


def test_every_panel_is_complete_and_none_is_on_another() -> None:
    """Each asks the Prometheus that is chosen, for the jobs that are chosen."""
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
        assert at["x"] + at["w"] <= 24
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in PANELS:
        assert panel["datasource"]["uid"] == "${source}"
        for target in panel["targets"]:
            assert target["expr"].count("(") == target["expr"].count(")")
            series = re.findall(r"\b(?:nebuli|netchannel)_\w+(\{[^}]*\})?", target["expr"])
            assert set(series) == {'{job=~"$job"}'}, target["expr"]


def test_durations_and_lags_of_a_circuit_are_those_that_its_coordinator_counts() -> None:
    lines = [*circuit_figures._lines(STATS)]
    assert 'nebuli_circuit_step_duration_seconds_sum{circuit="q"} 0.5' in lines
    assert 'nebuli_circuit_step_duration_seconds_count{circuit="q"} 7' in lines
    assert 'nebuli_circuit_checkpoint_duration_seconds_sum{circuit="q"} 0.25' in lines
    assert 'nebuli_circuit_failed_checkpoints_total{circuit="q"} 2' in lines
    assert 'nebuli_circuit_checkpoint_age_seconds{circuit="q"} 3.5' in lines
    assert 'nebuli_circuit_checkpoint_lag_steps{circuit="q"} 2' in lines
