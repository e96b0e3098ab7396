"""Modules that are not the same are not named alike."""

from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
USUAL = {"__init__", "__main__", "errors"}


@pytest.mark.parametrize("package", ["netchannel", "nebuli", "placement", "topology", "spark_bridge"])
def test_each_module_has_a_name_of_its_own(package: str) -> None:
    """Nor one that only an "s" tells from another: who looks for one finds it by its name."""
    named = defaultdict(list)
    for path in (ROOT / package).rglob("*.py"):
        if path.stem not in USUAL:
            named[path.stem.removesuffix("s")].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in named.items() if len(paths) > 1} == {}
