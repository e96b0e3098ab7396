"""JSON Schemas of the files that people write, so that editors complete and check them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic.json_schema import GenerateJsonSchema

from topology.model import Topology

if TYPE_CHECKING:
    from pydantic import BaseModel

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Generator(GenerateJsonSchema):
    """Leaves out titles, which only repeat the keys, and requires every ``type``, which distinguishes models."""

    def generate(self, schema: Any, mode: Any = "validation") -> dict[str, Any]:
        generated = _tidied(super().generate(schema, mode))
        assert isinstance(generated, dict)
        return generated


def _tidied(value: Any) -> Any:
    if isinstance(value, list):
        return [_tidied(each) for each in value]
    if not isinstance(value, dict):
        return value
    tidy = {key: _tidied(each) for key, each in value.items() if key != "title" or not isinstance(each, str)}
    kind = tidy.get("properties", {}).get("type", {})
    if isinstance(kind, dict) and "const" in kind:
        tidy["required"] = ["type", *(key for key in tidy.get("required", ()) if key != "type")]
    return tidy


def json_schema(model: type[BaseModel], title: str) -> str:
    """The text of a model's schema file."""
    schema = model.model_json_schema(by_alias=True, schema_generator=_Generator)
    return json.dumps({"$schema": DIALECT, "title": title, **schema}, indent=2) + "\n"


FILE = Path(__file__).with_name("topology.schema.json")


def topology_schema() -> str:
    """Return the schema of `FILE`."""
    return json_schema(Topology, "A topology of netchannel")


if __name__ == "__main__":
    FILE.write_text(topology_schema(), "utf-8")
