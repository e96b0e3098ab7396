"""The page about the layout of the code names what is there, and all of it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/topics/architecture.md").read_text()
PACKAGES = ("netchannel", "nebuli", "placement", "topology", "spark_bridge")


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([a-z_/]+(?:\.py|/))`", PAGE))))
def test_what_it_names_is_there(name: str) -> None:
    """From the root, or from the package that the section is about."""
    assert any((ROOT / place / name).exists() for place in ("", *PACKAGES))


@pytest.mark.parametrize("package", ["netchannel", "nebuli"])
def test_every_room_is_on_it(package: str) -> None:
    """With the modules that are rooms of their own, where there are such."""
    rooms = [path.parent for path in (ROOT / package).rglob("__init__.py") if path.parent.name != package]
    names = [str(room.relative_to(ROOT / package)) for room in rooms]
    inner = {"testing/scenarios", "connectors/sources", "connectors/sinks"}
    assert {name for name in names if f"`{name}/`" not in PAGE} - inner == set()
