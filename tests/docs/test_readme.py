"""The README's figures are measured ones, and it is short."""

from __future__ import annotations

import json
import re
from statistics import mean, median
from typing import Any

from tests.docs.markdown import ROOT

_TEXT = (ROOT / "README.md").read_text("utf-8")
_RUN: dict[str, Any] = json.loads((ROOT / "docs" / "benchmarks" / "channels.json").read_text("utf-8"))
_OURS = "netchannel"


def _measured(row: str, figure: str, unit: float = 1.0) -> dict[str, float]:
    """The median of each contestant, by its name."""
    return {name: median(rounds[figure]) / unit for name, rounds in _RUN["rows"][row].items()}


def _shown(label: str) -> tuple[list[float], dict[str, float]]:
    """Our figures in a row of the table, and those of others by their names."""
    (line,) = re.findall(rf"^\| {re.escape(label)}[^|]*\|(.*)\|$", _TEXT, re.MULTILINE)
    ours, others = line.replace("**", "").split("|")
    named = re.findall(r"([A-Za-z][A-Za-z. ]*?) ([\d,.]+)(?:, |$)", others.strip())
    return [_number(each) for each in ours.strip().split(", ")], {name: _number(each) for name, each in named}


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def test_its_figures_are_the_benchmarks() -> None:
    for label, row, figure, unit in (
        ("messages of 1 KiB", "1 KiB", "messages_per_s", 1000),
        ("Arrow batches of 8 MiB", "8 MiB Arrow batches, as each chooses", "MB_per_s", 1),
        ("round trip of 64 B", "round trip of 64 B", "p50_us", 1),
    ):
        (ours,), others = _shown(label)
        measured = _measured(row, figure, unit)
        measured["zenoh with shared memory"] = measured.get("zenoh, shared memory", 0)
        assert ours == round(measured[_OURS])
        assert others
        assert others == {name: round(measured[name]) for name in others}
    several, _ = _shown("messages of 64 KiB")
    measured = _measured("channels: 64 KiB over several", "messages_per_s", 1000)
    assert several == [round(measured[name], 1) for name in ("1 channel", "1 000 channels")]
    (ours,), others = _shown("the demo's query")
    took = {
        name: round(mean(each["seconds"] for each in rounds), 1)
        for name, rounds in _RUN["flights"]["rounds"].items()
    }
    assert others == {name: took[name] for name in ("DuckDB", "Polars")}
    assert ours == took["nebuli, three nodes"]


def test_it_is_read_in_ten_minutes() -> None:
    assert len(_TEXT.splitlines()) <= 120
