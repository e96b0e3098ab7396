"""The site has every page, its links lead where the repository's do, and its generator accepts all of it."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path

import pytest

from tests.docs import site
from tests.docs.markdown import PAGES, ROOT, headings

BLOB = "https://example.test/blob/main"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    into = tmp_path_factory.mktemp("pages")
    return into, site.stage(into)


def _named(entry: object) -> list[str]:
    """The pages of a part of the navigation, in order."""
    match entry:
        case dict():
            return [name for value in entry.values() for name in _named(value)]
        case list():
            return [name for each in entry for name in _named(each)]
        case _:
            return [str(entry)]


def test_each_page_is_in_the_navigation_once(pages: tuple[Path, list[Path]]) -> None:
    into, written = pages
    named = _named(site.navigation(written, into))
    assert len(written) == len(PAGES) + len(site.PUBLIC)
    assert sorted(named) == sorted(str(page.relative_to(into)) for page in written)


def test_a_link_leads_to_the_same_page_or_to_the_repository() -> None:
    text = "[a](docs/how-to/files.md#modes), [b](LICENSE), [c](https://a.test/x)\n```\n[d](none.md)\n```\n"
    assert site.moved(ROOT / "README.md", text, BLOB) == (
        f"[a](how-to/files.md#modes), [b]({BLOB}/LICENSE), [c](https://a.test/x)\n```\n[d](none.md)\n```\n"
    )
    assert site.moved(ROOT / "docs/how-to/files.md", "[a](../../README.md)", BLOB) == "[a](../index.md)"


def test_a_link_to_no_file_names_the_page_and_the_link() -> None:
    with pytest.raises(site.BrokenLink, match=re.escape("README.md links to docs/none.md")):
        site.moved(ROOT / "README.md", "[a](docs/none.md)", BLOB)


@pytest.mark.parametrize("module", site.PUBLIC)
def test_the_pages_of_the_api_have_the_public_names(module: str) -> None:
    assert site.names_of(module) == sorted(importlib.import_module(module).__all__)


def test_a_folder_that_has_no_title_follows_by_its_own_name(tmp_path: Path) -> None:
    page = tmp_path / "decisions" / "one.md"
    page.parent.mkdir()
    page.write_text("# One\n", "utf-8")
    (tmp_path / "index.md").write_text("# Home\n", "utf-8")
    assert site.navigation([page], tmp_path)[-1] == {"Decisions": [{"One": "decisions/one.md"}]}


@pytest.mark.story
@pytest.mark.processes(1)
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    assert site.build(tmp_path) == 0
    html = tmp_path / "html"
    for page in (tmp_path / "pages").rglob("*.md"):
        name = page.relative_to(tmp_path / "pages").with_suffix("")
        shown = html / (name.parent if name.name == "index" else name) / "index.html"
        assert headings(page)[0].text.replace("`", "").split()[0] in shown.read_text("utf-8")
    assert 'id="netchannel.SenderServer.register_channel"' in (html / "api/netchannel/index.html").read_text(
        "utf-8"
    )
    texts = (path.read_bytes() for path in html.rglob("*") if path.is_file())
    assert not any(os.fsencode(ROOT) in text or os.fsencode(tmp_path) in text for text in texts)


@pytest.mark.processes(1)
@pytest.mark.parametrize("link", ["none.md", "b.md#nowhere"])
def test_a_link_or_an_anchor_that_leads_nowhere_fails_the_build(tmp_path: Path, link: str) -> None:
    pages = tmp_path / "pages"
    pages.mkdir()
    for there, expected in ((link, 1), ("b.md#there", 0)):
        (pages / "index.md").write_text(f"# A\n\n[a]({there})\n", "utf-8")
        (pages / "b.md").write_text("# B\n\n## There\n", "utf-8")
        assert site.generate(tmp_path, [{"A": "index.md"}, {"B": "b.md"}]) == expected
