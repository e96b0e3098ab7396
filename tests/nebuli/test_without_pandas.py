"""Processes that are forked from one that has imported all can still take pandas for there, if a connector needs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

IMPORTS = """
import sys
from importlib.abc import MetaPathFinder

class Asked(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "pandas":
            raise SystemExit("an import has Arrow look for pandas")

sys.meta_path.insert(0, Asked())
import nebuli.node.fragment.worker_template, nebuli.cli.local_template, nebuli.cli.stepped.run_in_steps
import nebuli.steps.local.member_process, nebuli.node.fragment.fragment_process
import nebuli.ingestion.running.instance_process
from nebuli.connectors.provider import import_built_in
import_built_in()
"""


def test_no_import_has_arrow_look_for_pandas() -> None:
    """Arrow looks once: a process that did so before a package's connectors were there would go without for good."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], check=False, capture_output=True, encoding="utf-8", timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
