"""Virtual environments that have what is installed here, and take more: what a reader has who installs a package."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import venv
from pathlib import Path

INSTALLING = {
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_BUILD_ISOLATION": "0",
    "PIP_NO_DEPS": "1",
    "PIP_NO_INDEX": "1",
}
"""What a package needs to be built or run is there already, and nothing is asked for elsewhere."""
_COMMANDS = ("nebuli", "pip", "pytest")


def environment(directory: Path) -> Path:
    """Make one; where its commands are."""
    venv.create(directory, symlinks=True)
    commands = directory / "bin"
    (packages,) = directory.glob("lib/python*/site-packages")
    here = [path for path in site.getsitepackages() if Path(path).is_relative_to(sys.prefix)]
    # As site's own lines, so that those of packages that are installed editably are followed.
    (packages / "here.pth").write_text(
        "".join(f"import site; site.addsitedir({path!r})\n" for path in here), "utf-8"
    )
    for name in _COMMANDS:
        command = commands / name
        command.write_text(f'#!/bin/sh\nexec "{commands}/python" -m {name} "$@"\n', "utf-8")
        command.chmod(0o755)
    return commands


def install(commands: Path, package: Path) -> None:
    """Have pip install a package's folder, which it writes to."""
    subprocess.run(
        [commands / "pip", "install", "--quiet", package], check=True, env={**os.environ, **INSTALLING}
    )
