"""The two files that commands read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from placement import InvalidQuery, load_query
from topology import TopologyError, load_topology

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nebuli.worker.deployed import Endpoint
    from placement import Query
    from topology import EngineName, Topology


def load(topology: str, query: str, engine: EngineName | None = None) -> tuple[Topology, Query]:
    """Read both files; if the topology is wrong, what is wrong with the query is said as well.

    ``engine`` is every node's then, whatever the topology says.
    """
    try:
        model = load_topology(topology)
    except TopologyError as error:
        refuse_query(topology)
        try:
            load_query(query)
        except InvalidQuery as other:
            raise TopologyError((*error.mistakes, *other.mistakes)) from None
        raise
    return model if engine is None else model.with_engine(engine), load_query(query)


def endpoints(file: str, topology: Topology, used: Iterable[str]) -> list[Endpoint]:
    """How the workers of these nodes are asked. Raises ClickException for nodes that do not say where."""
    from nebuli.worker.deployed import Endpoint

    known = {node.address: node for node in topology.nodes}
    nodes = [known[address] for address in used]
    if silent := [node.address for node in nodes if node.grpc is None]:
        raise click.ClickException(
            f"{file}: {', '.join(silent)} {'has' if len(silent) == 1 else 'have'} no grpc address, where workers take "
            f"queries: add grpc: host:port"
        )
    directory = Path(file).resolve().parent
    return [
        Endpoint(node.address, str(node.grpc), topology.access_to(node).below(directory)) for node in nodes
    ]


def refuse_query(topology: str) -> None:
    """Say that the arguments are in the wrong order, if what was given as topology is a query."""
    try:
        data = json.loads(Path(topology).read_text("utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return
    if isinstance(data, dict) and "operators" in data and "nodes" not in data:
        command = click.get_current_context().command_path
        raise click.ClickException(f"{topology} looks like a query; the usage is {command} TOPOLOGY QUERY")
