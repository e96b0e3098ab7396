"""The README's figure is what was measured."""

from __future__ import annotations

import json
import re
from statistics import median

from tests.docs.markdown import ROOT, blocks


def test_its_figure_of_speed_is_the_benchmarks() -> None:
    (chart,) = (block.text for block in blocks(ROOT / "README.md") if block.text.startswith("xychart"))
    (names,) = re.findall(r"x-axis \[(.*)\]", chart)
    (bars,) = re.findall(r"bar \[(.*)\]", chart)
    shown = dict(zip(re.findall(r'"([^"]+)"', names), map(int, bars.split(", ")), strict=True))
    row = json.loads((ROOT / "docs" / "benchmarks.json").read_text("utf-8"))["rows"]["1 KiB"]
    assert shown == {name: round(median(measured["messages_per_s"]) / 1000) for name, measured in row.items()}
