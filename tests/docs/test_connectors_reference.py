"""The page about connectors lists what the contract has: all of it, and nothing else."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import pytest

import nebuli.connectors
import nebuli.connectors.testing
from tests.docs.markdown import ROOT, blocks, code, headings, table
from tests.docs.test_reference import _members, _source

PAGE = ROOT / "docs" / "reference" / "connectors.md"
STUBS = {
    node.name: node
    for block in blocks(PAGE)
    if block.language == "pyi"
    for node in ast.parse(block.text).body
    if isinstance(node, ast.ClassDef)
}
PUBLIC = {
    name: getattr(module, name)
    for module in (nebuli.connectors, nebuli.connectors.testing)
    for name in module.__all__
}


def assigned(node: ast.AST) -> list[str]:
    assert isinstance(node, ast.ClassDef)
    return [ast.unparse(each) for each in node.body if isinstance(each, ast.Assign)]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_described(name: str) -> None:
    thing: Any = PUBLIC[name]
    if name in ("DataType", "Schema", "VALUES"):
        assert f"`{name}`" in PAGE.read_text("utf-8")
    elif issubclass(thing, Exception):
        assert name in {code(row[0]) for row in table(PAGE, "Errors")}
    elif name.endswith("Conformance"):
        fixtures = {
            key: text.removeprefix("['pytest.fixture'] ").removeprefix("[] ")
            for key, text in _members(_source(thing)).items()
            if not key.startswith("test_") and key not in ("schema", "pytest_generate_tests")
        }
        shown = {key: text.removeprefix("[] ") for key, text in _members(STUBS[name]).items()}
        assert shown == fixtures
    else:
        assert name in [heading.text for heading in headings(PAGE)]
        assert _members(STUBS[name]) == _members(_source(thing))
        assert assigned(STUBS[name]) == assigned(_source(thing))


@pytest.mark.parametrize("name", [name for name in STUBS if name != "Signal"])
def test_every_member_has_a_row(name: str) -> None:
    described = {each for row in table(PAGE, name) for each in row[0].replace("`", "").split(", ")}
    assert described - {"skip"} == set(_members(STUBS[name]))


def test_every_stub_is_of_a_public_name() -> None:
    assert set(STUBS) <= set(PUBLIC)
    assert inspect.getdoc(nebuli.connectors.Source).count("skip(rows)") == 1
