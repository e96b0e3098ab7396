"""Messages of the page are messages of the code."""

from __future__ import annotations

import ast
import re

from tests.docs.markdown import ROOT

_PAGE = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
_SHOWN = re.findall(r"^\| `([^`]+)` \|", _PAGE, re.MULTILINE)
_PACKAGES = ("netchannel", "nebuli", "placement", "topology", "spark_bridge")


def _said() -> tuple[frozenset[str], str]:
    """The classes of errors, and all texts of the code but its docstrings."""
    classes, texts = set(), []
    for package in _PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            tree = ast.parse(path.read_text("utf-8"))
            statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    classes.add(node.name)
                elif (
                    isinstance(node, ast.Constant)
                    and isinstance(node.value, str)
                    and id(node) not in statements
                ):
                    texts.append(node.value)
    return frozenset(classes), "\n".join(texts)


def test_each_message_of_the_page_is_one_of_the_code() -> None:
    classes, texts = _said()
    assert [shown for shown in _SHOWN if shown not in classes and shown not in texts] == []


def test_the_page_has_messages_of_all_parts() -> None:
    assert len(_SHOWN) > 20
