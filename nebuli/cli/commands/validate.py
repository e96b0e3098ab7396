"""``nebuli validate``: a check of files; ``nebuli schema``: the JSON Schema by which editors check a topology."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from nebuli.cli.bounds import FilePath
from nebuli.cli.exits import ExitCode
from nebuli.cli.query_argument import InlineStatement, optional_query_argument

if TYPE_CHECKING:
    from topology import Mistake


@click.command()
@click.argument("topology", type=FilePath())
@optional_query_argument
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def validate(topology: str, query: str | None, *, as_json: bool) -> int:
    """Check a topology, and a query for this topology.

    Reports every mistake in the files TOPOLOGY and QUERY. Opens no source file. 'nebuli place' checks if the query can
    be placed.
    """
    from placement import InvalidQuery
    from topology import TopologyError

    try:
        _check(topology, query)
    except (TopologyError, InvalidQuery) as error:
        if not as_json:
            raise
        _print(error.mistakes)
        return ExitCode.BAD_INPUT
    if as_json:
        _print(())
    else:
        shown = "the statement" if isinstance(query, InlineStatement) else query
        both = topology if query is None else f"{topology} and {shown}"
        click.echo(f"{both} {'is' if query is None else 'are'} valid", err=True)
    return ExitCode.DONE


@click.command()
def schema() -> None:
    """Print the JSON Schema of topology files.

    Editors use it to check topologies. It includes the connectors that are installed here.
    """
    from topology import SINKS, SOURCES
    from topology.json_schema import topology_schema

    SOURCES.load_installed()
    SINKS.load_installed()
    click.echo(topology_schema(), nl=False)


def _check(topology: str, query: str | None) -> None:
    from nebuli.cli.files import load, load_topology
    from placement import check

    if query is None:
        load_topology(topology)
        return
    model, plan = load(topology, query)
    check(plan, model)


def _print(mistakes: tuple[Mistake, ...]) -> None:
    click.echo(json.dumps({"valid": not mistakes, "mistakes": list(map(_data, mistakes))}, indent=2))


def _data(mistake: Mistake) -> dict[str, Any]:
    return {
        "file": mistake.file,
        "line": mistake.line,
        "column": mistake.column,
        "message": mistake.message,
    }
