"""The flights demo at many times its rows: ``python -m benchmarks.flights [--times 50] [--rounds 2]``.

The query over three processes and over one, beside one process of DuckDB, one of Polars and one of pathway that answer
the same from the same files; pathway, which takes longest, from files with a tenth of the rows. Every contestant has to
give the same table.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from .environments import python_of, version_of
from .running import ROOT

EXAMPLE = ROOT / "examples" / "flights"
THREE, ONE, DUCKDB, POLARS = "nebuli, three nodes", "nebuli, one node", "DuckDB", "Polars"
PATHWAY = "pathway, a tenth of the rows"
CONTESTANTS = (THREE, ONE, DUCKDB, POLARS, PATHWAY)
COLUMNS = ("seconds", "rows per second", "CPU seconds per million rows")
TIMES, ROUNDS = 50, 2
SQL = """
COPY (
    SELECT origin, wind, count(*) AS flights, avg(dep_delay) AS mean_delay, max(dep_delay) AS worst_delay
    FROM (SELECT origin, time_hour, dep_delay FROM {flights} WHERE dep_delay IS NOT NULL)
    JOIN (
        SELECT origin, time_hour, CASE WHEN wind_speed < 8 THEN '00-08 mph' WHEN wind_speed < 16 THEN '08-16 mph'
            WHEN wind_speed < 24 THEN '16-24 mph' ELSE '24+ mph' END AS wind
        FROM {weather} WHERE wind_speed < 200
    ) USING (origin, time_hour)
    GROUP BY origin, wind
) TO '{result}' (HEADER)
"""


def prepare(folder: Path, times: int) -> int:
    """Write ``flights.csv`` and ``weather.csv``, each so many times with hours that no other repetition has.

    Returns the rows of both.
    """
    import duckdb

    rows = 0
    for name, source, columns in (
        ("flights", "flights.csv.zip", "carrier, flight, origin, dest, dep_delay"),
        ("weather", "weather.csv", "origin, wind_speed, visib"),
    ):
        once = folder / f"{name}-once.parquet"
        path = _unpacked(EXAMPLE / "data" / source, folder)
        duckdb.sql(f"COPY (SELECT * FROM read_csv('{path}', nullstr='NA')) TO '{once}' (FORMAT parquet)")  # noqa: S608 - ours
        shifted = "strftime(time_hour + to_days(366 * n), '%Y-%m-%dT%H:%M:%SZ') AS time_hour"
        duckdb.sql(
            f"COPY (SELECT {columns}, {shifted} FROM range({times}) AS shift(n), '{once}' ORDER BY n) "  # noqa: S608 - ours
            f"TO '{folder / name}.csv' (HEADER, NULLSTR 'NA')"
        )
        rows += duckdb.sql(f"SELECT count(*) FROM '{once}'").fetchall()[0][0] * times  # noqa: S608 - ours
        once.unlink()
    return rows


def _unpacked(path: Path, folder: Path) -> Path:
    if path.suffix != ".zip":
        return path
    import zipfile

    with zipfile.ZipFile(path) as archive:
        (name,) = archive.namelist()
        return Path(archive.extract(name, folder))


def topology(folder: Path, contestant: str) -> Path:
    """The demo's, with these files, and the result in a file; for one node, all of it there."""
    document: dict[str, Any] = yaml.safe_load((EXAMPLE / "topology.yaml").read_text("utf-8"))
    nodes = document["nodes"]
    for node in nodes:
        for source in node.get("physical", ()):
            source["path"] = str(folder / f"{source['logical']}.csv")
    nodes[2]["sinks"] = [{"name": "delays", "type": "CSV", "path": str(_result(folder, contestant))}]
    if contestant == ONE:
        nodes[2]["physical"] = [source for node in nodes[:2] for source in node["physical"]]
        document["nodes"] = nodes[2:]
    path = folder / f"{_file_name(contestant)}.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), "utf-8")
    return path


def _result(folder: Path, contestant: str) -> Path:
    return folder / f"{_file_name(contestant)}.csv"


def _file_name(contestant: str) -> str:
    return contestant.replace(", ", "-").replace(" ", "-")


def answer(folder: Path, contestant: str) -> None:
    """Run it once, in this process and processes below it; its result is in its file."""
    result = _result(folder, contestant)
    if contestant in (THREE, ONE):
        command = ["run", str(topology(folder, contestant)), str(EXAMPLE / "query.json")]
        subprocess.run([sys.executable, "-m", "nebuli", *command], check=True, stdout=subprocess.DEVNULL)
    elif contestant == PATHWAY:
        script = Path(__file__).with_name("flights_on_pathway.py")
        environment = {**os.environ, "PATHWAY_THREADS": str(os.cpu_count())}
        subprocess.run(
            [python_of("pathway"), script, folder, result],
            check=True,
            env=environment,
            stderr=subprocess.DEVNULL,
        )
    elif contestant == DUCKDB:
        import duckdb

        files = {name: f"read_csv('{folder / name}.csv', nullstr='NA')" for name in ("flights", "weather")}
        duckdb.sql(SQL.format(**files, result=result))
    else:
        _answer_of_polars(folder, result)


def _answer_of_polars(folder: Path, result: Path) -> None:
    import polars as pl

    scan = {
        name: pl.scan_csv(folder / f"{name}.csv", null_values="NA", try_parse_dates=True)
        for name in ("flights", "weather")
    }
    speed = pl.col("wind_speed")
    wind = pl.when(speed < 8).then(pl.lit("00-08 mph")).when(speed < 16).then(pl.lit("08-16 mph"))
    winds = scan["weather"].filter(speed < 200)
    delays = scan["flights"].filter(pl.col("dep_delay").is_not_null())
    table = (
        delays.select("origin", "time_hour", "dep_delay")
        .join(
            winds.select(
                "origin",
                "time_hour",
                wind.when(speed < 24).then(pl.lit("16-24 mph")).otherwise(pl.lit("24+ mph")).alias("wind"),
            ),
            on=["origin", "time_hour"],
        )
        .group_by("origin", "wind")
        .agg(
            pl.len().alias("flights"),
            pl.col("dep_delay").mean().alias("mean_delay"),
            pl.col("dep_delay").max().alias("worst_delay"),
        )
    )
    table.collect(engine="streaming").write_csv(result)


def read_result(folder: Path, contestant: str) -> dict[tuple[str, str], tuple[float, ...]]:
    """The table, by origin and wind."""
    with _result(folder, contestant).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {
        (row["origin"], row["wind"]): tuple(
            float(row[name]) for name in ("flights", "mean_delay", "worst_delay")
        )
        for row in rows
    }


def same(one: dict[Any, tuple[float, ...]], other: dict[Any, tuple[float, ...]]) -> bool:
    """Both have the same rows; means may differ by the order in which they were summed."""
    return one.keys() == other.keys() and all(
        math.isclose(a, b, rel_tol=1e-9) for key in one for a, b in zip(one[key], other[key], strict=True)
    )


def measured(folder: Path, contestant: str) -> dict[str, float]:
    """One run in a process of its own: seconds, and processor seconds of all of its processes."""
    command = [sys.executable, "-m", "benchmarks.flights", "--answer", contestant, "--folder", str(folder)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(command, check=True, cwd=ROOT, stderr=subprocess.DEVNULL)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "cpu_s": cpu}


def run(times: int, rounds: int) -> dict[str, Any]:
    """All contestants in turn. Raises AssertionError if two tables differ."""
    with tempfile.TemporaryDirectory() as folder:
        return _run(Path(folder), times, rounds)


def _run(folder: Path, times: int, rounds: int) -> dict[str, Any]:
    tenth = folder / "tenth"
    tenth.mkdir()
    places = {name: tenth if name == PATHWAY else folder for name in CONTESTANTS}
    made = {place: prepare(place, part) for place, part in ((folder, times), (tenth, max(1, times // 10)))}
    answer(tenth, POLARS)
    wanted = {tenth: read_result(tenth, POLARS)}
    python_of("pathway")
    found: dict[str, list[dict[str, float]]] = {name: [] for name in CONTESTANTS}
    for number in range(rounds):
        for name, place in places.items():
            found[name].append(measured(place, name))
            print(f"round {number + 1}: {name}: {found[name][-1]}", file=sys.stderr)
            given = read_result(place, name)
            assert same(given, wanted.setdefault(place, given)), f"{name} gives another table"
    rows = {name: made[place] for name, place in places.items()}
    return {"times": times, "rows": rows, "pathway": version_of("pathway"), "rounds": found}


def table(figures: dict[str, Any]) -> str:
    """In Markdown: medians, with the lowest and the highest."""
    lines = [
        f"| {figures['rows'][ONE]:,} rows in two files | " + " | ".join(COLUMNS) + " |",
        "|---|---|---|---|",
    ]
    for name in CONTESTANTS:
        rows = figures["rows"][name]
        millions = rows / 1e6
        rounds = figures["rounds"][name]
        seconds, cpu = ([each[key] for each in rounds] for key in ("seconds", "cpu_s"))
        per_million = [each / millions for each in cpu]
        lines.append(
            f"| {name} | {median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f}) "
            f"| {rows / median(seconds):,.0f} "
            f"| {median(per_million):.2f} ({min(per_million):.2f} to {max(per_million):.2f}) |"
        )
    pairs = zip(figures["rounds"][THREE], figures["rounds"][ONE], strict=True)
    ratios = sorted(three["cpu_s"] / one["cpu_s"] for three, one in pairs)
    lines.append("")
    lines.append(f"pathway is {figures['pathway']}, in its own environment.")
    lines.append("")
    lines.append(
        f"CPU time over three nodes, compared with one node: {median(ratios):.2f} x "
        f"({ratios[0]:.2f} to {ratios[-1]:.2f})."
    )
    return "\n".join(lines)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flights", description=__doc__)
    parser.add_argument("--times", type=int, default=TIMES, help="how often the demo's rows are repeated")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--answer", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.answer is not None:
        answer(given.folder, given.answer)
        return
    print(table(run(given.times, given.rounds)))


if __name__ == "__main__":
    main()
