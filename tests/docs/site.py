"""Build the site: pages as they are, links to files outside of `docs` led to the repository, and pages of the API.

``python -m tests.docs.site`` writes `site/html` from `site/pages`, and fails at a link or an anchor that leads nowhere.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TypeAlias

from tests.development.faces import INTERNAL
from tests.docs.markdown import PAGES, ROOT, headings, links

DOCS = ROOT / "docs"
SETTINGS = DOCS / "zensical.toml"
SITE = ROOT / "site"
PUBLIC = (
    "netchannel",
    "netchannel.aio",
    "netchannel.transports",
    "netchannel.testing",
    "netchannel.prometheus",
    "nebuli",
    "nebuli.blocking",
    "nebuli.circuits",
    "nebuli.views",
    "nebuli.connectors",
    "nebuli.connectors.testing",
    "spark_bridge",
    "placement",
    "topology",
)
"""Modules whose public names have pages."""

OUTSIDE = {
    ROOT / "README.md": "index.md",
    DOCS / "index.md": "contents.md",
    DOCS / "benchmarks.md": "benchmarks/index.md",
    ROOT / "CHANGELOG.md": "changelog.md",
    ROOT / "CONTRIBUTING.md": "development/contributing.md",
    ROOT / "SECURITY.md": "development/security.md",
}
"""Pages that have another place on the site."""

SECTIONS = {
    "tutorial": "Tutorials",
    "how-to": "How-tos",
    "topics": "Topics",
    "reference": "Reference",
    "api": "Python API",
    "benchmarks": "Benchmarks",
}
"""Folders in their order, by their titles; any other one follows, by its own name."""

_LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")

Entry: TypeAlias = "dict[str, str | list[Entry]]"


class BrokenLink(Exception):
    """A link to a file that is not there."""


def place(page: Path) -> str:
    """The path of a page on the site."""
    return OUTSIDE.get(page) or str(page.relative_to(DOCS))


def moved(page: Path, text: str, blob: str) -> str:
    """The page's text with each link leading to the same file from the page's place on the site.

    ``blob``: the address at which the repository shows a file.
    """
    here = Path(place(page)).parent

    def link(found: re.Match[str]) -> str:
        target, anchor = found[1], found[2] or ""
        if re.match(r"\w+:", target):
            return found[0]
        file = (page.parent / target).resolve()
        if not file.exists():
            raise BrokenLink(f"{page.relative_to(ROOT)} links to {target}, which is not there: fix the link")
        if file.is_relative_to(DOCS) or file in OUTSIDE:
            return f"]({os.path.relpath(place(file), here)}{anchor})"
        return f"]({blob}/{file.relative_to(ROOT)}{anchor})"

    parts = re.split(r"(?ms)(^```.*?^```$)", text)
    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in parts)


def names_of(module: str) -> list[str]:
    """The names in a module's `__all__`, read without importing it: a list, or the keys of `_HOMES`."""
    path = ROOT / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    values = {
        target.id: node.value
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    given = values["__all__"]
    if isinstance(given, ast.Call):
        return sorted(ast.literal_eval(values["_HOMES"]))
    return sorted(ast.literal_eval(given))


def api_page(module: str) -> str:
    """A page with the docstring of a module, and those of its public names."""
    own = f"::: {module}\n    options:\n      members: false\n      show_root_heading: false\n"
    own += "      show_root_toc_entry: false\n"
    return "\n".join([f"# {module}\n", own, *(_entry(module, name) for name in names_of(module))])


def _entry(module: str, name: str) -> str:
    hidden = sorted(INTERNAL.get(name, ())) if module == "netchannel" else []
    without = f"    options:\n      filters: ['!^_', '!^({'|'.join(hidden)})$']\n" if hidden else ""
    return f"::: {module}.{name}\n{without}"


def stage(into: Path) -> list[Path]:
    """Write the pages and everything next to them; return the pages."""
    settings = tomllib.loads(SETTINGS.read_text("utf-8"))
    blob = f"{settings['project']['repo_url']}/blob/main"
    for file in sorted({*PAGES, *(path for path in DOCS.rglob("*") if path.is_file() and path != SETTINGS)}):
        target = into / place(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            target.write_text(moved(file, file.read_text("utf-8"), blob), "utf-8")
        else:
            shutil.copyfile(file, target)
    for module in PUBLIC:
        target = into / "api" / f"{module}.md"
        target.parent.mkdir(exist_ok=True)
        target.write_text(api_page(module), "utf-8")
    return sorted(into.rglob("*.md"))


def navigation(pages: list[Path], root: Path) -> list[Entry]:
    """An entry for each page: in the order in which the index links it, below the title of its folder."""
    index = [(DOCS / link.partition("#")[0]).resolve() for link in links(DOCS / "index.md")]
    linked = [place(page) for page in index if page.suffix == ".md"]
    order = [*linked, *(f"api/{module}.md" for module in PUBLIC)]

    def rank(page: Path) -> tuple[int, str]:
        name = str(page.relative_to(root))
        return (order.index(name) if name in order else len(order), name)

    first = ("index.md", "contents.md")
    found: dict[str, list[Entry]] = {folder: [] for folder in ("", *SECTIONS)}
    for page in sorted(pages, key=rank):
        name = str(page.relative_to(root))
        if name not in first:
            folder = name.partition("/")[0] if "/" in name else ""
            found.setdefault(folder, []).append({headings(page)[0].text.replace("`", ""): name})
    loose = found.pop("")
    sections: list[Entry] = [
        {SECTIONS.get(folder, folder.capitalize()): entries} for folder, entries in found.items()
    ]
    return [{"Home": first[0]}, {"Contents": [first[1], *loose]}, *sections]  # type: ignore[list-item]


def toml(entry: object) -> str:
    """A value of the navigation as TOML."""
    match entry:
        case dict():
            return (
                "{ " + ", ".join(f"{json.dumps(key)} = {toml(value)}" for key, value in entry.items()) + " }"
            )
        case list():
            return "[" + ", ".join(toml(each) for each in entry) + "]"
        case _:
            return json.dumps(entry)


def build(site: Path) -> int:
    """Write the site; the exit code of its generator."""
    shutil.rmtree(site, ignore_errors=True)
    pages = site / "pages"
    return generate(site, navigation(stage(pages), pages))


def generate(site: Path, entries: list[Entry]) -> int:
    """Write a site from its pages; 0, or the exit code of the generator, which fails at any warning.

    A docstring whose sections cannot be read (`griffe`) is no warning to the generator, but fails here.
    """
    settings = SETTINGS.read_text("utf-8").replace("\nnav = []\n", f"\nnav = {toml(entries)}\n")
    (site / "zensical.toml").write_text(settings, "utf-8")
    program = Path(sys.executable).with_name("zensical")
    command = [program, "build", "--strict"]
    built = subprocess.run(
        command, cwd=site, check=False, encoding="utf-8", stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    sys.stdout.write(built.stdout)
    return built.returncode or int("griffe: " in built.stdout)


if __name__ == "__main__":
    sys.exit(build(SITE))
