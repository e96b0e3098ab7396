"""How the queries run: free on one node or three, on Spark, and in steps."""

from __future__ import annotations

import json
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .files import NODES, ONE_NODE, SPARK, query, query_in_steps
from .killing import run_and_kill

NEBULI = Path(sys.executable).with_name("nebuli")
MEMBERS, CHECKPOINT_S = 2, 1
FREE = {"free": ONE_NODE, "nodes": NODES, "spark": SPARK}
STEPS = "steps"
WAYS = (*FREE, STEPS)


class Failed(Exception):
    """A query has failed, and printed why."""


def run_free(folder: Path, name: str, way: str) -> None:
    """Run a query; its result is in the folder."""
    topology = at_free_ports(folder / FREE[way])
    ended = subprocess.run(_shown("run", topology, query(name)), check=False, stdout=subprocess.DEVNULL)
    if ended.returncode:
        raise Failed(f"{name}: exit code {ended.returncode}")


def run_in_steps(
    folder: Path, names: Sequence[str], kill_every_s: float | None = None, checkpoint_s: float = CHECKPOINT_S
) -> int:
    """Run queries as one circuit, from step 0 on, and kill members; how many. The results are in the folder."""
    state = folder / "state"
    shutil.rmtree(state, ignore_errors=True)
    together = folder / "nexmark.json"
    together.write_text(json.dumps(circuit(names), indent=1), "utf-8")
    options = ["--stepped", "--members", MEMBERS, "--checkpoint-every", checkpoint_s, "--state", state]
    code, killed = run_and_kill(_shown("run", *options, folder / ONE_NODE, together), kill_every_s)
    if code:
        raise Failed(f"{', '.join(names)}: exit code {code}")
    return killed


def circuit(names: Sequence[str]) -> dict[str, Any]:
    """Queries in parallel, in one circuit: each operator's id has the query's name before it."""
    return {"operators": [operator for name in names for operator in _named(name)]}


def _named(name: str) -> list[dict[str, Any]]:
    operators: list[dict[str, Any]] = json.loads(query_in_steps(name).read_text("utf-8"))["operators"]
    for each in operators:
        each["id"] = f"{name}_{each['id']}"
        if "input" in each:
            each["input"] = f"{name}_{each['input']}"
        if "inputs" in each:
            each["inputs"] = [f"{name}_{child}" for child in each["inputs"]]
    return operators


def at_free_ports(topology: Path) -> Path:
    """The same topology in another file, with nodes at free ports."""
    text = topology.read_text("utf-8")
    written = sorted({word for line in text.splitlines() for word in _addresses(line)})
    with ExitStack() as stack:
        for address in written:
            taken = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            text = text.replace(address, f"127.0.0.1:{taken.getsockname()[1]}")
    moved = topology.with_name(f"at-free-ports-{topology.name}")
    moved.write_text(text, "utf-8")
    return moved


def _addresses(line: str) -> list[str]:
    return [word.strip("[]{},") for word in line.split() if word.strip("[]{},").startswith("127.0.0.1:")]


def _shown(*arguments: object) -> list[str]:
    """Run one of our commands, which is printed."""
    words = [str(each) for each in arguments]
    print(f"$ {shlex.join(['nebuli', *words])}", file=sys.stderr, flush=True)
    return [str(NEBULI), *words]
