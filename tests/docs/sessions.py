"""What a reader of a page would do: save its files, run its scripts and commands, see its outputs.

The commands of a page run in one shell, one after the other, in an empty directory. Ports in the text stand for free
ones. In an expected output ``...`` stands for anything, alone on a line for any lines, and times are not compared.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.docs.markdown import ROOT, Block
from tests.support.environments import INSTALLING
from tests.support.ports import free_addresses

_ADDRESS = re.compile(r"\b(127\.0\.0\.1:)?(27[45]\d\d)\b")
_TIME = re.compile(r"(?m)^ *\d+\.\d s  ")
_SLOW = re.compile(
    r"^(?:channel .* has not been attached for 5 s: |\d+ more channels within |channel .* close\(\) waits for ).*\n",
    re.MULTILINE,
)
_PROMPT = "$ "
_EXAMPLES = ("flights", "nexmark")
_TIMEOUT_S = 250
_DEMO = "; echo; ".join(
    f"nebuli {command} examples/flights/topology.yaml examples/flights/query.json"
    for command in ("place", "run")
)

_PICTURE = "nebuli place topology.yaml query.json --format mermaid"


@dataclass(frozen=True, slots=True)
class Step:
    """A command of a page, where it stands, and what it prints; None: that does not matter."""

    command: str
    expected: str | None
    line: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command did."""

    step: Step
    output: str
    exit_code: int


def steps_of(page: list[Block]) -> list[Step]:
    """What there is to run, files to save included."""
    steps: list[Step] = []
    for index, block in enumerate(page):
        following = page[index + 1] if index + 1 < len(page) else None
        prints = following if following and following.lead.endswith("prints:") else None
        if block.file and block.language == "mermaid":
            steps.append(Step(_PICTURE, block.text, block.line))
        elif block.file:
            steps.append(Step(_save(block.file, block), "", block.line))
        elif block.language == "python":
            name = f"snippet{block.line}.py"
            steps.append(Step(_save(name, block), "", block.line))
            steps.append(Step(f"python -W error {name}", prints.text if prints else None, block.line))
        elif block.language == "console":
            steps += _console(block)
    return steps


def _save(name: str, block: Block) -> str:
    return f"mkdir -p $(dirname {name}); cat > {name} <<'END OF FILE'\n{block.text}END OF FILE"


def _console(block: Block) -> Iterator[Step]:
    command: str | None = None
    expected: list[str] = []
    began = block.line
    for number, line in enumerate(block.text.splitlines(keepends=True), start=block.line + 1):
        if not line.startswith(_PROMPT):
            expected.append(line)
            continue
        if command is not None:
            yield Step(command, "".join(expected), began)
        command, expected, began = line.removeprefix(_PROMPT).rstrip("\n"), [], number
    assert command is not None, f"line {block.line}: a console block without a command"
    yield Step(command, "".join(expected), began)


def run(steps: list[Step], directory: Path, commands: Path = Path(sys.executable).parent) -> list[Outcome]:
    """Run the steps in a shell of their own, with the examples beside them, and the environment's ``commands``."""
    for example in _EXAMPLES:
        shutil.copytree(ROOT / "examples" / example, directory / "examples" / example, symlinks=True)
    ports = _free_ports([step.command for step in steps], directory)
    outputs = directory / ".outputs"
    outputs.mkdir()
    script = directory / ".session.sh"
    script.write_text("".join(_shell(number, step, ports) for number, step in enumerate(steps)), "utf-8")
    home = directory / ".home"  # what workers keep is no other reader's
    home.mkdir()
    path = f"{commands}:{os.environ['PATH']}"
    environment = {**os.environ, **INSTALLING, "PATH": path, "HOME": str(home)}
    with subprocess.Popen(["bash", script], cwd=directory, env=environment, start_new_session=True) as shell:
        try:
            shell.wait(_TIMEOUT_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    return [
        Outcome(
            Step(step.command, None if step.expected is None else _moved(step.expected, ports), step.line),
            _without_notices((outputs / str(number)).read_text("utf-8"), script),
            int((outputs / f"{number}.code").read_text("utf-8")),
        )
        for number, step in enumerate(steps)
    ]


def _shell(number: int, step: Step, ports: dict[str, str]) -> str:
    # The exit code is there for the next command too, which may be "echo $?".
    command = _moved(step.command.replace("make demo", _DEMO), ports)
    return (
        f"{{ {command}\n}} > .outputs/{number} 2>&1; code=$?; echo $code > .outputs/{number}.code; "
        f"(exit $code)\n"
    )


def _without_notices(output: str, script: Path) -> str:
    """What was printed, without what the shell says of jobs that were killed; an interactive one says it too.

    Nor what a command says that it waits for, where a machine is slow.
    """
    # A notice may stand behind an output that does not end its line.
    notice = rf"(?m)^{re.escape(str(script))}: line .*\n?|{re.escape(str(script))}: line .*"
    output = re.sub(r"(?m)^waiting, for \d+ s at most: .*\n", "", output)
    lines = re.sub(notice, "", output).splitlines()
    return "".join(f"{line}\n" for line in lines)


def _free_ports(texts: list[str], directory: Path) -> dict[str, str]:
    topology = directory / "examples" / "flights" / "topology.yaml"
    example = topology.read_text("utf-8")
    written = sorted({found[2] for text in (*texts, example) for found in _ADDRESS.finditer(text)})
    free = [address.rpartition(":")[2] for address in free_addresses(len(written))]
    ports = dict(zip(written, free, strict=True))
    topology.write_text(_moved(example, ports), "utf-8")
    return ports


def _moved(text: str, ports: dict[str, str]) -> str:
    return _ADDRESS.sub(lambda found: (found[1] or "") + ports.get(found[2], found[2]), text)


def agrees(expected: str, output: str) -> bool:
    """Whether an output is what the page shows, beside what is only said where processes take long to start."""
    output = _SLOW.sub("", output)
    wanted = _TIME.sub("       ", expected)
    pattern = "".join(
        "(?:.*\n)*?" if line == "...\n" else re.escape(line).replace(re.escape("..."), ".*")
        for line in wanted.splitlines(keepends=True)
    )
    return re.fullmatch(pattern, _TIME.sub("       ", output)) is not None
