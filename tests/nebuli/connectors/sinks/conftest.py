"""Files for tests of sinks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with a file that is reached in several ways."""
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "in.csv").write_text("a\n1\n", "utf-8")
    (tmp_path / "link.csv").symlink_to("data/in.csv")
    (tmp_path / "folder").symlink_to("data")
    os.link(tmp_path / "data" / "in.csv", tmp_path / "hard.csv")
    return tmp_path
