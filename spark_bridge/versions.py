"""The features of PySpark's versions."""

from __future__ import annotations

import importlib
import re
from typing import Any

from .errors import UnsupportedSpark

OLDEST = (4, 1)


def _limits() -> Any:
    """The module with Spark's limits; None before PySpark 4.2, which asks for none, and where there is no PySpark."""
    try:
        return importlib.import_module("pyspark.sql.streaming.datasource")
    except ImportError:
        return None


limits: Any = _limits()
SupportsTriggerAvailableNow: Any = object if limits is None else limits.SupportsTriggerAvailableNow
"""Before PySpark 4.2 Spark itself sees to it that ``availableNow`` ends."""


def check_version() -> None:
    """Raise UnsupportedSpark for a PySpark that lacks what the data source is made of."""
    import pyspark

    numbers = re.findall(r"\d+", pyspark.__version__)
    if tuple(map(int, numbers[:2])) < OLDEST:
        raise UnsupportedSpark(
            f"PySpark {pyspark.__version__} cannot write streams of Arrow batches from a Python data "
            "source: pip install 'pyspark>=4.2' (4.1 works, but without limits per trigger)"
        )
