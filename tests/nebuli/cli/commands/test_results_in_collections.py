"""Queries that run free and insert their result into a collection, which is there once whatever is killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from nebuli.blocking import Collections
from tests.support.commands import nebuli
from tests.support.ports import free_addresses

pytestmark = [pytest.mark.processes, pytest.mark.long]

KILLED = """
import os, signal, sys
from importlib.machinery import PathFinder

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "nebuli.connectors.sinks.collection_output":
            return None
        spec = PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def executed(module):
            execute(module)
            inserted = module.CollectionOutput._insert_once

            def insert(output, result):
                inserted(output, result)
                if not os.path.exists({mark!r}):
                    open({mark!r}, "w").close()
                    os.kill(os.getpid(), signal.SIGKILL)

            module.CollectionOutput._insert_once = insert

        spec.loader.exec_module = executed
        return spec

sys.meta_path.insert(0, Finder)
"""
QUERY = "INSERT INTO sums SELECT shop, sum(amount) AS amount FROM sales GROUP BY shop"


def test_a_query_that_is_killed_after_its_insert_has_inserted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sink's process dies before its worker knows of the insert: the query starts over, without an effect.

    A run of its own has another id, and inserts again.
    """
    mark = tmp_path / "killed"
    (tmp_path / "sitecustomize.py").write_text(KILLED.format(mark=str(mark)), "utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    (tmp_path / "sales.csv").write_text("shop,amount\na,1\nb,2\na,3\n", "utf-8")
    columns = [{"name": "shop", "type": "string"}, {"name": "amount", "type": "int64"}]
    sink = {"name": "sums", "type": "Collection", "store": "store", "collection": "sums", "mode": "final"}
    node = {
        "address": free_addresses(1)[0],
        "physical": [{"logical": "sales", "type": "CSV", "path": "sales.csv"}],
        "sinks": [sink],
    }
    topology = tmp_path / "topology.yaml"
    topology.write_text(
        yaml.safe_dump({"logical": [{"name": "sales", "schema": columns}], "nodes": [node]}), "utf-8"
    )

    def run() -> str:
        ended = nebuli("run", "--on-loss", "wait", topology, "-e", QUERY, directory=tmp_path)
        assert ended.exit_code == 0, ended.stderr
        return ended.stderr

    assert "the query starts over, as deployment" in run()
    assert mark.exists()
    with Collections(tmp_path / "store") as collections:
        assert sorted(collections.snapshot("sums").to_pylist(), key=str) == [
            {"shop": "a", "amount": 4},
            {"shop": "b", "amount": 2},
        ]
    assert "starts over" not in run()
    with Collections(tmp_path / "store") as collections:
        assert collections.snapshot("sums").num_rows == 4
