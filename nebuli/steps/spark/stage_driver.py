"""The process that drives Spark for the members of a circuit: ``python -m nebuli.steps.spark.stage_driver``."""

from __future__ import annotations

import re
import tempfile
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from nebuli.log_output import log_to_stderr
from nebuli.spark.driver_lead import lead
from nebuli.spark.failures import sentence
from nebuli.spark.session import driver_settings, set_environment
from nebuli.steps.spark.member_task import be_member
from nebuli.steps.spark.stage_messages import Attempt, Happened, Report, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark import SparkContext

_LOOK_S = 0.1
_MEMBER_ENDS = re.compile(r"\bMemberEnds: (.+)")
_TASK_ENDS = re.compile(r"barrier task .* finished unsuccessfully\.\n(?:[\w.$]+: )?(.+)")


def settings(stage: Stage) -> dict[str, str]:
    """Return the settings of the session, over the user's own (conf/spark-defaults.conf)."""
    return driver_settings(stage.master, stage.directory) | {
        # Members are there, all of them, as long as the circuit is.
        "spark.dynamicAllocation.enabled": "false",
        "spark.speculation": "false",
        # No more of a cluster than they need, and a slot of each core. How many of these an executor has is the user's:
        # one for each would need the memory of an executor for each, too.
        "spark.cores.max": str(len(stage.orders)),
        "spark.task.cpus": "1",
        # A stage is begun again once those of its tasks that still run have been ended.
        "spark.python.task.killTimeout": "100ms",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    }


class StageDriver:
    """A stage in one session, begun on request; ``report`` takes the reports."""

    def __init__(self, line: str, report: Callable[[str], None]) -> None:
        self._stage = Stage.model_validate_json(line)
        self._say = report
        self._context: SparkContext | None = None
        self.commands: SimpleQueue[str] = SimpleQueue()
        self.directory = self._stage.directory

    def run(self) -> None:
        """Open the session, and follow its requests.

        Spark never begins a barrier stage again that has a job's result, as some of it might be out already: it ends
        the job with the first task that fails. So the starter of this process runs it again.
        """
        try:
            context = self._context = self._opened()
        except Exception as error:  # noqa: BLE001 - any error: there is no session
            self._report(Happened.REFUSED, sentence(error))
            return
        while True:
            attempt = Attempt.model_validate_json(self.commands.get())
            try:
                if self._has_slots(context, attempt.slots_s):
                    self._run(context)
                    self._report(Happened.ENDED)
            except Exception as error:  # noqa: BLE001 - any error: the stage has ended
                gone = _has_ended(context)
                self._report(Happened.GONE if gone else Happened.FAILED, _why(error))

    def _opened(self) -> SparkContext:
        from pyspark import SparkConf, SparkContext

        tempfile.tempdir = str(self.directory)  # PySpark leaves files there when it is ended early
        set_environment(self._stage.master)
        conf = SparkConf().setMaster(self._stage.master).setAppName(f"nebuli {self._stage.circuit}")
        return SparkContext(conf=conf.setAll([*settings(self._stage).items()]))

    def _has_slots(self, context: SparkContext, within_s: float | None) -> bool:
        """Wait until there are slots for all members; returns false if there are none."""
        needed = len(self._stage.orders)
        deadline = time.monotonic() + within_s if within_s is not None else float("inf")
        told = -1
        while (slots := _slots(context)) < needed:
            if time.monotonic() > deadline:
                self._report(Happened.SHORT, str(slots))
                return False
            if slots != told:
                self._report(Happened.WAITS, str(slots))
                told = slots
            time.sleep(_LOOK_S)
        return True

    def _run(self, context: SparkContext) -> None:
        stage, members = self._stage, len(self._stage.orders)

        def task(_: Iterable[int]) -> Iterable[int]:
            be_member(stage)
            return ()

        context.parallelize(range(members), members).barrier().mapPartitions(task).collect()

    def _report(self, happened: Happened, text: str = "") -> None:
        self._say(Report(happened=happened, text=text).model_dump_json())

    def stop(self) -> None:
        """End the session, and everything that runs in it."""
        if self._context is not None:
            self._context.stop()


def _slots(context: Any) -> int:
    """How many tasks can run at once, as Spark itself counts before it begins a barrier stage."""
    jvm = context._jsc.sc()  # noqa: SLF001 - Python has no name for it
    return int(jvm.maxNumConcurrentTasks(jvm.resourceProfileManager().defaultResourceProfile()))


def _why(error: Exception) -> str:
    """Return the failed task and the cause, out of Spark's messages."""
    text = str(error)
    if found := _MEMBER_ENDS.search(text) or _TASK_ENDS.search(text):
        return found[1].strip()
    return sentence(error)


def _has_ended(context: Any) -> bool:
    try:
        return bool(context._jsc.sc().isStopped())  # noqa: SLF001 - the same
    except Exception:  # noqa: BLE001 - Java does not answer
        return True


if __name__ == "__main__":
    log_to_stderr()
    lead(StageDriver)
