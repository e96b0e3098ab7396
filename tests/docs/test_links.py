from __future__ import annotations

from pathlib import Path

from tests.docs.markdown import PAGES, ROOT, headings, links, name_of


def test_links_between_pages_lead_somewhere() -> None:
    found = {page: [link for link in links(page) if not leads_somewhere(page, link)] for page in PAGES}
    assert {name_of(page): wrong for page, wrong in found.items() if wrong} == {}


def leads_somewhere(page: Path, link: str) -> bool:
    if link.startswith("https://"):
        return True
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not (target.exists() and target.is_relative_to(ROOT)):
        return False
    return not anchor or anchor in [heading.anchor for heading in headings(target)]


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    assert {page for page in PAGES if page.is_relative_to(ROOT / "docs")} - linked - {index} == set()


def test_a_page_has_one_title_and_it_comes_first() -> None:
    for page in PAGES:
        assert [heading.level for heading in headings(page)].count(1) == 1, page
        assert page.read_text("utf-8").startswith("# "), page
