"""``python -m benchmarks.storage [--quick] [--rounds 2] [--row NAME ...] [--json FILE]``: tables in Markdown."""

from __future__ import annotations

from benchmarks.commands import measure

from .rows import COLLECTION_ROWS

PACKAGES = ("pyarrow", "deltalake", "numpy", "xxhash", "uvloop")
CORES = "all processes on any core"


def main() -> None:
    """Measure, and print."""
    measure("benchmarks.storage", __doc__, COLLECTION_ROWS, packages=PACKAGES, cores=CORES)


if __name__ == "__main__":
    main()
