"""Running Spark beside an event loop."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support import spark_java


def bare_environment() -> dict[str, str]:
    """Of a shell in which nothing is activated: what is on its PATH belongs to the system, but Java is found.

    Java runs as in all tests: as for what lives for seconds.
    """
    home = os.environ.get("JAVA_HOME") or str(
        Path(shutil.which("java") or "/usr/bin/java").resolve().parents[1]
    )
    return {
        "HOME": os.environ["HOME"],
        "JAVA_HOME": home,
        "PATH": "/usr/bin:/bin",
        "SPARK_LOCAL_IP": "127.0.0.1",
        **spark_java.environment(),
    }


async def run(action: Callable[..., Any], *arguments: Any, timeout_s: float = 250.0) -> Any:
    """Run a Spark action on a thread beside the event loop. After ``timeout_s`` all queries are stopped.

    Spark finds formats that are written in Python by the session that is active on the thread, and a new thread has
    none.
    """
    from pyspark.sql import SparkSession

    session = SparkSession._instantiatedSession
    assert session is not None

    def act() -> Any:
        SparkSession._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)
        return action(*arguments)

    try:
        async with asyncio.timeout(timeout_s):
            return await asyncio.to_thread(act)
    except TimeoutError:
        for query in session.streams.active:
            query.stop()
        raise
