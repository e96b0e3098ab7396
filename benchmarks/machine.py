"""What a figure stands on: processor, kernel, versions, and how the kernel controls congestion."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

PACKAGES = ("uvloop", "pyarrow", "pyzmq", "eclipse-zenoh", "grpcio")


def machine() -> dict[str, str]:
    """Names and values, for people."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "kernel": platform.release(),
        "congestion control": Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip(),
        "Python": platform.python_version(),
        "packages": versions,
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.machine()
