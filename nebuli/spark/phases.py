"""Phases of Spark, for waiting users: it takes long to start, and computes a result in jobs and stages."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark import StatusTracker
    from pyspark.sql import SparkSession

STARTING, WAITING, PLANNING = "starting Spark", "Spark waits for its input", "Spark plans the query"
_LOOK_S = 0.5


@contextmanager
def jobs_told(spark: SparkSession, tell: Callable[[str], None], *, remote: bool) -> Iterator[None]:
    """Call ``tell`` on a thread whenever another stage runs, until the block ends.

    ``remote``: Spark Connect, which does not report what runs.
    """
    if remote:
        tell("Spark computes")
        yield
        return
    tracker, over = spark.sparkContext.statusTracker(), Event()
    looking = Thread(target=_look, args=(tracker, tell, over), name="spark phases", daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()


def _look(tracker: StatusTracker, tell: Callable[[str], None], over: Event) -> None:
    told = ""
    while not over.wait(_LOOK_S):
        phase = at_now(tracker)
        if phase and phase != told:
            told = phase
            tell(phase)


def at_now(tracker: StatusTracker) -> str:
    """The newest job that runs, and how many of its stages have begun; empty between jobs."""
    job = max(tracker.getActiveJobsIds(), default=None)
    found = None if job is None else tracker.getJobInfo(job)
    if job is None or found is None:
        return ""
    begun = [tracker.getStageInfo(stage) for stage in found.stageIds]
    tasks = [stage for stage in begun if stage is not None and stage.numActiveTasks + stage.numCompletedTasks]
    return f"Spark job {job + 1}, stage {max(1, len(tasks))} of {len(found.stageIds)}"
