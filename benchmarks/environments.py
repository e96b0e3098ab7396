"""Environments of their own for peers whose packages do not go with ours: made from a lock, once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .running import ROOT


def lock_of(name: str) -> Path:
    """What is installed for a peer."""
    return ROOT / "benchmarks" / f"{name}.lock"


def python_of(name: str) -> Path:
    """The interpreter of a peer's environment, which is made where it is not as its lock has it."""
    environment, lock = ROOT / ".venv" / name, lock_of(name)
    installed = environment / lock.name
    if not installed.is_file() or installed.read_text("utf-8") != lock.read_text("utf-8"):
        uv, python = Path(sys.executable).with_name("uv"), environment / "bin" / "python"
        subprocess.run(
            [uv, "venv", "--quiet", "--clear", "--python", sys.executable, environment], check=True
        )
        subprocess.run(
            [uv, "pip", "install", "--quiet", "--python", python, "--requirement", lock], check=True
        )
        installed.write_text(lock.read_text("utf-8"), "utf-8")
    return environment / "bin" / "python"


def version_of(name: str, lock: str = "") -> str:
    """As the lock has it: the one of its name, or another one."""
    lines = lock_of(lock or name).read_text("utf-8").split()
    return next(line for line in lines if line.startswith(f"{name}=="))
