"""``nebuli source``, as processes of their own, over files that grow."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil
import pytest

from nebuli.blocking import Collections
from nebuli.ingestion.running.process_lock import LockHolder
from nebuli.ingestion.running.supervisor_files import SupervisorFiles
from nebuli.store.collections.clock import now_ms
from nebuli.store.errors import NotYet
from tests.support.commands import Command, Ended, nebuli
from tests.support.object_store import object_store
from tests.support.postgres import server
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes

DEFINITION = """
name: sales
from: {type: File, path: in/sales*.csv}
format: CSV
schema:
  - {name: shop, type: string}
  - {name: amount, type: int64}
on_error: wait
"""
Rows = list[tuple[str, int]]


class Site:
    """A folder with a definition, files that it names, and a store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.definition = folder / "sales.yaml"
        self.definition.write_text(DEFINITION, "utf-8")
        self.file = folder / "in" / "sales.csv"
        self.file.parent.mkdir()
        self.file.write_text("shop,amount\nAachen,1\n", "utf-8")
        self.store = folder / "store"

    def run(self, command: str, *arguments: str | Path) -> Ended:
        return nebuli("source", command, "--store", self.store, *arguments, directory=self.folder)

    def done(self, command: str, *arguments: str | Path) -> str:
        ended = self.run(command, *arguments)
        assert ended.exit_code == 0, ended.stderr
        return ended.stdout

    def add(self, *rows: tuple[str, int]) -> None:
        with self.file.open("a", encoding="utf-8") as file:
            file.writelines(f"{shop},{amount}\n" for shop, amount in rows)

    def rows(self) -> Rows:
        with Collections(self.store) as collections:
            try:
                found = collections.snapshot("sales", collections.latest("sales"))
            except NotYet:
                return []
        return sorted((row["shop"], row["amount"]) for row in found.to_pylist())

    def until_rows(self, rows: Rows) -> None:
        wait_for(lambda: self.rows() == sorted(rows), f"{rows}")

    def shown(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.done("show", "sales", "--json"))
        return found

    def instances(self) -> dict[str, int]:
        """The processes of those that have said that they run, by their names."""
        return {
            each["instance"]: each["pid"]
            for each in self.shown()["instances"]
            if each["health"] == "running" and psutil.pid_exists(each["pid"])
        }

    @property
    def supervisor(self) -> int:
        holder = SupervisorFiles.at(self.store, self.folder).supervisor.holder()
        return 0 if holder is None else holder.pid

    def serve(self) -> Command:
        """A supervisor in the foreground."""
        directory = self.folder / "served"
        directory.mkdir(exist_ok=True)
        command = Command("source", "serve", "--store", self.store, directory=directory)
        command.wait_until_said(f"running the sources of store {self.store}")
        return command

    @contextmanager
    def fed(self) -> Iterator[Rows]:
        """Rows come in all the while; those that there are, which are all at the end."""
        rows, is_over = [("Aachen", 1)], Event()

        def feed() -> None:
            for amount in range(2, 100_000):
                if is_over.wait(0.01):
                    return
                self.add(("Bonn", amount))
                rows.append(("Bonn", amount))

        thread = Thread(target=feed)
        thread.start()
        try:
            yield rows
        finally:
            is_over.set()
            thread.join(30)

    def until_more(self) -> None:
        """Wait until rows are ingested that came after this."""
        last = self.file.read_text("utf-8").splitlines()[-1].split(",")
        wait_for(lambda: (last[0], int(last[1])) in self.rows(), f"{last} is ingested")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    found = Site(tmp_path)
    yield found
    files = SupervisorFiles.at(found.store, tmp_path)
    end(files.supervisor.holder())  # a command, or one that was started apart from a command
    for _, _, holder in files.supervised():
        end(holder)


def end(holder: LockHolder | None) -> None:
    if holder is not None:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(holder.pid)
            process.terminate()
            process.wait(30)


def is_gone(*pids: int) -> Callable[[], bool]:
    return lambda: not any(map(psutil.pid_exists, pids))


@pytest.mark.long
def test_what_is_appended_to_a_file_comes_into_the_collection_whoever_is_killed(site: Site) -> None:
    """An instance that is killed is started again; without a supervisor it is not, until there is one again."""
    said = site.done("create", site.definition)
    assert "source sales is ingested into the collection of its name" in said
    assert f"nebuli source show sales --store {site.store}" in said
    site.until_rows([("Aachen", 1)])
    site.add(("Bonn", 2))
    site.until_rows([("Aachen", 1), ("Bonn", 2)])

    first = site.instances()
    os.kill(first["1"], signal.SIGKILL)
    site.add(("Bonn", 3))
    site.until_rows([("Aachen", 1), ("Bonn", 2), ("Bonn", 3)])
    second = wait_for(lambda: {k: v for k, v in site.instances().items() if v != first["1"]}, "another one")

    supervisor = site.supervisor
    os.kill(supervisor, signal.SIGKILL)
    wait_for(is_gone(supervisor), "the supervisor has ended")
    assert "no supervisor runs to restart an instance" in site.done("show", "sales")
    os.kill(second["1"], signal.SIGKILL)
    wait_for(is_gone(second["1"]), "its instance has ended")
    site.add(("Aachen", 4))
    shown = site.done("show", "sales")
    assert "no instance runs, but 1 should; start it with:" in shown
    assert f"nebuli source scale sales 1 --store {site.store}" in shown
    assert "lag 9 bytes" in shown  # those of "Aachen,4" with its end, which nobody has read
    site.done("scale", "sales", "1")
    site.until_rows([("Aachen", 1), ("Aachen", 4), ("Bonn", 2), ("Bonn", 3)])

    (site.file.parent / "sales2.csv").write_text("amount,shop\n5,Celle\n", "utf-8")
    site.until_rows([("Aachen", 1), ("Aachen", 4), ("Bonn", 2), ("Bonn", 3), ("Celle", 5)])
    instances = [site.supervisor, *site.instances().values()]
    assert "dropped source sales" in site.done("drop", "sales")
    assert is_gone(*instances)() or wait_for(is_gone(*instances), "all have ended")
    assert site.done("list") == "no sources\n"
    site.done("create", site.definition)
    site.until_rows([("Aachen", 1), ("Aachen", 4), ("Bonn", 2), ("Bonn", 3), ("Celle", 5)])


@pytest.mark.long
def test_a_source_is_scaled_and_built_anew_while_it_runs(site: Site) -> None:
    """From 1 to 3, to 1, to none, and to 1 again; the same supervisor, as long as there is any instance."""
    site.done("create", site.definition)
    supervisor, one = site.supervisor, site.instances()
    assert "source sales has 3 instances" in site.done("scale", "sales", "3")
    three = site.instances()
    assert (three.keys(), three["1"]) == ({"1", "2", "3"}, one["1"])
    site.done("scale", "sales", "1")
    assert (site.instances(), site.supervisor) == (one, supervisor)
    assert "source sales has stopped" in site.done("scale", "sales", "0")
    wait_for(is_gone(supervisor, *three.values()), "all have ended")
    assert "no instance runs, because the source was scaled to 0" in site.done("show", "sales")
    site.add(("Bonn", 2))
    site.done("scale", "sales", "1")
    site.until_rows([("Aachen", 1), ("Bonn", 2)])

    assert "as version 2, rendition r2" in site.done("rebuild", "sales")
    wait_for(lambda: site.shown()["active"] == "r2", "the new rendition")
    site.add(("Bonn", 3))
    site.until_rows([("Aachen", 1), ("Bonn", 2), ("Bonn", 3)])
    site.definition.write_text(
        DEFINITION.replace("format: CSV", "format: {type: CSV, nulls: [Aachen]}"), "utf-8"
    )
    assert "as version 3" in site.done("rebuild", "sales", site.definition)
    wait_for(lambda: site.shown()["active"] == "r3", "the new rendition")
    assert site.shown()["definition"]["format"] == {"type": "CSV", "nulls": ["Aachen"]}
    site.definition.write_text(DEFINITION.replace("int64", "string"), "utf-8")
    ended = site.run("rebuild", "sales", site.definition)
    assert ended.exit_code == 2
    assert "the definition has another 'schema' than source" in ended.error


def test_the_lag_is_what_a_source_has_beyond_its_remap(site: Site) -> None:
    """ST-AUX-1: shown by raw source and part, with what lies between, also while nobody ingests it."""
    site.file.write_text("shop,amount\nAachen,1\n", "utf-8")  # of 12 bytes and of 9
    said = site.done("create", site.definition, "--no-start")
    assert f"run it with: nebuli source serve --store {site.store}" in said
    (raw,) = site.shown()["raw_sources"].values()
    assert (raw["addresses"], raw["ends"], raw["lag"], raw["unit"]) == ({}, {str(site.file): 21}, 21, "bytes")
    assert site.shown()["lag_ms"] is None
    site.done("scale", "sales", "1")
    wait_for(lambda: site.shown()["raw_sources"]["data"]["lag"] == 0, "all is recorded")
    site.done("scale", "sales", "0")
    site.add(("Celle", 23))  # 9 bytes more
    found = site.shown()
    (raw,) = found["raw_sources"].values()
    assert (raw["addresses"], raw["ends"]) == ({str(site.file): 21}, {str(site.file): 30})
    assert raw["lag"] == 9
    assert 0 < found["remap_upper"] <= now_ms()
    assert f"data: sales ({site.folder}/in/sales*.csv), lag 9 bytes" in site.done("show", "sales")
    (listed,) = json.loads(site.done("list", "--json"))
    assert (listed["name"], listed["raw_sources"]["data"]["lag"]) == ("sales", 9)
    line = site.done("list").splitlines()[2].split()
    assert (line[:7], line[-5:]) == (
        ["sales", "1", "r1", "there", "0", "of", "0"],
        ["9", "bytes", "scaled", "to", "0"],
    )


def test_what_is_wrong_is_said_with_its_place(site: Site) -> None:
    site.definition.write_text(DEFINITION.replace("int64", "int46").replace("File", "Fle"), "utf-8")
    ended = site.run("create", site.definition)
    assert ended.exit_code == 2
    assert [line.split(": ")[0] for line in ended.stderr.splitlines()] == [
        f"{site.definition}:3:14",
        f"{site.definition}:7:26",
    ]
    ended = site.run("create", site.folder / "none.yaml")
    assert (ended.exit_code, ended.stderr) == (
        2,
        f"{site.folder}/none.yaml: cannot read the file: No such file or directory\n",
    )
    site.definition.write_text(DEFINITION, "utf-8")
    site.done("create", site.definition, "--no-start")
    for command in (
        ("create", site.definition),
        ("show", "sale"),
        ("scale", "sale", "1"),
        ("drop", "sale"),
        ("run", "sale"),
    ):
        ended = site.run(*command)
        assert (ended.exit_code, bool(re.search("exists already|unknown source sale", ended.error))) == (
            2,
            True,
        )
    ended = nebuli("source", "list", "--store", site.folder / "nowhere", directory=site.folder)
    assert (ended.exit_code, ended.error.startswith(f"no store at {site.folder}/nowhere")) == (2, True)


@pytest.mark.parametrize("more", ["", "raw: true\n"])
@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("shop,amount\nAachen,one\n", "the message at 12 of "),
        ("shop,amuont\nAachen,1\n", "amuont"),
    ],
)
def test_a_row_that_is_none_is_said_by_whoever_creates_the_source(
    site: Site, lines: str, said: str, more: str
) -> None:
    """The source is there, and goes on once it is mended; what it was held up by is over then, and nothing is left."""
    site.file.write_text(lines, "utf-8")
    site.definition.write_text(DEFINITION + more, "utf-8")
    ended = site.run("create", site.definition, "--replicas", "2")
    assert ended.exit_code == 1
    assert "created source sales, which does not run yet: " in ended.stderr
    assert said in ended.stderr
    assert f"{site.file}" in ended.stderr
    log, lock = (site.store / "sources" / each for each in ("sales.log", "sales@1.lock"))
    assert f"its log is {log}" in ended.stderr
    found = site.shown()
    assert (found["health"], found["error"]) == ("waiting", found["last_error"])
    assert f"\nheld up: {found['error']}\n" in site.done("show", "sales")
    assert "  held up: " in site.done("list")
    assert str(site.file) in log.read_text("utf-8")

    if not more:
        site.file.write_text("shop,amount\nAachen,1\n", "utf-8")
    elif "one" in lines:  # what is kept raw is as it came
        site.definition.write_text(
            site.definition.read_text("utf-8").replace("CSV", "{type: CSV, nulls: [one]}"), "utf-8"
        )
        assert "nebuli source rebuild sales FILE" in found["error"]
        site.done("rebuild", "sales", site.definition)
    if not more or "one" in lines:
        wait_for(lambda: site.shown()["health"] == "running", "it runs")
        assert site.shown()["error"] is None
        assert ", resolved:\n" in site.done("show", "sales")
        assert site.rows()
    site.done("drop", "sales")
    assert (log.exists(), lock.exists()) == (False, False)


def test_a_row_is_passed_over_by_the_command_that_its_error_has(site: Site) -> None:
    """Also one whose file has a name that a shell would take apart; an address that is ingested is refused."""
    file = site.file.rename(site.file.with_name("sales of '26.csv"))
    file.write_text("shop,amount\nAachen,one\nBonn,2\n", "utf-8")
    assert site.run("create", site.definition).exit_code == 1
    said = site.shown()["error"]
    nebuli_source_skip = shlex.split(said[said.index("nebuli source skip") : said.rindex("'")])
    assert nebuli_source_skip[3:] == ["sales", "12", "--part", str(file)]
    told = site.done(*nebuli_source_skip[2:])
    assert told.startswith("source sales skips the message at 12")
    site.until_rows([("Bonn", 2)])
    ended = site.run(*nebuli_source_skip[2:4], "13", *nebuli_source_skip[5:])
    assert ended.exit_code == 2
    assert f"is ingested up to 30 of {file}" in ended.error
    site.done("drop", "sales")


def test_where_nothing_is_yet_that_is_said(site: Site) -> None:
    """Of a pattern that matches nothing, which is waited for; a folder that is not there is a mistake."""
    site.file.unlink()
    ended = site.run("create", site.definition)
    assert ended.exit_code == 0, ended.stderr
    assert ended.stderr.splitlines()[-1].startswith(f"sales ({site.folder}/in/sales*.csv) is empty")
    site.definition.write_text(DEFINITION.replace("in/", "away/").replace("sales\n", "others\n"), "utf-8")
    ended = site.run("create", site.definition)
    assert ended.exit_code == 1
    assert f"does not run yet: others: {site.folder}/away cannot be read" in ended.stderr
    site.done("drop", "others")


def test_a_supervisor_runs_what_comes_and_goes_until_nothing_is_left(site: Site) -> None:
    """One of a command stays; one that was started apart from a command ends with the last source, as asked."""
    command = site.serve()
    site.done("create", site.definition)
    site.until_rows([("Aachen", 1)])
    assert site.supervisor == command.process.pid
    (supervisor,) = site.shown()["supervisors"]
    assert supervisor["pid"] == command.process.pid
    assert f"\nsupervisor: process {command.process.pid} of " in site.done("show", "sales")
    (instance,) = site.instances().values()
    site.done("scale", "sales", "0")
    assert is_gone(instance)()
    site.done("drop", "sales")
    assert not list((site.store / "sources").iterdir())
    assert command.process.poll() is None
    command.process.send_signal(signal.SIGTERM)
    assert command.end().exit_code == 143

    site.done("create", site.definition)
    apart = site.supervisor
    site.done("drop", "sales")
    wait_for(is_gone(apart), "it has ended")
    log = (site.store / "supervisor.log").read_text("utf-8")
    again = f"nebuli source scale NAME N --store {site.store}"
    assert log.splitlines()[-1] == f"no source needs an instance; run one again with: {again}"


@pytest.mark.long
def test_instances_outlive_their_supervisor_and_the_next_one_adopts_them(site: Site) -> None:
    """While rows come in. There is one at once; it restarts an adopted instance that is killed, and ends all."""
    with site.fed() as rows:
        site.done("create", site.definition, "--replicas", "2")
        supervisor, first = site.supervisor, site.instances()
        assert first.keys() == {"1", "2"}
        os.kill(supervisor, signal.SIGKILL)
        wait_for(is_gone(supervisor), "it has ended")
        site.until_more()
        command = site.serve()
        ended = site.run("serve")
        assert ended.exit_code == 2
        assert (
            f"the sources of this store are run on this host by process {command.process.pid}" in ended.error
        )
        site.until_more()
        assert site.instances() == first
        os.kill(first["1"], signal.SIGKILL)
        second = wait_for(
            lambda: found if (found := site.instances()).get("1", first["1"]) != first["1"] else None,
            "another",
        )
        assert second["2"] == first["2"]
        site.until_more()
        command.process.kill()
        command.end()
        site.until_more()
        site.done("scale", "sales", "1")  # by a third one
        assert site.instances() == {"1": second["1"]}
        wait_for(is_gone(second["2"]), "the other one has ended")
    site.until_rows(rows)
    third = site.supervisor
    os.kill(third, signal.SIGTERM)
    wait_for(is_gone(third, second["1"]), "it has ended, and so has its instance")


def test_without_a_supervisor_a_command_ends_instances(site: Site) -> None:
    site.done("create", site.definition)
    (instance,) = site.instances().values()
    os.kill(site.supervisor, signal.SIGKILL)
    assert not is_gone(instance)()
    assert "source sales has stopped" in site.done("scale", "sales", "0")
    wait_for(is_gone(instance), "it has ended")


def test_an_instance_is_run_in_the_foreground_once(site: Site) -> None:
    """Next to those of a supervisor, which waits for the end of one that has the name of its own."""
    site.done("create", site.definition, "--no-start")
    other = site.folder / "other"
    other.mkdir()
    mine = Command("source", "run", "sales", "--store", site.store, directory=other)
    mine.wait_until_said("running instance 1 of source sales")
    ended = site.run("run", "sales")
    assert ended.exit_code == 2
    assert (
        f"instance 1 of source sales is run on this host by process {mine.process.pid} already" in ended.error
    )
    ended = site.run("run", "sales", "--instance", "a/b")
    assert (ended.exit_code, ended.error[:25]) == (2, "'a/b' cannot be the name ")
    command = site.serve()
    site.until_rows([("Aachen", 1)])
    assert site.instances() == {"1": mine.process.pid}
    mine.process.send_signal(signal.SIGTERM)
    assert mine.end().exit_code == 143
    instance = wait_for(lambda: site.instances().get("1"), "that of the supervisor")
    command.process.send_signal(signal.SIGTERM)
    assert command.end().exit_code == 143
    assert is_gone(instance)()
    assert {each["health"] for each in site.shown()["instances"]} == {"ended"}


def test_a_source_in_a_store_by_url_is_run_all_the_same(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its supervisor has its lock and its log in this account's folder."""
    with server() as postgres, object_store() as objects:
        objects.bucket("blobs")
        for name, value in (postgres.environment | objects.environment).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        store = ["--store", "postgresql://?schema=sales&blobs=s3://blobs/here"]

        def run(*words: str | Path) -> str:
            ended = nebuli(*words, *store, directory=tmp_path)
            assert ended.exit_code == 0, ended.stderr
            return ended.stdout

        try:
            run("source", "create", site.definition)
            assert run("collection", "read", "sales", "--format", "csv") == "shop,amount\nAachen,1\n"
            assert "has 2 instances" in run("source", "scale", "sales", "2")
        finally:
            (lock,) = (tmp_path / "state" / "nebuli" / "sources").glob("*/supervisor.lock")
            pid = int(lock.read_text("utf-8").split()[0])
            run("source", "drop", "sales")
        wait_for(is_gone(pid), "its supervisor has ended")
        assert [*(lock.parent / "sources").iterdir()] == []
