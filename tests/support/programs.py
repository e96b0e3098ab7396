"""What the tests need of the machine that no wheel brings, who brings it, and whether it is there.

``python -m tests.support.programs`` installs what is missing where it may, and says what to install where it may not.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

JAVA = 17
"""The first version that Spark 4 runs on."""
_POSTGRES = Path("/usr/lib/postgresql")


@dataclass(frozen=True, slots=True)
class Program:
    """A program, what needs it, and Debian's package that brings it."""

    name: str
    needed_for: str
    package: str

    @property
    def how(self) -> str:
        """What to do where it is missing."""
        return f"install {self.name} (Debian: apt-get install {self.package})"


PROGRAMS = (
    Program("bash", "the console sessions of the documentation, and completion", "bash"),
    Program("ip", "network namespaces in the role of hosts", "iproute2"),
    Program("tc", "slow links between them", "iproute2"),
    Program("mount", "full disks", "mount"),
    Program("unshare", "the demo over hosts", "util-linux"),
    Program("systemd-analyze", "the unit of a worker", "systemd"),
    Program("initdb", "stores in PostgreSQL", "postgresql"),
    Program("java", "Spark", "default-jre-headless"),
)


def program(name: str) -> Program:
    """The one of that name."""
    return next(each for each in PROGRAMS if each.name == name)


def missing() -> list[Program]:
    """Those that are not here, or are too old."""
    return [each for each in PROGRAMS if why_not(each) is not None]


def why_not(wanted: Program) -> str | None:
    """What is wrong with it here; None: nothing."""
    if wanted.name == "java":
        return _why_no_java()
    if wanted.name == "initdb":
        return _why_no_postgres()
    return None if shutil.which(wanted.name) else f"there is no {wanted.name} on PATH"


def postgres_programs() -> Path | None:
    """The folder with the programs of the newest server of PostgreSQL that there is, which Debian has on no PATH."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    versions = sorted(_POSTGRES.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return versions[-1].parent if versions else None


def _why_no_postgres() -> str | None:
    if postgres_programs() is not None:
        return None
    return f"there is no initdb on PATH, and none of PostgreSQL's in {_POSTGRES}/*/bin"


def _why_no_java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(Path(home, "bin", "java") if home else "java")
    if java is None:
        return (
            f"there is no java in {home}/bin, where JAVA_HOME leads" if home else "there is no java on PATH"
        )
    found = _version(java)
    return None if found >= JAVA else f"{java} is version {found}, and {JAVA} or later is needed"


@cache
def _version(java: str) -> int:
    said = subprocess.run([java, "-version"], capture_output=True, encoding="utf-8", check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else 0


def install(run: Callable[[Sequence[str]], int], say: Callable[[str], None]) -> None:
    """Have Debian install what is missing, as root; else say in one line what to install."""
    wanted = missing()
    if not wanted:
        return
    packages = list(dict.fromkeys(each.package for each in wanted))
    if os.geteuid() == 0 and shutil.which("apt-get"):
        say(f"Installing {', '.join(packages)} ...")
        if run(["apt-get", "update", "-qq"]) == 0:
            run(["apt-get", "install", "-qq", "--yes", "--no-install-recommends", *packages])
        wanted = missing()
    if wanted:
        lacks = "; ".join(f"{why_not(each)}, for {each.needed_for}" for each in wanted)
        say(f"This machine lacks something: {lacks}. Debian: apt-get install {' '.join(packages)}")


def _run(command: Sequence[str]) -> int:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False).returncode


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    install(_run, _say)
