"""The line that shows how far long work is: on a terminal only."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nebuli.cli.row_progress import RowProgress
from tests.support.ports import free_addresses
from tests.support.terminals import on_terminal

NEBULI = [sys.executable, "-m", "nebuli"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "shown", "is_shown"),
    [
        (Terminal(), {}, True, True),
        (io.StringIO(), {}, True, False),
        (Terminal(), {"NEBULI_LOG_LEVEL": "error"}, True, False),
        (Terminal(), {"TERM": "dumb"}, True, False),
        (Terminal(), {}, False, False),
    ],
    ids=["terminal", "pipe", "quiet", "dumb", "another writer"],
)
def test_the_line_is_on_a_terminal_only_and_gone_at_the_end(
    stream: io.StringIO,
    environment: dict[str, str],
    shown: bool,
    is_shown: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in ({"TERM": "xterm", "NEBULI_LOG_LEVEL": "warning"} | environment).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stderr", stream)
    with RowProgress("inserted [a]", 2_000, shown=shown) as progress:
        progress.update(1_000)
    drawn = stream.getvalue()
    assert ("inserted [a]" in drawn and "1,000 of 2,000 rows" in drawn) is is_shown
    if is_shown:
        assert drawn.endswith(("\x1b[2K", "\x1b[?25h"))  # the line is erased, the cursor back
    else:
        assert not drawn


TOPOLOGY = """
logical: [{{name: rows, schema: [{{name: n, type: int64}}]}}]
nodes:
  - address: {address}
    physical: [{{logical: rows, type: Parquet, path: rows.parquet}}]
    sinks: [{{name: out, type: Parquet, path: out.parquet}}]
"""


def write(directory: Path) -> None:
    (address,) = free_addresses(1)
    pq.write_table(pa.table({"n": pa.array(range(250_000), pa.int64())}), directory / "rows.parquet")
    (directory / "topology.yaml").write_text(TOPOLOGY.format(address=address), "utf-8")


@pytest.mark.processes
@pytest.mark.story
def test_a_query_in_steps_shows_its_rows_and_steps_on_a_terminal_only(tmp_path: Path) -> None:
    write(tmp_path)
    query = ["run", "topology.yaml", "-e", "INSERT INTO out SELECT n FROM rows", "--stepped", "--state"]
    code, drawn = on_terminal([*NEBULI, *query, "shown"], tmp_path)
    assert code == 0, drawn
    shown = re.findall(r"([0-9,]+) steps? made, read ([0-9,]+) rows", drawn)
    assert shown[-1][1] == "250,000"
    assert f"all inputs have ended after {shown[-1][0]} step" in drawn
    assert drawn.rstrip().endswith("done")
    piped = subprocess.run(
        [*NEBULI, *query, "piped"], cwd=tmp_path, capture_output=True, encoding="utf-8", check=True
    )
    assert "all inputs have ended" in piped.stderr
    assert "made, read" not in piped.stderr
    assert "\x1b" not in piped.stderr


@pytest.mark.processes
@pytest.mark.story
def test_long_commands_show_it_on_a_terminal_and_keep_their_lines(tmp_path: Path) -> None:
    write(tmp_path)
    query = ["run", "topology.yaml", "-e", "INSERT INTO out SELECT n FROM rows"]
    code, drawn = on_terminal([*NEBULI, *query], tmp_path)
    assert code == 0, drawn
    assert "1 of 1 fragment finished, read" in drawn
    assert "250,000 rows" in drawn
    assert "1 worker ready" in drawn
    assert drawn.rstrip().endswith("done")
    piped = subprocess.run([*NEBULI, *query], cwd=tmp_path, capture_output=True, encoding="utf-8", check=True)
    assert "finished, read" not in piped.stderr
    assert "\x1b" not in piped.stderr
    subprocess.run(
        [*NEBULI, "collection", "create", "kept", "--schema", "n: int64", "--store", "store"],
        cwd=tmp_path,
        check=True,
    )
    code, drawn = on_terminal(
        [*NEBULI, "collection", "insert", "kept", "rows.parquet", "--store", "store"], tmp_path
    )
    assert code == 0, drawn
    assert "of 250,000 rows" in drawn
