"""The page about environments: its commands are run on a cluster whose executors have a Python without netchannel.

The cluster is of processes of this machine, in place of the page's; and what the page installs is taken from what is
installed here, the code by a copy.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest

from netchannel import RetainPolicy, SenderServer
from tests.docs.markdown import ROOT, blocks
from tests.support.spark import bare_environment

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(500)]

PAGE = ROOT / "docs" / "how-to" / "ship-an-environment.md"
CODE = ("nebuli", "netchannel", "placement", "pyspark_netchannel", "spark_bridge", "topology")
CLUSTER = "local-cluster[1,1,1024] --conf spark.ui.enabled=false"
PROGRAM = """
import json, os, sys
import pyarrow
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
{first}

def where(batches):
    rows = sum(batch.num_rows for batch in batches)
    python = os.path.abspath(sys.executable)  # relative where it was found by a relative PATH
    yield pyarrow.RecordBatch.from_pydict({{"rows": [rows], "python": [python], "cwd": [os.getcwd()]}})

read = spark.read.format("netchannel").load("netchannel://{address}/numbers")
found = read.mapInArrow(where, "rows BIGINT, python STRING, cwd STRING").collect()
print(json.dumps([row.asDict() for row in found]))
spark.stop()
"""


def commands(heading: str) -> list[str]:
    """What a reader types below a heading of the page."""
    text = PAGE.read_text("utf-8")
    start = text.index(f"\n## {heading}\n")
    first, last = text.count("\n", 0, start), text.count("\n", 0, text.find("\n## ", start + 1))
    chosen = [block for block in blocks(PAGE) if block.language == "sh" and first < block.line <= last]
    return [line for block in chosen for line in block.text.splitlines()]


def environment(directory: Path) -> Path:
    """What ``python3 -m venv`` and ``pip install`` make of netchannel's dependencies; where its packages are.

    They are named there and not copied: what compiled packages weigh says nothing of the recipe.
    """
    base = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    subprocess.run([base, "-m", "venv", "--without-pip", directory], check=True)
    (packages,) = directory.glob("lib/python*/site-packages")
    # A clone that is installed here has its own line of this kind, which is not followed from there.
    (packages / "dependencies.pth").write_text(f"{Path(pa.__file__).parents[1]}\n", "utf-8")
    return packages


def copy_code(target: Path) -> None:
    for name in CODE:
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the reader is, with ``env`` and its archive."""
    here = tmp_path_factory.mktemp("ship")
    copy_code(environment(here / "env"))
    make, install, pack, _, _ = commands("An archive")
    assert (make, install) == ("python3 -m venv env", "env/bin/pip install netchannel 'pandas>=2.2,<3'")
    subprocess.run(["bash", "-c", pack], cwd=here, check=True)
    # Executors work below SPARK_HOME, which is not to be filled with environments.
    (here / "spark").mkdir()
    for each in Path(pyspark.__file__).parent.iterdir():
        if each.name != "work":
            (here / "spark" / each.name).symlink_to(each)
    yield here
    shutil.rmtree(here)


async def submit(folder: Path, line: str, first: str = "") -> list[dict[str, str]]:
    """Run a command of the page; what its tasks say of themselves."""
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("numbers", RetainPolicy())
        await outbox.send(pa.RecordBatch.from_pydict({"n": range(1000)}))
        program = PROGRAM.format(first=first, address=sender.address)
        for name in ("stream.py", "program.py"):
            (folder / name).write_text(program, "utf-8")
        bare = bare_environment()
        home = folder / "spark"
        ran = await asyncio.to_thread(
            subprocess.run,
            ["bash", "-c", line.replace("spark://10.0.0.2:7077", CLUSTER)],
            cwd=folder,
            env={**bare, "SPARK_HOME": str(home), "PATH": f"{home / 'bin'}:{bare['PATH']}"},
            capture_output=True,
            encoding="utf-8",
            timeout=400,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    found: list[dict[str, str]] = json.loads(ran.stdout.splitlines()[-1])
    assert sum(int(task["rows"]) for task in found) == 1000
    assert all(task["cwd"].startswith(str(home / "work" / "app-")) for task in found)
    return found


async def test_an_archive_is_where_a_relative_path_leads(folder):
    """SP-OPT-1: to the driver's copy on the driver, and to the executor's in a task."""
    *_, line, _ = commands("An archive")
    for task in await submit(folder, line):
        assert task["python"] == f"{task['cwd']}/env/bin/python"


async def test_an_archive_is_found_by_name_where_the_drivers_path_differs(folder):
    *_, line = commands("An archive")
    found = await submit(folder, line.replace("/home/me/env", str(folder / "env")))
    for task in found:
        assert task["python"] == f"{task['cwd']}/shipped/bin/python3"


async def test_the_code_alone_goes_to_a_python_that_has_the_rest(folder, tmp_path):
    python = tmp_path / "app"
    environment(python)
    copy_code(folder / "code")
    install, pack, line = commands("Only the code")
    assert install == "pip install --no-deps --target code netchannel"
    await asyncio.to_thread(subprocess.run, ["bash", "-c", pack], cwd=folder, check=True)
    line = line.replace("/opt/app", str(python))
    for task in await submit(folder, line, "import spark_bridge; spark_bridge.register(spark)"):
        assert task["python"] == f"{python}/bin/python"
    shutil.rmtree(python)


def test_spark_refuses_cluster_mode_where_the_page_says_so(folder):
    (said,) = re.findall(r'\("(Cluster deploy mode .*)"\)', PAGE.read_text("utf-8"))
    (folder / "stream.py").touch()
    submit = [str(folder / "spark" / "bin" / "spark-submit"), "--master", "spark://127.0.0.1:1"]
    ran = subprocess.run(
        [*submit, "--deploy-mode", "cluster", "stream.py"],
        cwd=folder,
        env={**bare_environment(), "SPARK_HOME": str(folder / "spark")},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert ran.returncode != 0
    assert said in ran.stderr
