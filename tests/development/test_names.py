"""Modules that are not the same are not named alike, and by a noun; a name in a module is one thing."""

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("netchannel", "nebuli", "placement", "topology", "spark_bridge")
USUAL = {"__init__", "__main__", "errors"}
NOUNS = {
    "binding",
    "blocking",
    "connection_binding",
    "grouping",
    "hashing",
    "ordering",
    "part_encoding",
    "reclocking",
    "resharding",
    "routing",
    "scaling",
    "sharding",
    "staging",
}
"""What the field calls the thing, or, of `blocking`, the part of the public name that says how it is used."""


@pytest.mark.parametrize("package", PACKAGES)
def test_each_module_has_a_name_of_its_own(package: str) -> None:
    """Nor one that only an "s" tells from another: who looks for one finds it by its name."""
    named = defaultdict(list)
    for path in (ROOT / package).rglob("*.py"):
        if path.stem not in USUAL:
            named[path.stem.removesuffix("s")].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in named.items() if len(paths) > 1} == {}


def test_a_module_is_named_by_a_noun_and_not_by_a_participle() -> None:
    """The field has nouns that look like participles: those only."""
    named = {
        path.stem
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if path.stem.rpartition("_")[2].endswith(("ing", "ed"))
    }
    assert named == NOUNS


def test_no_module_gives_a_name_two_values() -> None:
    """The second one would count for what reads the first: so a bound once became 300 times as large."""
    found = {}
    for path in [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]:
        body = ast.parse(path.read_text("utf-8")).body
        targets = [target for each in body if isinstance(each, ast.Assign) for target in each.targets]
        names = [
            each.id
            for target in targets
            for each in ast.walk(target)
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        ]
        stored = Counter(name for name in names if name != "__all__")
        if again := [name for name, count in stored.items() if count > 1]:
            found[str(path.relative_to(ROOT))] = again
    assert found == {}


def test_no_shipped_file_has_the_id_of_a_row_of_the_plan() -> None:
    """Their readers have no table of them."""
    row = re.compile(r"\b[A-Z]{2}-[A-Z]+-\d+\b")
    found = {
        f"{path.relative_to(ROOT)}: {match[0]}"
        for package in (*PACKAGES, "pyspark_netchannel")
        for path in (ROOT / package).rglob("*")
        if path.suffix in {".py", ".md", ".proto", ".json", ".html", ".js"}
        for match in row.finditer(path.read_text("utf-8"))
    }
    assert found == set()
