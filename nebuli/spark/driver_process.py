"""The driver process, as the worker has it."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections import deque
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

from nebuli.connectors.errors import FragmentError
from spark_bridge.versions import limits

from .driver_messages import FAILED, PHASE, Report
from .prerequisites import check_java, check_pyspark

if TYPE_CHECKING:
    from collections.abc import Callable

    from .driver_messages import Job

_log = logging.getLogger("nebuli.spark")
_TOLD_LINES = 5
"""Lines of the end of what it wrote, in the error of a process that died."""
_LAST_WORDS_S = 5.0


class DriverProcess:
    """A driver, from its start. ``on_report`` is called on a thread with Spark's phases, and last with the outcome."""

    def __init__(self, job: Job, on_report: Callable[[Report], None]) -> None:
        _check_installed(job)
        self._job = job
        self._on_report = on_report
        self._last_lines: deque[str] = deque(maxlen=_TOLD_LINES)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "nebuli.spark.driver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # it ends its own group, with Java in it
        )
        self._following = Thread(target=self._follow, name="spark log", daemon=True)
        self._following.start()
        Thread(target=self._listen, name="spark reports", daemon=True).start()
        self.tell(job.to_line())

    def tell(self, line: str) -> None:
        """Send it a message; ignored when it is gone, as its report has the outcome."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def end(self) -> None:
        """Have it end, with all that it has started; returns at once."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        reported = False
        with self._process.stdout as lines:
            for line in lines:
                try:
                    report = Report.from_line(line)
                except (ValueError, TypeError):  # a library's own words
                    self._keep(line)
                    continue
                reported = reported or report.event != PHASE
                self._on_report(report)
        code = self._process.wait()
        if not reported:
            self._following.join(_LAST_WORDS_S)  # Java has its standard error too, and may be slow to end
            told = " | ".join(self._last_lines)
            self._on_report(Report(FAILED, f"its driver ended with exit code {code}{told and f': {told}'}"))

    def _follow(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self._keep(line)

    def _keep(self, line: str) -> None:
        self._last_lines.append(line.rstrip())
        _log.info("spark of fragment %s: %s", self._job.name, line.rstrip())


def _check_installed(job: Job) -> None:
    needs = "the engine spark needs"
    check_pyspark(needs)
    if not job.bounded and limits is None:
        raise FragmentError(
            f"{needs} PySpark 4.2 or later for inputs without an end: pip install 'pyspark>=4.2'"
        )
    if not job.master.startswith("sc://"):
        check_java(needs)
