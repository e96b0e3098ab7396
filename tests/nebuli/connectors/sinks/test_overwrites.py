"""No file that a query reads is written by it, and none is written twice, by whichever way a path leads to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nebuli.connectors.sinks.overwrites import SinkIsSource, check_files

SAME = [
    ("data/in.csv", "data/in.csv"),
    ("data/in.csv", "./data/../data/in.csv"),
    ("data/in.csv", "link.csv"),
    ("data/in.csv", "hard.csv"),
    ("folder/new.csv", "data/new.csv"),
    ("data/in.csv", "data/*.csv"),
    ("hard.csv", "data/*.csv"),
    ("data/new.csv", "data/*.csv"),
    ("data/deep/new.csv", "data/**/*.csv"),
]
OTHER = [
    ("data/out.csv", "data/in.csv"),
    ("data/deep/new.csv", "data/*.csv"),
    ("out/new.csv", "data/*.csv"),
    ("data/new.parquet", "data/*.csv"),
]


@pytest.mark.parametrize(("written", "read"), SAME)
def test_a_sink_that_is_a_source_is_refused(here: Path, written: str, read: str) -> None:
    with pytest.raises(SinkIsSource, match="is read by the same query: give the sink another path"):
        check_files(["other.csv", read], [written], here)
    with pytest.raises(SinkIsSource):
        check_files([str(here / read)], [str(here / written)], Path("/"))


@pytest.mark.parametrize(("written", "read"), OTHER)
def test_other_files_are_not(here: Path, written: str, read: str) -> None:
    check_files([read], [written], here)


@pytest.mark.parametrize(("one", "other"), [pair for pair in SAME if "*" not in pair[1]])
def test_two_sinks_of_one_file_are_refused(here: Path, one: str, other: str) -> None:
    with pytest.raises(SinkIsSource, match="is written by the same query"):
        check_files([], [one, other], here)


def test_what_keeps_nothing_may_be_written_twice(here: Path) -> None:
    check_files([], ["/dev/null", "/dev/null"], here)
