"""The page about logs and the environment has what the code has: loggers and variables."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.docs.markdown import ROOT, table

_PAGE = ROOT / "docs" / "reference" / "environment.md"
_PACKAGES = ("netchannel", "spark_bridge", "pyspark_netchannel", "topology", "placement", "nebuli")
_VARIABLE = re.compile(r"_?[A-Z][A-Z0-9]+(?:_[A-Z0-9]+)*")
_VALUES = {"ERROR", "FILE", "MIB", "SINGLE_THREADED", "TIMESTAMP_LTZ", "UTC"}
"""Texts of these modules that look like variables, and are none."""


@cache
def _modules() -> dict[Path, str]:
    return {
        path: path.read_text("utf-8")
        for package in _PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }


def _shown(title: str) -> set[str]:
    return {name for row in table(_PAGE, title) for name in re.findall(r"`([^`]+)`", row[0])}


def test_variables_are_those_that_the_code_reads_or_sets() -> None:
    """All texts of modules with the environment count, also those that reach it through a name."""
    found = {
        node.value
        for text in _modules().values()
        if "environ" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _VARIABLE.fullmatch(node.value)
    }
    assert {"XDG_STATE_HOME", "AWS_ENDPOINT", "HADOOP_CONF_DIR"} <= found
    assert _shown("Variables") == (found | _single_threaded()) - _VALUES


def _single_threaded() -> set[str]:
    from nebuli.node.fragment.worker_template import SINGLE_THREADED

    return set(SINGLE_THREADED)


def test_loggers_are_those_of_the_code() -> None:
    shown = _shown("Loggers")
    used = {name: _closest(name, shown) for name in _loggers()}
    assert [name for name, logger in used.items() if not logger] == []
    assert shown - set(used.values()) == set()


def _closest(name: str, shown: set[str]) -> str:
    """The longest name that the logger has or is below."""
    return max((each for each in shown if f"{name}.".startswith(f"{each}.")), key=len, default="")


def _loggers() -> set[str]:
    names = set()
    for path, text in _modules().items():
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for given in re.findall(r"getLogger\(\s*([^)\s]+)\s*\)", text):
            if given == "__name__":
                names.add(module)
            elif given.startswith('"'):
                names.add(given.strip('"'))
    return names
