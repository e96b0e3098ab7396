"""The page about the layout of the code names what is there, and all of it."""

import re
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT, table

PAGE = ROOT / "docs/development/architecture.md"
PACKAGES = ("topology", "placement", "netchannel", "spark_bridge", "nebuli")
A_GLANCE = 16
"""Modules of a folder that are seen at once."""


def rooms(package: str) -> list[Path]:
    """The folders in a package that have modules, and itself."""
    return sorted({path.parent for path in (ROOT / package).rglob("*.py")})


def modules(room: Path) -> set[str]:
    return {path.stem for path in room.glob("*.py") if not path.stem.startswith("__")}


def named(package: str) -> set[str]:
    """What the table of a package calls rooms: its folders, and modules beside them."""
    return {name for row in table(PAGE, package) for name in re.findall(r"`([\w/]+)`", row[0])}


@pytest.mark.parametrize("package", PACKAGES)
def test_the_table_of_a_package_has_its_rooms_and_no_others(package: str) -> None:
    folders = {f"{room.relative_to(ROOT / package)}/" for room in rooms(package)} - {"./"}
    assert named(package) == folders | modules(ROOT / package)


@pytest.mark.parametrize("package", PACKAGES)
def test_what_is_said_of_a_room_names_what_is_in_it(package: str) -> None:
    for name, *said in table(PAGE, package):
        places = [ROOT / package / each for each in re.findall(r"`([\w/]+)`", name)]
        there = {path.stem for place in places for path in place.glob("*.py")}
        assert set(re.findall(r"`([a-z_]+)`", said[0])) <= there


@pytest.mark.parametrize("package", PACKAGES)
def test_every_path_that_is_named_below_its_heading_is_there(package: str) -> None:
    """From the root, or from the package."""
    _, below = PAGE.read_text("utf-8").split(f"\n## {package}\n")
    paths = re.findall(r"`([\w/]+(?:\.py|/))`", below.partition("\n## ")[0])
    assert [path for path in paths if not any((ROOT / at / path).exists() for at in ("", package))] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_folder_is_taken_in_at_a_glance(package: str) -> None:
    assert {str(room) for room in rooms(package) if len(modules(room)) > A_GLANCE} == set()
