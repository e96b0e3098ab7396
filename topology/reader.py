"""Reads topology files, and reports all their mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from topology.consistency import inconsistencies
from topology.mistakes import Mistake, TopologyError, in_file_order, read_text
from topology.model import Topology
from topology.validation import validation_mistakes

if TYPE_CHECKING:
    from os import PathLike

    from topology.model import EngineName


def load_topology(path: str | PathLike[str]) -> Topology:
    """Read a topology file. ``TopologyError`` holds every mistake, each with file, line and column."""
    text = read_text(Path(path))
    if isinstance(text, Mistake):
        raise TopologyError([text])
    return parse_topology(text, file=str(path))


def parse_topology(text: str, file: str | None = None, engine: EngineName | None = None) -> Topology:
    """Read a topology from the text of a YAML document; ``file`` is the name that mistakes carry.

    ``engine`` overrides that of every node. A node's master is that of the engine ``spark`` then.
    """
    from topology.yaml_document import parse_yaml  # a process that gets a parsed topology needs no YAML

    document = parse_yaml(text, file, "nodes")
    if document.broken:
        raise TopologyError(document.mistakes)
    data: Any = document.data if engine is None else _masters_of_spark(document.data)
    mistakes = [*document.mistakes]
    mistakes += [document.marks.mistake(path, message) for path, message in inconsistencies(data)]
    try:
        topology = Topology.model_validate(data)
    except ValidationError as error:
        mistakes += validation_mistakes(error, Topology, document.marks)
    except TopologyError:
        pass  # the same checks ran above, with the places of what they found
    else:
        if not mistakes:
            return topology if engine is None else topology.with_engine(engine)
    raise TopologyError(in_file_order(mistakes))


def _masters_of_spark(data: Any) -> Any:
    """The same, with the engine ``spark`` at each node that has a master."""
    nodes = data.get("nodes") if isinstance(data, dict) else None
    if not isinstance(nodes, list):
        return data

    def of_spark(node: Any) -> Any:
        has_master = isinstance(node, dict) and node.get("master") is not None
        return (
            {**node, "engine": "spark"} if has_master and node.get("engine") in (None, "embedded") else node
        )

    return {**data, "nodes": list(map(of_spark, nodes))}
