"""The JSON Schema of query files."""

from __future__ import annotations

from pathlib import Path

from placement.plan import Query
from topology.json_schema import json_schema

FILE = Path(__file__).with_name("query.schema.json")


def query_schema() -> str:
    """Return the schema of `FILE`."""
    return json_schema(Query, "A query of netchannel")


if __name__ == "__main__":
    FILE.write_text(query_schema(), "utf-8")
