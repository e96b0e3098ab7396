"""What comes out of a query in steps whose command is run again and again, at one state folder."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from nebuli.steps.logs.remap import Remap
from nebuli.steps.member.member_store import LOG
from nebuli.store import Store
from tests.support.commands import Command, Ended, nebuli
from tests.support.seeds import drawn_seed
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.processes, pytest.mark.long]

KILLS = 4
ROWS = 16_000
"""Some seconds of them, and more bytes than the block by which a file is known."""
CHECKPOINTS = 40


class Case:
    """Numbers from 0 on, of a generator, into a sink."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.source: dict[str, Any] = {"type": "Generator", "count": ROWS, "rows_per_s": 2000}
        self.sink: dict[str, Any] = {"type": "CSV", "path": "out.csv", "mode": "append"}
        self.columns = {"n": "int64", "word": "string"}
        self.out = directory / "out.csv"
        self.state = directory / "state"
        self.started: list[Command] = []

    def arguments(self, *options: str) -> tuple[str | Path, ...]:
        """Write the files; the command."""
        node = {
            "address": "127.0.0.1:27900",
            "physical": [{"logical": "numbers", **self.source}],
            "sinks": [{"name": "out", **self.sink}],
        }
        schema = [{"name": name, "type": type_} for name, type_ in self.columns.items()]
        topology = {"logical": [{"name": "numbers", "schema": schema}], "nodes": [node]}
        operators = [
            {"id": "numbers", "type": "source", "logical": "numbers"},
            {"id": "out", "type": "sink", "input": "numbers", "sink": "out"},
        ]
        (self.directory / "topology.yaml").write_text(yaml.safe_dump(topology), "utf-8")
        (self.directory / "query.json").write_text(json.dumps({"operators": operators}), "utf-8")
        files = self.directory / "topology.yaml", self.directory / "query.json"
        return "run", "--stepped", "--state", self.state, "--checkpoint-every", "0.2", *options, *files

    def start(self, *options: str) -> Command:
        command = Command(*self.arguments(*options), directory=self.directory)
        self.started.append(command)
        return command

    def start_free(self) -> Command:
        """Start it free, and not in steps."""
        command = Command("run", *self.arguments()[-2:], directory=self.directory)
        self.started.append(command)
        return command

    def run(self, *options: str) -> Ended:
        return nebuli(*self.arguments(*options), directory=self.directory)

    def numbers(self) -> list[int]:
        """What is in the file; the rows of a step have no order."""
        header, *rows = self.out.read_text("utf-8").splitlines()
        assert header.lower().startswith('"n"')
        return sorted(int(row.split(",")[0]) for row in rows)

    def stop_behind(self, rows: int, by: signal.Signals = signal.SIGKILL) -> Ended:
        """Run it until so many rows are in the file, and end the command then."""
        command = self.start()
        wait_for(lambda: self.out.exists() and self.out.read_bytes().count(b"\n") > rows, f"{rows} rows")
        command.process.send_signal(by)
        return command.end()


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    case = Case(tmp_path)
    yield case
    for command in case.started:
        if command.process.poll() is None:
            command.process.kill()
            command.end()


def members_of(command: Command) -> list[psutil.Process]:
    return psutil.Process(command.process.pid).children(recursive=True)


@pytest.mark.parametrize("mode", ["append", "changes"])
def test_a_growing_file_has_each_row_once_whatever_is_killed(case: Case, mode: str) -> None:
    """DBSP-OUT-7: kill -9 of the command and of members at random points; the file is that of one run."""
    case.sink["mode"] = mode
    with drawn_seed() as seed:
        at_random = random.Random(seed)
        for _ in range(KILLS):
            command = case.start("--members", "2")
            command.wait_until_said("members running")
            until = time.monotonic() + at_random.uniform(0.1, 1.0)
            wait_for(lambda until=until: time.monotonic() > until, "a random point")  # type: ignore[misc]
            members = members_of(command)
            if members and at_random.random() < 0.5:
                with suppress(psutil.NoSuchProcess):
                    at_random.choice(members).kill()
            command.process.kill()
            command.end()
        ended = case.run("--members", "2")
        assert ended.exit_code == 0, ended.stderr
        assert case.numbers() == list(range(ROWS))
    killed = sorted(case.out.read_text("utf-8").splitlines())
    case.state, case.source["rows_per_s"] = case.directory / "uninterrupted", None
    assert case.run("--members", "2").exit_code == 0
    assert sorted(case.out.read_text("utf-8").splitlines()) == killed


def test_a_file_is_left_as_it_is_where_a_members_state_is_gone_or_older(case: Case) -> None:
    """A refused run touches nothing: with the state as it was, the next one goes on with the file as it was."""
    case.columns = {"n": "int64"}
    case.source = {"type": "CSV", "path": "numbers.csv"}
    copies = []
    for count in (10, 20, 30, 40):
        (case.directory / "numbers.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(count)), "utf-8")
        assert case.run("--members", "2").exit_code == 0
        copies.append(shutil.copytree(case.state, case.directory / f"copy-{count}"))
    before = case.out.read_bytes()

    def exchange(copy: Path | None) -> None:
        """Have the member that writes the file have what it had in a copy, or nothing."""
        shutil.rmtree(case.state / "member-0")
        if copy is not None:
            shutil.copytree(copy / "member-0", case.state / "member-0")

    exchange(None)
    ended = case.run("--members", "2")
    assert (ended.exit_code, case.out.read_bytes()) == (1, before)
    assert "member-0 must contain the state of a member, but is missing or empty" in ended.stderr
    shutil.copytree(copies[0] / "member-0", case.state / "member-0")
    ended = case.run("--members", "2")
    assert (ended.exit_code, case.out.read_bytes()) == (1, before)
    assert "the members share no checkpoint" in ended.stderr
    exchange(copies[-1])
    (case.directory / "numbers.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(50)), "utf-8")
    assert case.run("--members", "2").exit_code == 0
    assert case.numbers() == list(range(50))


def mark(file: Path) -> None:
    """Change the name of its first column, which whoever writes it anew writes as it was."""
    with file.open("r+b") as opened:
        opened.write(b'"N"')


def is_marked(file: Path) -> bool:
    return file.read_bytes().startswith(b'"N"')


def test_a_growing_file_is_gone_on_with_and_not_written_anew(case: Case) -> None:
    """What was behind the position when the run was killed is cut off, and comes again."""
    case.stop_behind(ROWS * 3 // 4)
    with case.out.open("ab") as file:
        file.write(b"half a r")
    mark(case.out)
    ended = case.run()
    assert ended.exit_code == 0, ended.stderr
    assert is_marked(case.out)
    assert case.numbers() == list(range(ROWS))


def test_run_again_at_its_end_a_growing_file_stays_as_it_is(case: Case) -> None:
    case.source["rows_per_s"] = None
    assert case.run().exit_code == 0
    mark(case.out)
    there = case.out.read_bytes()
    assert case.run().exit_code == 0
    assert case.out.read_bytes() == there


def test_a_growing_file_that_is_not_as_it_was_is_left_alone(case: Case) -> None:
    """Changed, or shorter: it says what, where, and what to do."""
    case.source["rows_per_s"] = None
    assert case.run().exit_code == 0
    whole = case.out.read_bytes()
    for there, said in (
        (whole[:-10], f"has {len(whole) - 10:,} bytes, but {len(whole):,} had been written to it"),
        (
            whole[:-3] + b"?" + whole[-2:],
            f"was changed: its first {len(whole):,} bytes differ from the written ones",
        ),
    ):
        case.out.write_bytes(there)
        ended = case.run()
        assert ended.exit_code == 1
        assert ended.error == (
            f"out.csv {said}: it was changed since; restore it, or move it away and start from scratch with "
            f"another state folder"
        )
        assert case.out.read_bytes() == there
    case.out.unlink()
    case.out.write_bytes(whole)  # a copy of it will do
    assert case.run().exit_code == 0


def test_a_growing_file_that_is_gone_is_written_anew_if_all_steps_are_kept(case: Case) -> None:
    case.source["rows_per_s"] = None
    assert case.run("--keep-output", "all").exit_code == 0
    case.out.unlink()
    ended = case.run("--keep-output", "all")
    assert ended.exit_code == 0
    assert "out.csv is gone" in ended.stderr
    assert "it is written from scratch, because all steps are kept" in ended.stderr
    assert case.numbers() == list(range(ROWS))


def test_a_growing_file_that_is_emptied_behind_its_end_is_written_anew_while_members_trim(case: Case) -> None:
    """By a log rotation, say: what is kept for it when the run begins stays until it is opened."""
    (case.directory / "numbers.csv").write_text(
        "n,word\n" + "".join(f"{n},w{n}\n" for n in range(26_000)), "utf-8"
    )
    case.source = {"type": "CSV", "path": "numbers.csv"}
    case.sink["path"], case.out = "rows.csv", case.directory / "rows.csv"
    assert case.run("--checkpoint-every", "0.3").exit_code == 0
    whole = sorted(case.out.read_text("utf-8").splitlines())
    case.out.write_bytes(b"")
    ended = case.run("--checkpoint-every", "0.3")
    assert ended.exit_code == 0, ended.stderr
    why = r"rows\.csv is empty, but [0-9,]+ bytes had been written to it"
    assert re.search(f"{why}: it is written from scratch, because all steps are kept", ended.stderr)
    assert "done" in ended.stderr.split()
    assert sorted(case.out.read_text("utf-8").splitlines()) == whole


def test_a_growing_file_that_is_gone_for_good_is_said_with_what_to_do(case: Case) -> None:
    """Deleted or emptied: put back, it is gone on with."""
    case.stop_behind(ROWS * 3 // 4)
    there = case.out.read_bytes()
    for lose in (case.out.unlink, case.out.touch):
        lose()
        ended = case.run()
        assert ended.exit_code == 1
        assert re.search(r"out\.csv is (gone|empty), but [0-9,]+ bytes had been written to it", ended.error)
        assert "put it back unchanged, or start again with another state folder" in ended.error
        assert "done" not in ended.stderr.split()
        assert not case.out.exists() or not case.out.read_bytes()
    case.out.write_bytes(there)
    assert case.run().exit_code == 0
    assert case.numbers() == list(range(ROWS))


@pytest.mark.parametrize("stepped", [True, False])
@pytest.mark.parametrize("damage", ["cut", "delete"])
def test_a_growing_file_that_is_damaged_while_it_is_written_fails_the_query(
    case: Case, stepped: bool, damage: str
) -> None:
    command = case.start() if stepped else case.start_free()
    wait_for(lambda: case.out.exists() and case.out.read_bytes().count(b"\n") > 500, "some rows")
    if damage == "cut":
        os.truncate(case.out, 100)
    else:
        case.out.unlink()
    ended = command.end()
    assert ended.exit_code == 1
    assert (
        f"out.csv was {'cut' if damage == 'cut' else 'deleted or moved'} while it was written" in ended.stderr
    )
    assert "keep other programs from it while the query runs, and run the query again" in ended.stderr
    assert "done" not in ended.stderr.split()


def test_a_growing_file_that_is_elsewhere_or_empty_is_written_anew_only_if_all_steps_are_kept(
    case: Case,
) -> None:
    """What a page says of it: a file that is moved is gone on with; what is kept decides about all else."""
    case.source |= {"count": 2000, "rows_per_s": None}
    for options in ((), ("--keep-output", "all")):
        case.out, case.state = case.directory / "out.csv", case.directory / f"state{len(options)}"
        case.sink["path"] = "out.csv"
        for _ in range(2):  # the first checkpoint but one is what steps are kept from
            assert case.run(*options).exit_code == 0
        there = case.out.read_bytes()
        case.sink["path"] = "new.csv"
        case.out = case.directory / "new.csv"
        ended = case.run(*options)
        if not options:
            assert ended.exit_code == 1
            assert "new.csv is gone" in ended.error
            assert "put it back unchanged, or start again with another state folder" in ended.error
            (case.directory / "out.csv").rename(case.out)
            assert case.run().exit_code == 0
            assert case.out.read_bytes() == there
            case.out.unlink()
            continue
        assert ended.exit_code == 0
        assert "it is written from scratch, because all steps are kept" in ended.stderr
        assert case.numbers() == list(range(2000))
        assert (case.directory / "out.csv").read_bytes() == there
        case.out.write_bytes(b"")
        assert case.run(*options).exit_code == 0
        assert case.numbers() == list(range(2000))


def test_another_sink_that_would_lack_steps_is_refused(case: Case) -> None:
    case.stop_behind(ROWS * 3 // 4)
    case.sink = {"type": "CSV", "path": "out.csv", "mode": "final"}
    there = case.out.read_bytes()
    ended = case.run()
    assert ended.exit_code == 1
    assert "the sink of out (CSV in mode final) must be written from step 0 on" in ended.error
    assert case.out.read_bytes() == there
    case.sink["mode"] = "append"
    assert case.run().exit_code == 0
    assert case.numbers() == list(range(ROWS))


def numbers_of(lines: list[str]) -> list[int]:
    """The numbers of a table: neither its header nor the rule below that."""
    words = [line.split()[0] for line in lines]
    return sorted(int(word) for word in words if word.isdecimal())


def printed(case: Case, by: signal.Signals) -> list[int]:
    """What is printed, if it is ended after some checkpoints."""
    command = case.start()
    stdout, stderr = command.process.stdout, case.directory / "stderr.txt"
    assert stdout is not None
    lines = [stdout.readline().decode()]
    while stderr.read_text("utf-8").count("checkpoint at step") < 4:
        lines.append(stdout.readline().decode())
    command.process.send_signal(by)
    rest = command.end().stdout
    whole = rest[: rest.rfind("\n") + 1]  # killed within a line it has printed a part of that
    return numbers_of([*lines, *whole.splitlines()])


def test_what_was_printed_is_not_printed_from_the_beginning_again(case: Case) -> None:
    """After a kill what came since the last checkpoint, perhaps; after a clean end nothing, and no header."""
    case.sink = {"type": "Print", "mode": "append"}
    killed = printed(case, signal.SIGKILL)
    assert killed == list(range(len(killed)))
    interrupted = printed(case, signal.SIGINT)
    assert 0 < interrupted[0] <= killed[-1] + 1
    assert interrupted == list(range(interrupted[0], interrupted[-1] + 1))
    ended = case.run()
    assert numbers_of(ended.stdout.splitlines()) == list(range(interrupted[-1] + 1, ROWS))
    assert case.run().stdout == ""


def bytes_in(folder: Path) -> int:
    """What the files of a folder have, of those that stay while it is looked."""
    size = 0
    for each in folder.rglob("*"):
        with suppress(FileNotFoundError):
            size += each.stat().st_size
    return size


def test_the_disk_of_an_endless_query_is_of_bounded_size(case: Case) -> None:
    """DBSP-OUT-2: what its sink has had is trimmed, however much has come out."""
    case.source = {"type": "Generator", "rows_per_s": 50_000}
    case.sink = {"type": "Null", "mode": "append"}
    case.columns |= {f"x{number}": "float64" for number in range(31)}
    command = case.start()
    sizes: dict[int, int] = {}

    def checkpoints() -> int:
        made = (case.directory / "stderr.txt").read_text("utf-8").count("checkpoint at step")
        sizes[made] = bytes_in(case.state / "member-0")
        return made

    wait_for(lambda: checkpoints() > CHECKPOINTS, "many checkpoints", timeout_s=150.0)
    command.process.send_signal(signal.SIGINT)
    command.end()
    came_out = asyncio.run(rows_at_the_end(case)) * len(case.columns) * 8
    # The least, as what comes between two checkpoints goes up and down with the machine's load.
    late = min(size for made, size in sizes.items() if made > CHECKPOINTS / 2)
    assert came_out > 4 * late, f"{late:,} bytes on disk, of {came_out:,}"


async def rows_at_the_end(case: Case) -> int:
    """How many rows the steps have that there are."""
    async with Store.at(case.state / "member-0") as store:
        remap = await Remap.open(store, LOG, {})
        return sum(each.rows for each in (await remap.where(remap.last)).values())


def test_a_second_query_does_not_write_to_the_same_file(case: Case) -> None:
    """It is refused with who writes there, until that one has ended, or is killed; and the file is that one's alone."""
    case.source["count"] = 8000
    first = case.start()
    wait_for(lambda: case.out.exists() and case.out.read_bytes().count(b"\n") > 500, "some rows")
    second = case.run("--state", str(case.directory / "other"))
    assert second.exit_code == 1
    assert "out.csv is in use as a sink by query query, fragment all members at" in second.error
    assert first.end().exit_code == 0
    assert case.numbers() == list(range(8000))
    assert not list(case.directory.glob(".out.csv.lock"))
