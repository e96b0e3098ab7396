"""The streams that tests of the Nexmark example share, and a look at what a query gives of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.nexmark import files
from examples.nexmark.answers import differences

EVENTS, PER_SECOND = 30_000, 1_000
"""Half a minute: some windows of 10 seconds are whole."""


def written(folder: Path) -> Path:
    """A folder with the streams and the topologies."""
    files.write(folder, EVENTS, per_second=PER_SECOND)
    return folder


def check(folder: Path, name: str) -> None:
    """The query's result is DuckDB's; it is gone then."""
    result = folder / f"{name}.parquet"
    rows, wrong = differences(folder, name, result)
    assert (rows > 0, wrong) == (True, 0), name
    result.unlink()


def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a module's tests."""
    return written(tmp_path_factory.mktemp("nexmark"))
