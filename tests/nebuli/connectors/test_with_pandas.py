"""A connector that uses pandas, which our own workers do without."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.commands import nebuli
from tests.support.ports import free_addresses

pytestmark = pytest.mark.processes

SETTINGS = dedent("""
    from typing import Literal

    from nebuli.connectors import SourceConnector


    class FrameSource(SourceConnector):
        implementation = "frames_work:Reading"
        repeatable = True
        type: Literal["Frame"]
""")
WORK = dedent("""
    import pandas as pd
    import pyarrow as pa

    from nebuli.connectors import Signal, Source
    from nebuli.dataflow import arrow_schema, insertions


    class Reading(Source):
        def __init__(self, settings, columns, wake):
            self.schema = arrow_schema(columns)
            self.frames = [pd.Series([1.5, float("nan"), 2.5])]

        def open(self):
            pass

        def close(self, reason):
            pass

        def poll(self):
            if not self.frames:
                return Signal.END
            # Arrow takes NaN of a Series for a null, where it knows pandas.
            return insertions(pa.record_batch([pa.array(self.frames.pop())], schema=self.schema))
""")
TOPOLOGY = """\
logical: [{{name: numbers, schema: [{{name: n, type: float64}}]}}]
nodes:
  - address: {address}
    sinks: [{{name: out, type: CSV, path: out.csv}}]
    physical: [{{logical: numbers, type: Frame}}]
"""
QUERY = {
    "operators": [
        {"id": "numbers", "type": "source", "logical": "numbers"},
        {"id": "out", "type": "sink", "input": "numbers", "sink": "out"},
    ]
}


@pytest.mark.parametrize("options", [[], ["--stepped", "--state", "state"]], ids=["free", "in steps"])
def test_its_series_mean_what_they_do_anywhere(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "frames.py").write_text(SETTINGS, "utf-8")
    (tmp_path / "frames_work.py").write_text(WORK, "utf-8")
    metadata = tmp_path / "frames-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: frames\nVersion: 1.0\n", "utf-8")
    (metadata / "entry_points.txt").write_text("[nebuli.sources]\nFrame = frames:FrameSource\n", "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "topology.yaml").write_text(TOPOLOGY.format(address=free_addresses(1)[0]), "utf-8")
    (tmp_path / "query.json").write_text(json.dumps(QUERY), "utf-8")
    files = tmp_path / "topology.yaml", tmp_path / "query.json"
    ended = nebuli("run", *options, *files, directory=tmp_path)
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "out.csv").read_text("utf-8").splitlines() == ['"n"', "1.5", "2.5", ""]
