"""Scenarios: sources, bridges and sinks as processes, which are started, stopped, killed and reset as a YAML file says.

Every message is numbered, and checked where it arrives: none may be lost, doubled, changed or out of order.
``python -m netchannel.testing.scenarios FILE...`` runs files; `run` runs one in a test.
"""

from __future__ import annotations

try:
    import yaml as _  # noqa: F401 - what the readers need
except ImportError as error:
    raise ImportError(
        "netchannel.testing.scenarios needs PyYAML: pip install 'netchannel[testing]'"
    ) from error

from .model import Mistake, Scenario, ScenarioError, ScenarioFailed
from .running import run
from .scenario_file import load, parse

__all__ = ["Mistake", "Scenario", "ScenarioError", "ScenarioFailed", "load", "parse", "run"]
