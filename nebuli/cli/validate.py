"""``nebuli validate``: whether files are what they should be."""

from __future__ import annotations

import click


@click.command()
@click.argument("topology", type=click.Path())
@click.argument("query", required=False, type=click.Path())
def validate(topology: str, query: str | None) -> None:
    """Check the file TOPOLOGY, and QUERY against it, and report every mistake.

    No source file is opened. Whether the query can be placed is for "nebuli place" to say.
    """
    if query is None:
        from topology import TopologyError, load_topology

        try:
            load_topology(topology)
        except TopologyError:
            from nebuli.cli.files import refuse_query

            refuse_query(topology)
            raise
        click.echo(f"{topology} is valid", err=True)
        return
    from nebuli.cli.files import load
    from placement import check

    model, plan = load(topology, query)
    check(plan, model)
    click.echo(f"{topology} and {query} are valid", err=True)
