"""The command line.

Standard output is data, standard error is talk. Commands are modules that are imported when they are used, so that
``nebuli --help`` imports click only.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module

import click

from nebuli import __version__
from nebuli.cli.exits import exit_code
from nebuli.cli.terminal import takes_colours

_COMMANDS = {
    "bench": ("bench", "Measure how fast a query is, with workers on this machine."),
    "certs": ("certs", "Make certificates for development."),
    "checkpoint": ("queries", "Save the state of a query in steps now."),
    "collection": (
        "groups.collection_commands",
        "Make collections of rows over time, fill, read and follow them.",
    ),
    "completion": ("completion", "Print what a shell needs to complete commands."),
    "doctor": ("doctor", "Look for what is wrong with a fleet, and say what to do about it."),
    "list": ("query_views", "List the registered queries, with their states."),
    "logs": ("query_views", "Show what workers have logged about a query."),
    "place": ("place", "Show where a query's operators run, and the fragments it is cut into."),
    "query": ("circuit_query", "Ask a query in steps with a SELECT over what it has."),
    "register": ("queries", "Give a query's fragments to running workers."),
    "run": ("run", "Run a query over a topology, with a worker process per node on this machine."),
    "scale": ("scale", "Have a query in steps go on with another number of members."),
    "schema": ("validate", "Print the JSON Schema of topologies, with the connectors that are installed."),
    "source": (
        "groups.source_commands",
        "Make sources, which are ingested into collections, run and look at them.",
    ),
    "start": ("queries", "Start a query on running workers."),
    "status": ("query_views", "Show how a query is, and each of its fragments."),
    "stop": ("queries", "Stop a query."),
    "top": ("top", "Show the channels of queries as they are: rates, buffers, lag, reconnects."),
    "unregister": ("queries", "Have workers forget a query."),
    "validate": ("validate", "Check a topology, and a query against it."),
    "view": ("groups.view_commands", "Read the views of running queries by key."),
    "watch": ("watch", "Watch a query to its end, and act when a node is lost."),
    "worker": ("worker", "Run one node of a topology."),
}
"""The commands by name: the module in `nebuli.cli.commands` that holds one under the same name, and its help."""

_OF_COMMANDS = {"member": "run_member"}
"""Commands that other commands start, and that the help does not list: the module by name."""

_ATTRIBUTES = {"list": "list_"}
"""Names of commands that Python has taken."""


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = _COMMANDS[cmd_name][0] if cmd_name in _COMMANDS else _OF_COMMANDS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = getattr(
            import_module(f"nebuli.cli.commands.{module}"), _ATTRIBUTES.get(cmd_name, cmd_name)
        )
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in {*_COMMANDS, *_OF_COMMANDS} and not name.startswith("-") and not ctx.resilient_parsing:
            from topology.consistency import did_you_mean

            raise click.UsageError(f"no such command {name!r}{did_you_mean(name, _COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def nebuli() -> None:
    """Run queries across machines, without a broker.

    A topology (YAML) says which nodes there are and what is attached to them, a query (JSON) says what to compute.

    Exit codes: 0 done, 1 the query failed, 2 bad input or not placeable, 3 a worker is unreachable, 130 interrupted.
    """
    if not takes_colours():
        click.get_current_context().color = False


def main() -> None:
    """Run the command line and exit with its code."""
    # Imports make many objects, which stay: Python would search them for cycles a hundred times.
    gc.set_threshold(20_000, 50, 100)
    code = exit_code(lambda: nebuli.main(prog_name="nebuli", standalone_mode=False))
    # Python ends with a search for cycles among all that is left, which takes a fifth of a short command.
    gc.freeze()
    sys.exit(code)
