"""Each file and pipe of text says its encoding, or the locale would decide; ruff sees where a path is plainly one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (
    *("benchmarks", "distributions", "examples", "nebuli", "netchannel", "placement", "pyspark_netchannel"),
    *("spark_bridge", "tests", "topology"),
)
PLACES = {"read_text": 0, "write_text": 1, "FileHandler": 2, "fdopen": 3}
"""Which of the positional arguments is the encoding."""
DOUBTFUL = re.compile(
    rf"""\b({"|".join(PLACES)})\((?!"[rwax]?b|.*(utf-8|encoding=))"""
    r"""|\.open(\(["'\nm](?![rwax]?b|.*encoding=)|\(\) as|\(\):)|\b(text|universal_newlines)=True"""
)
"""A call that may be without one; only files that have such a call are parsed, which takes long."""


def lines_without_encoding(source: str) -> list[int]:
    tree = ast.parse(source)
    entered = {
        item.context_expr
        for block in ast.walk(tree)
        if isinstance(block, ast.With)
        for item in block.items
        if isinstance(item.context_expr, ast.Call)
    }
    return sorted(
        {
            call.lineno
            for call in ast.walk(tree)
            if isinstance(call, ast.Call)
            and not any(each.arg in ("encoding", None) for each in call.keywords)
            and takes_locale(call, entered=call in entered)
        }
    )


def takes_locale(call: ast.Call, *, entered: bool) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if any(each.arg in ("text", "universal_newlines") and is_true(each.value) for each in call.keywords):
        return True
    if name == "open" and isinstance(call.func, ast.Attribute):  # a path's, or that of something else
        modes = [*call.args[:1], *(each.value for each in call.keywords if each.arg == "mode")]
        return is_text(modes[0]) if modes else entered and not call.keywords
    if name == "fdopen":
        return not call.args[1:] or is_text(call.args[1])
    return name in PLACES and len(call.args) <= PLACES[name]


def is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and bool(re.fullmatch("[rwax]?[t+]*", str(node.value)))


def test_the_locale_decides_no_encoding() -> None:
    found = []
    for path in (each for folder in FOLDERS for each in sorted((ROOT / folder).rglob("*.py"))):
        source = path.read_text("utf-8")
        if DOUBTFUL.search(source):
            found += [f"{path.relative_to(ROOT)}:{line}" for line in lines_without_encoding(source)]
    assert found == []


def test_text_without_an_encoding_is_found() -> None:
    for source in (
        "file.read_text()",
        "file.read_text(errors='replace')",
        "file.write_text(text)",
        "file.open('w')",
        "with file.open() as lines: pass",
        "with file.open(): pass",
        "file.open(mode='r+')",
        "os.fdopen(number)",
        "os.fdopen(number, 'w')",
        "logging.FileHandler(file)",
        "subprocess.run(command, text=True)",
        "Popen(command, universal_newlines=True)",
    ):
        assert DOUBTFUL.search(source)
        assert lines_without_encoding(source) == [1]
