"""Pages are short enough to be read at once: reference, protocol and the benchmarks' tables are looked up instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.markdown import PAGES, name_of, prose

MOST_WORDS = 1_200
LOOKED_UP = ("docs/reference/", "docs/protocol/", "docs/benchmarks/", "docs/index.md", "CHANGELOG.md")

# Tables of contributors that are still to be divided; the list only shrinks.
LEFT = {"docs/development/architecture.md", "docs/development/tested-failures.md"}


def _words(page: Path) -> int:
    """The words of a page, without code blocks and the lines of tables."""
    return sum(len(line.replace("|", " ").split()) for line in prose(page) if not set(line) <= set("|-: "))


READ = [page for page in PAGES if not name_of(page).startswith(LOOKED_UP) and name_of(page) not in LEFT]


@pytest.mark.parametrize("page", READ, ids=name_of)
def test_a_page_to_be_read_has_at_most_1200_words(page: Path) -> None:
    assert _words(page) <= MOST_WORDS, f"divide {name_of(page)}, or cut it"


def test_a_page_that_has_become_short_leaves_the_list() -> None:
    assert {name_of(page) for page in PAGES if name_of(page) in LEFT and _words(page) > MOST_WORDS} == LEFT


def test_words_of_code_do_not_count(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One title\n\n| a | b |\n|---|---|\n| c | d e |\n\n```sh\nls -l\n```\n", "utf-8")
    assert _words(page) == 8
