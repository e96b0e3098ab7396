"""What is told of Spark while it computes, from what its status tracker says; the demo shows it with Spark itself."""

from __future__ import annotations

from types import SimpleNamespace

from nebuli.spark.phases import at_now, jobs_told
from tests.support.waiting import wait_for


class Tracker:
    """Job 4, of five stages; ``tasks`` of those that Spark knows already: how many run, and how many are done."""

    def __init__(self, jobs: list[int], tasks: dict[int, tuple[int, int]]) -> None:
        self.jobs = jobs
        self.tasks = tasks

    def getActiveJobsIds(self) -> list[int]:  # noqa: N802 - Spark's name
        return self.jobs

    def getJobInfo(self, job: int) -> SimpleNamespace | None:  # noqa: N802 - Spark's name
        return SimpleNamespace(stageIds=[10, 11, 12, 13, 14]) if job == 4 else None

    def getStageInfo(self, stage: int) -> SimpleNamespace | None:  # noqa: N802 - Spark's name
        running, done = self.tasks.get(stage, (None, None))
        return None if running is None else SimpleNamespace(numActiveTasks=running, numCompletedTasks=done)


def test_the_newest_job_is_told_with_how_far_its_stages_are():
    assert at_now(Tracker([], {})) == ""
    assert at_now(Tracker([9], {})) == ""  # over between two questions
    assert at_now(Tracker([3, 4], {})) == "Spark job 5, stage 1 of 5"
    assert at_now(Tracker([4], {10: (0, 8), 11: (2, 0), 12: (0, 0)})) == "Spark job 5, stage 2 of 5"


def test_each_phase_is_told_once_and_none_when_the_work_is_over():
    tracker = Tracker([4], {10: (1, 0)})
    told: list[str] = []
    spark = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    with jobs_told(spark, told.append, remote=False):
        wait_for(lambda: told, "the first stage")
        tracker.tasks = {10: (0, 1), 11: (1, 0)}
        wait_for(lambda: len(told) > 1, "the second stage")
    assert told == ["Spark job 5, stage 1 of 5", "Spark job 5, stage 2 of 5"]
