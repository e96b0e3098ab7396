"""The glossary's words are the code's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.docs.markdown import ROOT, headings, table

GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
PACKAGES = ["netchannel", "nebuli", "placement", "topology", "spark_bridge"]
LAST = "Words that are not used"


def _named(kinds: tuple[type[ast.AST], ...]) -> Iterator[str]:
    """The names of what is defined in the packages, and of their modules."""
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            yield path.stem
            tree = ast.parse(path.read_text("utf-8"))
            yield from (node.name for node in ast.walk(tree) if isinstance(node, kinds))  # type: ignore[attr-defined]


def test_what_it_says_is_in_the_code_is_there() -> None:
    titles = [heading.text for heading in headings(GLOSSARY) if heading.level == 2]
    assert titles[-1] == LAST
    classes = set(_named((ast.ClassDef,)))
    told = {
        name
        for title in titles[:-1]
        for row in table(GLOSSARY, title)
        for name in re.findall(r"`(\w+)`", row[2])
    }
    assert len(told) > 40
    assert told - classes == set()


def test_no_word_has_two_rows() -> None:
    titles = [heading.text for heading in headings(GLOSSARY) if heading.level == 2]
    words = [word for title in titles[:-1] for row in table(GLOSSARY, title) for word in row[0].split(", ")]
    assert sorted(word for word in set(words) if words.count(word) > 1) == [
        "node"
    ]  # of a topology, and of channels


def test_what_is_called_otherwise_is_called_so_nowhere() -> None:
    refused = {
        word for row in table(GLOSSARY, LAST) for word in re.findall(r"^\w+|(?<=, )\w+(?=$|,)", row[0])
    }
    assert {"keeper", "keeping", "retention", "histories"} <= refused
    names = set(_named((ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)))
    parts = {part.lower(): name for name in names for part in re.findall(r"[A-Z]?[a-z]+", name)}
    assert {word: parts[word] for word in refused if word in parts} == {}
