"""The template of a command is forked after the imports that both need, while the command has a single thread."""

from __future__ import annotations

import os
import subprocess
import sys
from platform import machine

import pytest

_FORK = """
import os, sys
from nebuli.cli.local_template import forked_template

fork = os.fork

def watched():
    print(len(os.listdir("/proc/self/task")), sys.argv[1] in sys.modules, flush=True)
    return fork()

os.fork = watched
with forked_template(sys.argv[1]):
    import pyarrow
    print(pyarrow.default_memory_pool().backend_name)
"""
_EXPECTED_POOL = "jemalloc" if (sys.platform, machine()) == ("linux", "x86_64") else None


@pytest.mark.processes
@pytest.mark.parametrize("shared", ["nebuli.cli.files", "nebuli.steps.local.member_process"])
def test_it_is_forked_with_one_thread_after_the_shared_imports(shared: str) -> None:
    """As users run it: without the settings that keep libraries from starting threads at their import."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not any(each in name for each in ("THREADS", "MALLOC", "MEMORY_POOL"))
    }
    done = subprocess.run(
        [sys.executable, "-c", _FORK, shared],
        env=kept,
        capture_output=True,
        encoding="utf-8",
        check=True,
        timeout=60,
    )
    forked, pool = done.stdout.splitlines()
    assert forked == "1 True"
    assert pool == _EXPECTED_POOL or _EXPECTED_POOL is None
