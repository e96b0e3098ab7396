"""Run the flights query in steps, with two members, and kill one of them in the middle: the table is the same."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).parent
NEBULI = Path(sys.executable).with_name("nebuli")


TRIES = 10


def main() -> int:
    """Run it, once more if it was over too soon; the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    for _ in range(TRIES):
        code, table, missed = run()
        if code != 0 or missed:
            sys.stdout.write(table)
            return code
        say("it was over before the one that was killed was missed; once more")
    return 1


def run() -> tuple[int, str, bool]:
    """Run it, with a folder of its own for the state: exit code, table, and whether all had to go back."""
    with (
        tempfile.TemporaryDirectory(prefix="flights-") as state,
        tempfile.TemporaryFile("w+", encoding="utf-8") as table,
    ):
        options = ["--stepped", "--members", "2", "--checkpoint-every", "0.1", "--state", state]
        command = [str(NEBULI), "run", *options, str(HERE / "topology.yaml"), str(HERE / "query.json")]
        say(shlex.join(["nebuli", *command[1:]]))
        with subprocess.Popen(command, stdout=table, stderr=subprocess.PIPE, encoding="utf-8") as query:
            try:
                missed = kill_in_the_middle(query)
            finally:
                query.terminate()  # only if we are asked to end
                code = query.wait()
        table.seek(0)
        return code, table.read(), missed


def kill_in_the_middle(query: subprocess.Popen[str]) -> bool:
    """Pass on the query's output, and kill a member after its first checkpoint; returns true if it continued from
    there."""
    killed = missed = False
    assert query.stderr is not None
    for line in query.stderr:
        sys.stderr.write(line)
        missed = missed or "running again" in line
        if not killed and "checkpoint at step" in line:
            killed = True
            member = members_of(query)[-1]
            say(f"kill -9 {member}, which is one of the two members")
            os.kill(member, signal.SIGKILL)
    return missed


def members_of(query: subprocess.Popen[str]) -> list[int]:
    """The process ids of its members, in the order in which they began.

    They are children of the command's template, which is its child.
    """
    parents, members = {}, []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            process = int(stat.parent.name)
            parents[process] = int(stat.read_text("utf-8").rpartition(")")[2].split()[1])
            if (stat.parent / "cmdline").read_bytes().startswith(b"nebuli member "):
                members.append(process)
    return sorted(each for each in members if parents.get(parents[each]) == query.pid)


def say(text: str) -> None:
    """A line among those of the query."""
    print(f"$ {text}" if text.startswith(("nebuli", "kill")) else text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        code = main()
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
