"""``python -m benchmarks.steps [--quick] [--rounds 3] [--row NAME ...] [--json FILE]``: tables in Markdown."""

from __future__ import annotations

from benchmarks.commands import measure

from .rows import STEP_ROWS

PACKAGES = ("uvloop", "pyarrow", "numpy", "xxhash")
CORES = "two members: one core each, or any core (last column); one member: any core"


def main() -> None:
    """Measure, and print."""
    measure("benchmarks.steps", __doc__, STEP_ROWS, packages=PACKAGES, cores=CORES)


if __name__ == "__main__":
    main()
