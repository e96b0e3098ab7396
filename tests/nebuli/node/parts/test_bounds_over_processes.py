"""What a query with views may keep, as it runs: what is full up to a bound, of keys what the views say."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from nebuli import blocking
from tests.support.commands import Command, nebuli
from tests.support.ports import free_addresses
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

COLUMNS = [{"name": "shop", "type": "int64"}, {"name": "amount", "type": "int64"}]
COUNTS = {
    "id": "by_shop",
    "type": "aggregate",
    "input": "sales",
    "by": ["shop"],
    "aggregates": {"sales": "count(*)"},
}


def written(directory: Path, *operators: dict[str, Any]) -> list[str]:
    """The files of a query over a thousand sales, one of each shop."""
    (address,) = free_addresses(1)
    rows = "".join(f"{shop},1\n" for shop in range(1000))
    (directory / "sales.csv").write_text(f"shop,amount\n{rows}", "utf-8")
    physical = {"logical": "sales", "type": "CSV", "path": "sales.csv", "base": True}
    topology = {
        "logical": [{"name": "sales", "schema": COLUMNS}],
        "nodes": [{"address": address, "physical": [physical]}],
    }
    (directory / "topology.yaml").write_text(yaml.safe_dump(topology), "utf-8")
    source = {"id": "sales", "type": "source", "logical": "sales"}
    (directory / "query.json").write_text(json.dumps({"operators": [source, *operators]}), "utf-8")
    return [str(directory / name) for name in ("topology.yaml", "query.json")]


@pytest.mark.parametrize("shards", [0, 2])
def test_a_full_operator_fails_its_query_at_its_own_bound(tmp_path: Path, shards: int) -> None:
    """A shard, too, by the operator's name."""
    counts = {**COUNTS, "max_state_bytes": 2000} | ({"shard": {"into": shards}} if shards else {})
    files = written(tmp_path, counts, {"id": "v", "type": "view", "input": "by_shop", "key": ["sales"]})
    (at,) = free_addresses(1)
    ended = nebuli("run", *files, "--serve", at, directory=tmp_path)
    assert ended.exit_code == 1
    assert "operator by_shop: its state holds " in ended.stderr
    assert "above its bound of 2,000: raise max_state_bytes of the operator" in ended.stderr


def test_a_full_view_fails_its_query_at_the_workers_bound(tmp_path: Path) -> None:
    """Its rows have more columns than the base's: it is the view that holds too much first."""
    columns = {"more": "amount + 1", **{f"shop{number}": f"shop + {number}" for number in range(8)}}
    wide = {"id": "wide", "type": "project", "input": "sales", "columns": columns}
    files = written(tmp_path, wide, {"id": "v", "type": "view", "input": "wide", "key": ["more"]})
    (at,) = free_addresses(1)
    ended = nebuli("run", *files, "--serve", at, "--max-state-bytes", "45000", directory=tmp_path)
    assert ended.exit_code == 1
    assert "operator v: its state holds " in ended.stderr
    assert "above its bound of 45,000: raise --max-state-bytes of its worker" in ended.stderr


def test_a_view_with_a_small_budget_that_is_added_takes_no_keys_of_others(tmp_path: Path) -> None:
    """PS-EV-2: it forgets its own, and is right all the same; the one that was there has what was read."""
    files = written(tmp_path, COUNTS, {"id": "v", "type": "view", "input": "by_shop", "key": ["shop"]})
    small = {
        "id": "small",
        "type": "view",
        "input": "v",
        "key": ["shop"],
        "max_bytes": 100,
        "evict": "random",
    }
    (tmp_path / "more.json").write_text(json.dumps({"operators": [small]}), "utf-8")
    (at,) = free_addresses(1)
    run = Command("run", *files, "--serve", at, directory=tmp_path)
    run.wait_until_said(f"view v at {at}")
    added = nebuli("view", "add", str(tmp_path / "more.json"), "--at", at, directory=tmp_path)
    assert added.exit_code == 0, added.stderr
    shops = list(range(1000))
    with blocking.Views(at) as views:

        def read(view: str) -> list[bool]:
            found = views.get(view, shops, 20.0)
            assert {row["shop"]: row["sales"] for row in found.rows.to_pylist()} == dict.fromkeys(shops, 1)
            return list(found.hits)

        assert read("v") == [False] * 1000
        read("small")
        wait_for(lambda: read("small").count(True) < 500, "the small view forgets its keys")
        assert read("v") == [True] * 1000
    run.process.send_signal(signal.SIGINT)
    assert run.end().exit_code == 130
