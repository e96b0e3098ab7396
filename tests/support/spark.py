"""Running Spark beside an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


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
