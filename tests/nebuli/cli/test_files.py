"""Files that a query writes are compared with each other, and with those that it reads, before any is opened."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
import pytest

from nebuli.cli.files import refuse_overwritten
from nebuli.cli.query_argument import InlineStatement
from placement import parse_query
from topology import parse_topology

LATE = {"id": "w", "type": "window", "input": "s", "time": "t", "size": "1 minute", "late": "late.csv"}


def refuse(directory: Path, *paths: str) -> None:
    """Compare the files of a query with a source, a file of late rows, and a sink at each path, at a node each."""
    nodes = [
        {
            "address": f"127.0.0.1:{index + 1}",
            "sinks": [{"name": f"sink{index}", "type": "CSV", "path": path}],
        }
        for index, path in enumerate(paths)
    ]
    source = {"logical": "rows", "type": "CSV", "path": "in.csv"}
    nodes.append({"address": "127.0.0.1:9", "physical": [source]})
    logical = {"name": "rows", "schema": [{"name": "t", "type": "timestamp"}]}
    sinks = [
        {"id": f"o{index}", "type": "sink", "input": "w", "sink": f"sink{index}"}
        for index in range(len(paths))
    ]
    operators = [{"id": "s", "type": "source", "logical": "rows"}, LATE, *sinks]
    refuse_overwritten(
        parse_topology(json.dumps({"logical": [logical], "nodes": nodes}), "topology.yaml"),
        parse_query(json.dumps({"operators": operators}), "query"),
        directory,
        given=[str(directory / "topology.yaml"), InlineStatement("topology.yaml")],
    )


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "out.csv").write_text("t\n", "utf-8")
    (tmp_path / "link.csv").symlink_to("out.csv")
    os.link(tmp_path / "out.csv", tmp_path / "hard.csv")
    return tmp_path


@pytest.mark.parametrize(
    ("paths", "how"),
    [
        (("out.csv", "out.csv"), "out.csv is written by"),
        (("out.csv", "./out.csv"), "out.csv, which is the same file as ./out.csv, is written by"),
        (("out.csv", "link.csv"), "out.csv, which is the same file as link.csv, is written by"),
        (("link.csv", "hard.csv"), "link.csv, which is the same file as hard.csv, is written by"),
        (
            ("new/out.csv", "new/../new/out.csv"),
            "new/out.csv, which is the same file as new/../new/out.csv, is wr",
        ),
        (("out.csv", "late.csv"), "late.csv is written by"),
        (("out.csv", "in.csv"), "in.csv is read by"),
        (
            ("out.csv", "new/../topology.yaml"),
            r"new/\.\./topology.yaml, which is the same file as /.*, is read by",
        ),
    ],
)
def test_two_sinks_of_one_file_are_refused(here: Path, paths: tuple[str, str], how: str) -> None:
    with pytest.raises(click.ClickException, match=f"^{how}"):
        refuse(here, *paths)


def test_sinks_of_several_files_are_not(here: Path) -> None:
    refuse(here, "out.csv", "new.csv", "/dev/null")
