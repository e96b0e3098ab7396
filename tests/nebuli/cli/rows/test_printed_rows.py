"""Rows as programs read them: bytes come back as they were."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nebuli.cli.rows.printed_rows import BYTES, as_csv, as_json_line, print_rows


@given(st.lists(st.binary(max_size=5), min_size=1, max_size=5))
def test_bytes_of_csv_are_read_back(values: list[bytes]) -> None:
    """By another reader of CSV; a quote, a line end and what is not UTF-8, too."""
    text = as_csv([["a", "b"], *((each, "x") for each in values)]).encode(errors=BYTES)
    found = pa.csv.read_csv(
        pa.BufferReader(text),
        parse_options=pa.csv.ParseOptions(newlines_in_values=True),
        convert_options=pa.csv.ConvertOptions(column_types={"a": pa.binary()}),
    )
    assert found["a"].to_pylist() == values


def test_bytes_are_in_base64_in_json(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    row = json.loads(as_json_line(["a"], [b"\xff\x00"]))
    assert base64.b64decode(row["a"]) == b"\xff\x00"
    print_rows(pa.table({"a": [b"\xff", None]}), "json")
    assert json.loads(capfdbinary.readouterr().out) == [{"a": "/w=="}, {"a": None}]


def test_files_that_are_written_have_bytes_as_they_are(tmp_path: Path) -> None:
    from nebuli.cli.rows.written_files import write_rows

    for name in ("a.csv", "a.jsonl"):
        write_rows(pa.table({"a": [b"\xff,"]}), tmp_path / name)
    assert (tmp_path / "a.csv").read_bytes() == b'a\n"\xff,"\n'
    assert (tmp_path / "a.jsonl").read_bytes() == b'{"a": "/yw="}\n'
