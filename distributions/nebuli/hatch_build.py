"""The contents of a distribution of nebuli.

Packages of the repository's top level, or of the source distribution's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = ("nebuli", "placement", "topology")


class Packages(BuildHookInterface[Any]):
    """Adds those of the repository; the source distribution's own are found by the table for wheels."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Nothing for an editable installation, which has the repository's top level on its path."""
        here = Path(self.root)
        if version != "editable" and not (here / PACKAGES[0]).is_dir():
            build_data["force_include"] |= {str(here.parents[1] / name): name for name in PACKAGES}
