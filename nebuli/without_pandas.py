"""Processes without pandas, which Arrow imports, where it is there, to see whether a list is one of its own."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING

from topology import SINKS, SOURCES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType


def hide_pandas() -> None:
    """Have this process start without pandas, which takes a fifth of what it takes to start at all.

    Arrow takes it for not installed, as long as all connectors are ours: one of another package may use it.
    """
    if not any(isinstance(each, _WithoutPandas) for each in sys.meta_path):
        sys.meta_path.insert(0, _WithoutPandas())


class _WithoutPandas(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Raise for pandas; else pass over."""
        if name == "pandas" and not (SOURCES.packages or SINKS.packages):
            raise ModuleNotFoundError("pandas is hidden in this process, so that it starts faster", name=name)
