"""``nebuli completion``: what a shell needs to complete commands; and what is completed where it is no file."""

from __future__ import annotations

from contextlib import suppress

import click
from click.shell_completion import CompletionItem, get_completion_class

from nebuli.cli import saved_queries

_SHELLS = ("bash", "zsh", "fish")
PROGRAM = "nebuli"
VARIABLE = "_NEBULI_COMPLETE"
"""The environment variable by which a shell asks, as click derives it from the program's name."""


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print what SHELL needs to complete commands, options, names of files and ids of queries.

    In bash: eval "$(nebuli completion bash)"
    """
    from nebuli.cli import nebuli

    found = get_completion_class(shell)
    assert found is not None, "click knows all of these"
    click.echo(found(nebuli, {}, PROGRAM, VARIABLE).source())


def queries(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The ids of registered queries, with what they are."""
    with suppress(
        click.ClickException
    ):  # a file that is none is for commands to name, not for the tabulator key
        return [
            CompletionItem(query.id, help=f"{query.name}, registered {query.registered}")
            for query in saved_queries.load_all()
            if query.id.startswith(incomplete)
        ]
    return []


def queries_or_files(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Arguments of ``start``: the id of a query, or two files. Shells do not show both, so ids come first."""
    given = context.params.get(str(parameter.name))
    return (not given and queries(context, parameter, incomplete)) or [
        CompletionItem(incomplete, type="file")
    ]
