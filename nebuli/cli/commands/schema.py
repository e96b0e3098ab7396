"""``nebuli schema``: what editors check a topology by."""

from __future__ import annotations

import click


@click.command()
def schema() -> None:
    """Print the JSON Schema of topology files, with the connectors that are installed here, for an editor."""
    from topology import SINKS, SOURCES
    from topology.json_schema import topology_schema

    SOURCES.load_installed()
    SINKS.load_installed()
    click.echo(topology_schema(), nl=False)
