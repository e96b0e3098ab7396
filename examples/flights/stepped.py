"""Run the flights query in steps, with two members, and kill one of them in the middle: the table is the same."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
NEBULI = Path(sys.executable).with_name("nebuli")


def main() -> int:
    """Run it with a folder of its own for the state; the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="flights-") as state:
        options = ["--stepped", "--members", "2", "--checkpoint-every", "0.2", "--state", state]
        command = [str(NEBULI), "run", *options, str(HERE / "topology.yaml"), str(HERE / "query.json")]
        say(shlex.join(["nebuli", *command[1:]]))
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as query:
            try:
                killed = kill_in_the_middle(query)
            finally:
                query.terminate()  # only where we are told to end
                code = query.wait()
    if code == 0 and killed is None:
        say("the query was over before anybody was killed")
        return 1
    return code


def kill_in_the_middle(query: subprocess.Popen[str]) -> int | None:
    """Pass on what the query says, and kill a member behind its first checkpoint; the member's process id."""
    killed = None
    assert query.stderr is not None
    for line in query.stderr:
        sys.stderr.write(line)
        if killed is None and "checkpoint at step" in line:
            killed = members_of(query)[-1]
            say(f"kill -9 {killed}, which is one of the two members")
            os.kill(killed, signal.SIGKILL)
    return killed


def members_of(query: subprocess.Popen[str]) -> list[int]:
    """The process ids of its children, in the order in which they began."""
    parents = {
        int(stat.parent.name): int(stat.read_text().rpartition(")")[2].split()[1])
        for stat in Path("/proc").glob("[0-9]*/stat")
    }
    return sorted(process for process, parent in parents.items() if parent == query.pid)


def say(text: str) -> None:
    """A line among those of the query."""
    print(f"$ {text}" if text.startswith(("nebuli", "kill")) else text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        code = main()
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
