from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.markdown import PAGES, ROOT, headings, links, name_of


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} leads nowhere"
        assert target.is_relative_to(ROOT)
        if anchor:
            assert anchor in [heading.anchor for heading in headings(target)], f"{link} has no such heading"


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    assert {page for page in PAGES if page.is_relative_to(ROOT / "docs")} - linked - {index} == set()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_has_one_title_and_it_comes_first(page: Path) -> None:
    assert [heading.level for heading in headings(page)].count(1) == 1
    assert page.read_text("utf-8").startswith("# ")
