"""``nebuli completion``: the completion script of a shell, and the completion of query ids."""

from __future__ import annotations

from contextlib import suppress

import click
from click.shell_completion import CompletionItem, get_completion_class

from nebuli.cli import saved_queries

_SHELLS = ("bash", "zsh", "fish")
PROGRAM = "nebuli"
VARIABLE = "_NEBULI_COMPLETE"
"""The environment variable by which a shell requests completions; click derives it from the program's name."""


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print a shell completion script.

    The script completes commands, options, file names and query ids in SHELL. In bash: eval "$(nebuli completion bash)"
    """
    from nebuli.cli import nebuli

    found = get_completion_class(shell)
    assert found is not None, "click knows all of these"
    click.echo(found(nebuli, {}, PROGRAM, VARIABLE).source())


def queries(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the ids of registered queries, with their names."""
    with suppress(click.ClickException):  # commands report an invalid file; the Tab key does not
        return [
            CompletionItem(query.id, help=f"{query.name}, registered {query.registered}")
            for query in saved_queries.load_all()
            if query.id.startswith(incomplete)
        ]
    return []


def queries_or_files(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete arguments of ``start``: a query's id, or two files. Shells do not show both, so ids come first."""
    given = context.params.get(str(parameter.name))
    return (not given and queries(context, parameter, incomplete)) or [
        CompletionItem(incomplete, type="file")
    ]
