"""What is installed by `pip install netchannel`, and by `pip install nebuli`, from the wheels themselves."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

import nebuli
import netchannel
from tests.docs.markdown import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("distributions")]

PACKAGES = {
    "netchannel": {"netchannel", "pyspark_netchannel", "spark_bridge"},
    "nebuli": {"nebuli", "placement", "topology"},
}
CHANNEL = """
import asyncio, netchannel, sys
async def main():
    async with netchannel.ReceiverServer("127.0.0.1:0") as receiver, netchannel.SenderServer() as sender:
        inbox = receiver.register_channel("c", codec="bytes")
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
        await outbox.send(b"there")
        await outbox.close()
        print([bytes(message) async for message in inbox], netchannel.__version__)
asyncio.run(main())
"""


def run(commands: Path, *arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [commands / arguments[0], *arguments[1:]],
        cwd=cwd,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("name", list(PACKAGES))
def test_a_distribution_has_all_of_its_packages_and_nothing_else(dist: Path, name: str) -> None:
    (wheel,) = dist.glob(f"{name}-*.whl")
    held = {each for each in ZipFile(wheel).namelist() if ".dist-info/" not in each}
    kept = subprocess.run(
        ["git", "-C", ROOT, "ls-files", *PACKAGES[name]], capture_output=True, encoding="utf-8", check=True
    )
    assert held == set(kept.stdout.splitlines())
    assert {f"{package}/py.typed" for package in PACKAGES[name]} <= held
    (source,) = dist.glob(f"{name}-*.tar.gz")
    with tarfile.open(source) as files:
        assert held <= {each.partition("/")[2] for each in files.getnames()}


def test_netchannel_alone_brings_no_generic_names(installed: Callable[..., Path], tmp_path: Path) -> None:
    commands = installed("netchannel")
    ended = run(commands, "python", "-c", CHANNEL, cwd=tmp_path)
    assert ended.stdout == f"[b'there'] {netchannel.__version__}\n", ended.stderr
    for absent in PACKAGES["nebuli"]:
        assert (
            f"No module named '{absent}'"
            in run(commands, "python", "-c", f"import {absent}", cwd=tmp_path).stderr
        )
    assert not (commands / "nebuli").exists()


def test_nebuli_brings_netchannel_and_says_what_is_missing(
    installed: Callable[..., Path], dist: Path, tmp_path: Path
) -> None:
    commands = installed("netchannel[nebuli]")  # asks for the other one
    assert (
        run(commands, "nebuli", "--version", cwd=tmp_path).stdout == f"nebuli, version {nebuli.__version__}\n"
    )
    example = ROOT / "examples" / "flights"
    placed = run(commands, "nebuli", "place", example / "topology.yaml", example / "query.json", cwd=tmp_path)
    assert "lowest common ancestor of delays and winds" in placed.stdout, placed.stderr
    for absent, command in (
        ("click", ("--version",)),
        ("networkx", ("place", "--strategy", "optimal", example / "topology.yaml", example / "query.json")),
    ):
        (found,) = commands.parent.glob(f"lib/python*/site-packages/{absent}")
        found.rename(found.with_name("elsewhere"))
        ended = run(commands, "nebuli", *command, cwd=tmp_path)
        found.with_name("elsewhere").rename(found)
        assert (ended.returncode, ended.stderr) == (
            1,
            f"Error: nebuli needs the package {absent}, which is not installed: pip install nebuli\n",
        )


def test_versions_and_licences_are_one() -> None:
    projects = {
        name: tomllib.loads((ROOT / folder / "pyproject.toml").read_text("utf-8"))["project"]
        for name, folder in (("netchannel", ""), ("nebuli", "distributions/nebuli"))
    }
    version = netchannel.__version__
    assert {each["version"] for each in projects.values()} == {version} == {nebuli.__version__}
    assert f"netchannel=={version}" in projects["nebuli"]["dependencies"]
    assert projects["netchannel"]["optional-dependencies"]["nebuli"] == [f"nebuli=={version}"]
    same = ("classifiers", "requires-python", "urls", "license")
    assert [projects["nebuli"][each] for each in same] == [projects["netchannel"][each] for each in same]
    assert (ROOT / "LICENSE").read_text("utf-8") == (ROOT / "distributions" / "nebuli" / "LICENSE").read_text(
        "utf-8"
    )


@pytest.mark.parametrize("name", list(PACKAGES))
def test_the_readme_leads_somewhere_from_a_package_index(dist: Path, name: str) -> None:
    (wheel,) = dist.glob(f"{name}-*.whl")
    with ZipFile(wheel) as files:
        (metadata,) = (each for each in files.namelist() if each.endswith("/METADATA"))
        shown = files.read(metadata).decode().partition("\n\n")[2]
    readme = (ROOT if name == "netchannel" else ROOT / "distributions" / "nebuli") / "README.md"
    home = re.search(r'^Homepage = "(.*)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)[1]
    links = re.findall(r"\]\((.*?)\)", shown)
    assert len(links) > 5
    for link in links:
        assert link.startswith(("https://", "#"))
        if link.startswith(f"{home}/blob/main/"):
            assert (ROOT / link.removeprefix(f"{home}/blob/main/").partition("#")[0]).exists()
    assert (
        shown.replace(f"{home}/blob/main/", "").strip()
        == readme.read_text("utf-8").replace(f"{home}/blob/main/", "").strip()
    )
