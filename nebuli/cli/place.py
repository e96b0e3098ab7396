"""``nebuli place``: where a query's operators run, and why."""

from __future__ import annotations

import click


@click.command()
@click.argument("topology")
@click.argument("query")
@click.option("--seed", default=0, show_default=True, help="Which of several equal paths is taken.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "mermaid"]),
    default="text",
    show_default=True,
    help="How to show it: a table with reasons, JSON for programs, or a mermaid flowchart.",
)
def place(topology: str, query: str, seed: int, form: str) -> None:
    """Place the operators of QUERY on the nodes of TOPOLOGY, and cut it into fragments.

    Nothing is deployed, and no source file is opened. The same files and the same seed give the same text.
    """
    import placement
    from nebuli.cli import render
    from nebuli.cli.files import load

    model, plan = load(topology, query)
    placed = placement.place(plan, model, seed)
    show = {"text": render.as_text, "json": render.as_json, "mermaid": render.as_mermaid}[form]
    click.echo(show(placed, placement.decompose(placed)))
