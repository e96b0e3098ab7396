"""Rows that commands print as JSON are JSON, whatever is in them."""

from __future__ import annotations

import io
import json
import sys

import pyarrow as pa
import pytest

from nebuli.cli.rows.printed_rows import as_json_line, print_rows


def test_numbers_that_json_does_not_have_are_texts(capsys: pytest.CaptureFixture[str]) -> None:
    """As over HTTP; Python's own reader would take NaN, which no other does."""
    values = [float("nan"), float("inf"), float("-inf"), 0.5, None]
    expected = ["NaN", "Infinity", "-Infinity", 0.5, None]
    print_rows(pa.table({"x": values}), "json")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    printed = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert [row["x"] for row in printed] == expected
    line = as_json_line([*"abcde"], values)
    assert [*json.loads(line, parse_constant=refuse).values()] == expected


@pytest.mark.parametrize(
    ("form", "expected"), [("csv", "größe\n日本\n"), ("json", '[\n  {\n    "größe": "日本"\n  }\n]\n')]
)
def test_what_programs_read_is_utf_8_whatever_the_terminal(
    monkeypatch: pytest.MonkeyPatch, form: str, expected: str
) -> None:
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, "latin-1"))
    print_rows(pa.table({"größe": ["日本"]}), form)
    assert printed.getvalue().decode("utf-8") == expected


def test_csv_tells_nulls_from_empty_texts(capsys: pytest.CaptureFixture[str]) -> None:
    """Read back, each is what it was; so is a text with quotes, commas and line ends."""
    print_rows(pa.table({"a": [None, "", 'x"y', "a,b", "c\r\n", " "]}), "csv")
    assert capsys.readouterr().out == 'a\n\n""\n"x""y"\n"a,b"\n"c\r\n"\n \n'
