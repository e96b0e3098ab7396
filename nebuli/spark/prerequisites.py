"""Spark's requirements on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from nebuli.connectors.errors import FragmentError


def check_pyspark(whose: str) -> None:
    """Raises FragmentError, which begins with ``whose`` needs they are."""
    if importlib.util.find_spec("pyspark") is None:
        raise FragmentError(f"{whose} PySpark: pip install 'nebuli[spark]'")


def check_java(whose: str) -> None:
    """Raises FragmentError, which begins with ``whose`` needs they are."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    if shutil.which(java) is None:
        where = f"there is no Java at {java}" if home else "there is no Java in the PATH"
        raise FragmentError(
            f"{whose} Java 17 or later, and {where}: install it (Debian: apt-get install "
            "default-jre-headless), or set JAVA_HOME"
        )
