"""A standalone cluster of Spark: a master and workers, each a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pyspark

from tests.support.ports import free_addresses
from tests.support.sockets import is_open
from tests.support.waiting import wait_for

HOME = Path(pyspark.__file__).parent
_DEPLOY = "org.apache.spark.deploy"


def java(stack: ExitStack, log: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
    """A process of Spark's, to the end of ``stack``."""
    process = subprocess.Popen(
        [str(HOME / "bin" / "spark-class"), *arguments],
        env={
            **os.environ,
            "SPARK_HOME": str(HOME),
            "PYSPARK_PYTHON": sys.executable,
            **(environment or {}),
        },
        stdout=stack.enter_context(log.open("wb")),
        stderr=subprocess.STDOUT,
    )

    def end() -> None:
        children = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        process.wait(20)
        _, alive = psutil.wait_procs(children, 20)
        for each in alive:
            each.kill()

    stack.callback(end)


@contextmanager
def standalone_cluster(
    folder: Path, *, workers: int = 1, cores: int = 1, environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Its master's address; its files are in ``folder``. ``environment`` is that of executors, beside this one's."""
    (address,) = free_addresses(1)
    host, port = address.split(":")
    with ExitStack() as stack:
        log = folder / "master.log"
        java(stack, log, f"{_DEPLOY}.master.Master", "--host", host, "--port", port, "--webui-port", "0")
        wait_for(lambda: is_open(address), "a master", 60)
        for number in range(workers):
            java(
                stack,
                folder / f"worker-{number}.log",
                *(f"{_DEPLOY}.worker.Worker", "--host", host, "--cores", str(cores), "--memory", "1g"),
                *("--work-dir", str(folder / "work"), "--webui-port", "0", f"spark://{address}"),
                environment=environment,
            )
        wait_for(
            lambda: log.read_text(errors="replace", encoding="utf-8").count("Registering worker") == workers,
            "all workers",
            60,
        )
        yield f"spark://{address}"
