"""Modules import each other in no circle: not for types alone, and not within a function."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = [
    "benchmarks",
    "examples",
    "nebuli",
    "netchannel",
    "placement",
    "pyspark_netchannel",
    "spark_bridge",
    "topology",
]


def module_name(root: Path, path: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def imported(name: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Every module that is imported anywhere in this one; a package only where a name of its own is."""
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else None
            source = ".".join(filter(None, (above, node.module)))
            for alias in node.names:
                submodule = f"{source}.{alias.name}"
                yield submodule if submodule in known else source


def circle(root: Path) -> list[str]:
    """The modules of a circle, each of which imports the next; empty if there is none."""
    paths = (path for package in PACKAGES for path in (root / package).rglob("*.py"))
    known = {module_name(root, path): path for path in paths}
    graph = {name: known.keys() & set(imported(name, path, known)) - {name} for name, path in known.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert " imports ".join(circle(ROOT)) == ""


@pytest.mark.parametrize(
    "back",
    [
        "from netchannel.core import link",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .core.link import Link",
        "def late():\n    import netchannel.core.link",
    ],
)
def test_a_circle_is_found(tmp_path: Path, back: str) -> None:
    (tmp_path / "netchannel/core").mkdir(parents=True)
    (tmp_path / "netchannel/core/link.py").write_text("from ..errors import NetChannelError", "utf-8")
    (tmp_path / "netchannel/errors.py").write_text("import struct", "utf-8")
    assert circle(tmp_path) == []
    (tmp_path / "netchannel/errors.py").write_text(back, "utf-8")
    assert set(circle(tmp_path)) == {"netchannel.errors", "netchannel.core.link"}
