"""``python -m benchmarks.steps [--quick] [--rounds 3] [--row NAME ...] [--json FILE]``: tables in Markdown."""

from __future__ import annotations

from benchmarks.commands import measure

from .rows import STEP_ROWS

PACKAGES = ("uvloop", "pyarrow", "numpy", "xxhash")
CORES = "two members: each on one, or on any (last column); one member: on any"


def main() -> None:
    """Measure, and print."""
    measure("benchmarks.steps", __doc__, STEP_ROWS, packages=PACKAGES, cores=CORES)


if __name__ == "__main__":
    main()
