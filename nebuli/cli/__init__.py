"""The command line.

Commands print data to standard output, and progress and errors to standard error. Each command's module is imported
when the command is used, so that ``nebuli --help`` imports click only.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module

import click

from nebuli import __version__
from nebuli.cli.exits import exit_code
from nebuli.cli.terminal import takes_colours
from nebuli.log_output import FORMAT_VARIABLE, LEVEL_VARIABLE, wrong_setting

_COMMANDS = {
    "bench": ("bench", "Measure a query's throughput with local workers."),
    "certs": ("certs", "Create TLS certificates for development."),
    "checkpoint": ("queries", "Make a checkpoint now of a query that runs in steps."),
    "collection": ("groups.collection_commands", "Create, fill, read and follow durable collections."),
    "completion": ("completion", "Print a shell completion script."),
    "doctor": ("doctor", "Check the workers of a fleet and the links between them."),
    "list": ("query_views", "List the registered queries with their states."),
    "logs": ("query_views", "Show the log lines of a query from all its workers."),
    "place": ("place", "Show the placement of a query and its fragments."),
    "query": ("circuit_query", "Read the contents of a query in steps with SQL."),
    "register": ("queries", "Place a query and register its fragments at workers."),
    "run": ("run", "Run a query with a local worker process for each node."),
    "scale": ("scale", "Scale a query in steps to another number of members."),
    "schema": ("validate", "Print the JSON Schema of topology files."),
    "source": ("groups.source_commands", "Create, run and inspect ingested sources."),
    "start": ("queries", "Start a query on running workers."),
    "status": ("query_views", "Show the state of a query and of each fragment."),
    "stop": ("queries", "Stop a query and wait until it has ended."),
    "top": ("top", "Show the channels and views of queries, live."),
    "unregister": ("queries", "Remove a query from its workers."),
    "validate": ("validate", "Check a topology, and a query for this topology."),
    "view": ("groups.view_commands", "Read, watch and add views of running queries."),
    "watch": ("watch", "Watch a query to its end and handle lost nodes."),
    "worker": ("worker", "Run one node of a topology."),
}
"""The commands by name: the module in `nebuli.cli.commands` that defines the command, and the command's summary."""

_OF_COMMANDS = {"member": "run_member"}
"""Commands that other commands start, and that the help does not list: the module by name."""

_ATTRIBUTES = {"list": "list_"}
"""The attributes of commands whose names are builtins of Python."""


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
@click.option("-v", "--verbose", is_flag=True, help="Also log the start and end of channels and fragments.")
@click.option("-q", "--quiet", is_flag=True, help="Log errors only, and show no progress.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    help="Format of the log lines on standard error.  [default: text]",
)
def nebuli(*, verbose: bool, quiet: bool, log_format: str | None) -> None:
    """Run queries across machines, without a broker.

    A topology (YAML) describes the nodes with their sources and sinks; a query (JSON or SQL) describes the computation.

    Exit codes: 0 done, 1 the query failed, 2 invalid input or no valid placement, 3 a worker is unreachable, 130
    interrupted.
    """
    if verbose and quiet:
        raise click.UsageError("--verbose and --quiet contradict each other: give one of them")
    if verbose or quiet:
        os.environ[LEVEL_VARIABLE] = "info" if verbose else "error"
    if log_format is not None:
        os.environ[FORMAT_VARIABLE] = log_format
    if (wrong := wrong_setting()) is not None:
        raise click.UsageError(wrong)
    if not takes_colours():
        click.get_current_context().color = False


def main() -> None:
    """Run the command line and exit with its code."""
    # Imports allocate many objects that stay: the collector would traverse them a hundred times.
    gc.set_threshold(20_000, 50, 100)
    code = exit_code(lambda: nebuli.main(prog_name="nebuli", standalone_mode=False))
    # At exit Python collects all remaining objects, which takes a fifth of a short command's time.
    gc.freeze()
    sys.exit(code)
