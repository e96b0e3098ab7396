"""Pages and shipped code are free of phrases that readers stumble over, each of which has a plainer one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.docs.markdown import PAGES, ROOT, name_of, prose

PLAINER = {
    r"behind": "after, at, below",
    r"besides?": "next to, compared with, in addition to",
    r"anew": "again, from scratch",
    r"mend(?:s|ed|ing)?": "fix",
    r"for ever": "forever",
    r"who(?:m)?ever": "the client, the sender, any process",
    r"(?:no|some|any|every)body": "no process, a process, any process, all users",
    r"(?:say|says|said|saying) of": "report",
    r"(?:says|said|tells|told|hears|heard)": "reports, prints, returns, raises, is notified",
    r"(?:go|goes|going|gone|went) on(?! the wire\b)": "continue, resume",
    r"to and fro": "back and forth",
    r"(?:by itself|by themselves)": "automatically, alone",
    r"processor time": "CPU time",
    r"(?:tak(?:e|es|ing)|taken|took) back": "retract",
    r"tak(?:e|es|ing) (?:\w+ )?rows? back": "retract rows",
    r"(?:can|cannot|to) be had": "is available",
    r"change[sd]? on the way": "corrupted in transit",
    r"against the rules": "violates the protocol",
    r"one that there is": "expected one of",
    r"whatever is killed": "whichever process is killed",
    # "There is no room", and comparatives, as in "is no longer", are plain.
    r"(?<!\bthere )(?:is|are) no(?! (?:longer|more|less|later|earlier|larger|smaller|faster|other)\b)": "is "
    "not a",
}
OPENINGS = ("Of", "What", "Whether", "Who")

# Pages that are still to be rewritten; the list only shrinks.
LEFT = {
    "docs/protocol/vectors.md",
}

# Names in code that are no prose: kinds of messages.
NAMES = {"take back"}

# Packages, whose messages, docstrings and comments are read.
PACKAGES = sorted(
    {
        *(
            ROOT / name
            for name in ("netchannel", "placement", "spark_bridge", "topology", "examples", "distributions")
        ),
        *(path.parent for path in (ROOT / "nebuli").glob("*/__init__.py")),
        ROOT / "nebuli",
    }
)

_PHRASES = {re.compile(rf"\b(?:{phrase})\b", re.IGNORECASE): plainer for phrase, plainer in PLAINER.items()}
_OPENING = re.compile(rf"(?:^(?:[-*|] |\d+\. )?|[.!?] )({'|'.join(OPENINGS)})\b")


def _sentences(page: Path) -> list[str]:
    """The lines of a page's prose, without titles, code and the targets of links."""
    lines = [re.sub(r"`[^`]+`", "`...`", line) for line in prose(page) if not line.startswith("#")]
    return [re.sub(r"\]\([^)\s]+\)", "]", line) for line in lines]


def _code_sentences(package: Path) -> Iterator[str]:
    """Strings with a space in a package's modules, one line each, without names and values; and comments."""
    for path in package.glob("*.py") if package == ROOT / "nebuli" else package.rglob("*.py"):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and " " in node.value
                and node.value not in NAMES
            ):
                yield re.sub(r"``?[^`]+``?", "`...`", " ".join(node.value.split()))
        yield from (
            re.sub(r"``?[^`]+``?", "`...`", each) for each in re.findall(r"(?m)(?:^|\s)# (.+)$", text)
        )


def _refused(lines: Iterable[str]) -> list[str]:
    found = []
    for line in lines:
        for phrase, plainer in _PHRASES.items():
            found += [f"{_around(line, match)} (plainer: {plainer})" for match in phrase.finditer(line)]
        found += [f"{_around(line, match)} (start with the subject)" for match in _OPENING.finditer(line)]
    return found


def _around(line: str, match: re.Match[str]) -> str:
    return f"{match[0].strip(' .')!r} in {line[max(0, match.start() - 40) : match.end() + 40]!r}"


@pytest.mark.parametrize("page", [page for page in PAGES if name_of(page) not in LEFT], ids=name_of)
def test_no_sentence_of_a_page_has_a_refused_phrase(page: Path) -> None:
    assert _refused(_sentences(page)) == []


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_no_message_docstring_or_comment_has_a_refused_phrase(package: Path) -> None:
    assert _refused(_code_sentences(package)) == []


@pytest.mark.parametrize("page", sorted(LEFT))
def test_a_page_that_is_clean_leaves_the_list_of_those_to_rewrite(page: str) -> None:
    (path,) = [path for path in PAGES if name_of(path) == page]
    assert _refused(_sentences(path)) != []


def test_no_page_for_users_is_left() -> None:
    assert [
        page for page in LEFT if re.match(r"docs/(index|benchmarks|tutorial|how-to|topics|reference)\b", page)
    ] == []
