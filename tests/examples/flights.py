"""The flights example, adapted for tests: other ports, a sink that can be read, and DuckDB's answer."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import yaml

from tests.support.ports import free_addresses

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "flights"

_ANSWER = """
SELECT
    origin,
    CASE WHEN wind_speed < 8 THEN '00-08 mph'
         WHEN wind_speed < 16 THEN '08-16 mph'
         WHEN wind_speed < 24 THEN '16-24 mph'
         ELSE '24+ mph' END AS wind,
    count(*) AS flights,
    avg(dep_delay) AS mean_delay,
    max(dep_delay) AS worst_delay
FROM read_csv($flights, nullstr = 'NA') AS flights
JOIN read_csv($weather, nullstr = 'NA') AS weather USING (origin, time_hour)
WHERE dep_delay IS NOT NULL AND wind_speed < 200
GROUP BY ALL ORDER BY ALL
"""


def answer(directory: Path) -> pa.Table:
    """What DuckDB says, from the whole files; ``directory`` gets the unpacked one."""
    with zipfile.ZipFile(EXAMPLE / "data" / "flights.csv.zip") as archive:
        flights = archive.extract("flights.csv", directory)
    return answer_of(Path(flights), EXAMPLE / "data" / "weather.csv")


def answer_of(flights: Path, weather: Path) -> pa.Table:
    """What DuckDB says, from these files."""
    files = {"flights": str(flights), "weather": str(weather)}
    return duckdb.sql(_ANSWER, params=files).to_arrow_table()


def write_topology(
    path: Path,
    sink: dict[str, Any],
    addresses: list[dict[str, str]] | None = None,
    example: str = "topology.yaml",
) -> None:
    """The example's topology with its nodes at free ports, or at ``addresses``, and another sink."""
    topology = yaml.safe_load((EXAMPLE / example).read_text("utf-8"))
    if addresses is None:
        free = free_addresses(6)
        addresses = [{"address": free[index], "grpc": free[index + 3]} for index in range(3)]
    for node, moved in zip(topology["nodes"], addresses, strict=True):
        node.update(moved)
        for physical in node.get("physical", ()):
            physical["path"] = str(EXAMPLE / physical["path"])
    for node in topology["nodes"][:2]:
        node["links"]["downstream"] = [addresses[2]["address"]]
    topology["nodes"][2]["sinks"] = [{"name": "delays", **sink}]
    path.write_text(yaml.safe_dump(topology, sort_keys=False), "utf-8")


def assert_equal(found: pa.Table, expected: pa.Table) -> None:
    """Counts and extremes exactly, means within 1e-9."""
    assert found.column_names == expected.column_names
    for name in found.column_names:
        ours, theirs = found.column(name).to_pylist(), expected.column(name).to_pylist()
        if name != "mean_delay":
            assert ours == theirs
            continue
        for our, their in zip(ours, theirs, strict=True):
            assert abs(our - their) <= 1e-9 * abs(their)
