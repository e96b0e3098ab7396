"""``python -m tests.gate.left_out``: count the tests that the gate leaves to `make test-all`, by rows of a page."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.gate.choice import LEFT_OUT, is_named, names

PAGE = Path(__file__).parents[2] / "docs" / "development" / "tests.md"
TITLE = "## Tests that the gate leaves to make test-all"

Groups = tuple[str, ...]
"""Marks, and folders that end in a slash, of one row."""


def table() -> dict[Groups, int]:
    """Read the page's table: the number of tests of each row."""
    _, _, section = PAGE.read_text("utf-8").partition(f"{TITLE}\n")
    rows = (line.split("|") for line in section.partition("\n## ")[0].splitlines() if line.startswith("| `"))
    return {tuple(re.findall("`(.+?)`", row[1])): int(row[2]) for row in rows}


def row_of(test: str, marks: Iterable[str], rows: Iterable[Groups]) -> Groups | None:
    """Return the first row that has a test, or a line of `left_out.txt`."""
    for row in rows:
        if any(test.startswith(each) if each.endswith("/") else each in marks for each in row):
            return row
    return None


def count() -> Counter[Groups | None]:
    """Collect all tests, in this process; count those that the gate leaves out, by row."""
    rows, left_out = table(), names(LEFT_OUT.read_text("utf-8"))
    found: Counter[Groups | None] = Counter()

    class Count:
        def pytest_collection_finish(self, session: pytest.Session) -> None:
            for item in session.items:
                marks = {mark.name for mark in item.iter_markers()}
                if "timed" in marks or is_named(item.nodeid, left_out):
                    found[row_of(item.nodeid, marks, rows)] += 1

    pytest.main(["--collect-only", "-qqq", "-p", "no:cacheprovider", "--capture=no", "tests"], [Count()])
    return found


if __name__ == "__main__":
    for row, number in count().items():
        sys.stderr.write(f"{number:5} {', '.join(row or ('in no row',))}\n")
