"""Files that match the pattern of a physical source: each is a source of its own, which some member reads."""

from __future__ import annotations

import glob
from typing import TYPE_CHECKING

from nebuli.connectors.errors import InputError
from topology import CsvSource, ParquetSource

if TYPE_CHECKING:
    from pathlib import Path

    from topology import PhysicalSource


def is_pattern(physical: PhysicalSource, directory: Path) -> bool:
    """Whether its path stands for all files that match it. A file that has just that name is no pattern."""
    return (
        isinstance(physical, CsvSource | ParquetSource)
        and glob.has_magic(physical.path)
        and not (directory / physical.path).exists()
    )


def matching(physical: PhysicalSource, directory: Path) -> list[PhysicalSource]:
    """A source for each file, in the order of their names; the source itself, if it is no pattern.

    ``directory`` is where relative paths start. Raises InputError where no file matches.
    """
    if not is_pattern(physical, directory):
        return [physical]
    assert isinstance(physical, CsvSource | ParquetSource)
    paths = sorted(glob.glob(physical.path, root_dir=directory, recursive=True))  # noqa: PTH207 - a path may be absolute
    files = [path for path in paths if (directory / path).is_file()]
    if not files:
        raise InputError(f"{physical.path}: no file in {directory.absolute()} matches it")
    return [physical.model_copy(update={"path": path}) for path in files]
