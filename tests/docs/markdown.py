"""The documentation as data: pages, their fenced blocks, tables, headings and links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        *ROOT.joinpath("docs").rglob("*.md"),
    ]
)

_NAME = re.compile(r"`([\w./-]+\.\w+)`:")
_LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"(#{1,6}) (.+)")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, its text, and the last line of prose between it and the block before."""

    language: str
    text: str
    lead: str
    line: int

    @property
    def file(self) -> str | None:
        """The file that the reader is to save it as, if the line before it is ```name`:``."""
        found = _NAME.fullmatch(self.lead)
        return found[1] if found else None


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading: its level and its text."""

    level: int
    text: str

    @property
    def anchor(self) -> str:
        """What a link to it ends in, by the rules of the usual renderers."""
        text = re.sub(r"[^\w\- ]", "", self.text.replace("`", "").lower())
        return text.strip().replace(" ", "-")


def name_of(page: Path) -> str:
    """A page as tests name it."""
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    """All fenced blocks, in order."""
    return _parsed(page)[0]


def headings(page: Path) -> list[Heading]:
    """All headings, in order."""
    return [Heading(len(found[1]), found[2]) for line in prose(page) if (found := _HEADING.fullmatch(line))]


def links(page: Path) -> list[str]:
    """The targets of all links in prose."""
    return [target for line in prose(page) for target in _LINK.findall(line)]


def section(page: Path, title: str) -> list[str]:
    """The lines of prose below a heading, up to the next one."""
    lines = prose(page)
    starts = [number for number, line in enumerate(lines) if re.fullmatch(rf"#+ {re.escape(title)}", line)]
    assert len(starts) == 1, f"{name_of(page)} has {len(starts)} headings {title!r}"
    rest = lines[starts[0] + 1 :]
    ends = [number for number, line in enumerate(rest) if _HEADING.fullmatch(line)]
    return rest[: ends[0]] if ends else rest


def table(page: Path, title: str) -> list[list[str]]:
    """The rows of the tables below a heading, without their headers."""
    rows: list[list[str]] = []
    header = True
    for line in section(page, title):
        if not line.startswith("|"):
            header = True
        elif set(line) <= set("|-: "):
            header = False
        elif not header:
            rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))])
    assert rows, f"{name_of(page)} has no table below {title!r}"
    return rows


def code(cell: str) -> str:
    """The text of a cell that is code as a whole."""
    assert cell.startswith("`"), cell
    assert cell.endswith("`"), cell
    return cell.strip("`")


def prose(page: Path) -> list[str]:
    """The lines outside of fenced blocks."""
    return _parsed(page)[1]


def _parsed(page: Path) -> tuple[list[Block], list[str]]:
    found: list[Block] = []
    prose: list[str] = []
    inside: list[str] | None = None
    language, began, before = "", 0, 0  # where the block begins, and where the one before it ended
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if inside is None and line.startswith("```"):
            inside, language, began = [], line.strip("`").strip(), number
        elif inside is not None and line == "```":
            lead = next((each for each in reversed(prose[before:]) if each.strip()), "")
            found.append(Block(language, "".join(f"{each}\n" for each in inside), lead, began))
            prose.append("")
            inside, before = None, len(prose)
        elif inside is not None:
            inside.append(line)
        else:
            prose.append(line)
    assert inside is None, f"{name_of(page)}: the block that begins at line {began} does not end"
    return found, prose
