"""What the tests need of the machine: installed by root where there is apt-get, else said in one line."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support import programs
from tests.support.programs import PROGRAMS, install, missing, why_not

ROOT = Path(__file__).parents[2]


class Machine:
    """A PATH of its own, and who asks."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, patch
        self.ran: list[str] = []
        self.said: list[str] = []
        patch.setenv("PATH", str(folder))
        patch.delenv("JAVA_HOME", raising=False)
        patch.setattr(programs, "_POSTGRES", folder / "postgresql")
        programs._version.cache_clear()

    def has(self, *names: str, java: str = "17.0.15") -> None:
        for name in names:
            path = self._folder / name
            path.write_text(f"#!/bin/sh\necho 'openjdk version \"{java}\"' >&2\n", "utf-8")
            path.chmod(0o755)

    def is_root(self, *, root: bool) -> None:
        self._patch.setattr(os, "geteuid", lambda: 0 if root else 1000)

    def set_up(self, run: Callable[[Sequence[str]], int]) -> None:
        def recorded(command: Sequence[str]) -> int:
            self.ran.append(" ".join(command))
            return run(command)

        install(recorded, self.said.append)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def all_names() -> list[str]:
    return [each.name for each in PROGRAMS]


@pytest.mark.processes
@pytest.mark.parametrize("root", [True, False])
def test_where_all_is_there_nothing_is_done(machine: Machine, *, root: bool) -> None:
    machine.has(*all_names(), "apt-get")
    machine.is_root(root=root)
    machine.set_up(lambda _: 0)
    assert (machine.ran, machine.said) == ([], [])


@pytest.mark.processes
def test_root_has_it_installed(machine: Machine) -> None:
    machine.has("apt-get", "bash", "mount", "unshare", "systemd-analyze", "initdb")
    machine.is_root(root=True)

    def run(command: Sequence[str]) -> int:
        if "install" in command:
            machine.has("ip", "tc", "java")
        return 0

    machine.set_up(run)
    assert machine.ran == [
        "apt-get update -qq",
        "apt-get install -qq --yes --no-install-recommends iproute2 default-jre-headless",
    ]
    assert machine.said == ["Installing iproute2, default-jre-headless ..."]


def test_who_is_not_root_is_told_in_one_line(machine: Machine) -> None:
    machine.has("apt-get", "bash", "mount", "ip", "tc", "unshare", "systemd-analyze", "initdb")
    machine.is_root(root=False)
    machine.set_up(lambda _: 0)
    assert machine.ran == []
    (line,) = machine.said
    assert line.startswith("This machine lacks something: there is no java on PATH, for Spark. ")
    assert line.endswith(" Debian: apt-get install default-jre-headless")


@pytest.mark.processes
def test_so_is_root_without_apt_get_and_where_that_fails(machine: Machine) -> None:
    machine.has("bash", "mount", "java", "unshare", "systemd-analyze", "initdb")
    machine.is_root(root=True)
    machine.set_up(lambda _: 0)
    machine.has("apt-get")
    machine.set_up(lambda _: 100)
    assert machine.ran == ["apt-get update -qq"]
    assert machine.said == [machine.said[0], "Installing iproute2 ...", machine.said[0]]
    assert (
        "there is no ip on PATH, for network namespaces in the role of hosts; there is no tc"
        in machine.said[0]
    )


@pytest.mark.processes
@pytest.mark.parametrize(
    ("version", "is_old"), [("1.8.0_402", True), ("11.0.2", True), ("17", False), ("21.0.1", False)]
)
def test_a_java_that_is_too_old_is_none(machine: Machine, version: str, *, is_old: bool) -> None:
    machine.has(*all_names(), java=version)
    assert [each.name for each in missing()] == (["java"] if is_old else [])


def test_java_is_looked_for_where_java_home_leads(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.has(*all_names())
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert why_not(programs.program("java")) == "there is no java in /nowhere/bin, where JAVA_HOME leads"


def test_postgresql_is_looked_for_where_debian_has_it_too(machine: Machine, tmp_path: Path) -> None:
    wanted = programs.program("initdb")
    why = f"there is no initdb on PATH, and none of PostgreSQL's in {tmp_path}/postgresql/*/bin"
    assert (why_not(wanted), wanted.how) == (
        why,
        "install initdb (Debian: apt-get install postgresql)",
    )
    for version in ("9", "17", "15"):
        (tmp_path / "postgresql" / version / "bin").mkdir(parents=True)
        (tmp_path / "postgresql" / version / "bin" / "initdb").touch()
    assert why_not(wanted) is None
    assert programs.postgres_programs() == tmp_path / "postgresql" / "17" / "bin"


def test_the_page_names_all_of_them() -> None:
    page = (ROOT / "docs" / "development" / "machine.md").read_text("utf-8")
    assert [
        each for each in PROGRAMS if f"| `{each.name}` | `{each.package}` | {each.needed_for} |" not in page
    ] == []
