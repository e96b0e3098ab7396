"""``nebuli run --stepped``: the options, and the run."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from nebuli.cli.exits import ExitCode, end_on_termination

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from nebuli.coordinator.events import Order
    from nebuli.members.stepped_query import SteppedQuery
    from placement import Query
    from topology import Topology

CHECKPOINT_S = 10.0


class Steps(NamedTuple):
    """What the options say; None: not given."""

    stepped: bool
    members: int | None
    state: str | None
    checkpoint_s: float | None

    def check(self) -> None:
        """Raise UsageError where they do not go together."""
        others = {
            "--members": self.members,
            "--state": self.state,
            "--checkpoint-every": self.checkpoint_s,
        }
        given = [name for name, value in others.items() if value is not None]
        if given and not self.stepped:
            raise click.UsageError(f"{given[0]} is for queries in steps: add --stepped, or leave it out")
        if self.stepped and self.state is None:
            raise click.UsageError(
                "--stepped needs --state DIR, a folder of this machine for what the query keeps: run it again with "
                "the same one, and it goes on where it was"
            )


def step_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a command that may run a query in steps."""
    for option in reversed(
        (
            click.option(
                "--stepped", is_flag=True, help="Run in steps, with state that survives: exactly once."
            ),
            click.option(
                "--members",
                type=click.IntRange(1, 64),
                help="In how many processes each step is worked on; 1 without it.",
            ),
            click.option(
                "--state",
                type=click.Path(file_okay=False),
                help="The folder for what a query in steps keeps.",
            ),
            click.option(
                "--checkpoint-every",
                "checkpoint_s",
                type=click.FloatRange(min=0.1),
                metavar="SECONDS",
                help=f"How often the state of a query in steps is saved; {CHECKPOINT_S:g} s without it.",
            ),
        )
    ):
        command = option(command)
    return command


def run_in_steps(topology: Topology, file: str, query: Query, steps: Steps, *, max_state_bytes: int) -> int:
    """Run the query to its end; the exit code."""
    from nebuli.connectors.errors import FragmentError, InputError
    from nebuli.coordinator.errors import CoordinationError
    from nebuli.members.errors import MembersFailed
    from nebuli.members.stepped_query import stepped_query
    from nebuli.storage import StorageError

    assert steps.state is not None
    in_steps = stepped_query(query, topology, steps.members or 1)
    _refuse_without_sources(in_steps)
    directory = Path(file).resolve().parent
    state = Path(steps.state).absolute()
    try:
        asyncio.run(_run(in_steps, state, directory, steps, max_state_bytes))
    except KeyboardInterrupt:
        click.echo(
            f"Interrupted: all members are stopped. Run it again, and it goes on from {state}.", err=True
        )
        return ExitCode.INTERRUPTED
    except asyncio.CancelledError:
        return ExitCode.TERMINATED
    except (CoordinationError, FragmentError, MembersFailed, StorageError, OSError) as error:
        click.echo(f"Error: {error}", err=True)
        return ExitCode.BAD_INPUT if isinstance(error, InputError) else ExitCode.FAILED
    return ExitCode.DONE


def _refuse_without_sources(query: SteppedQuery) -> None:
    if query.external:
        raise click.UsageError(
            f"nothing is attached to {', '.join(query.external)}: give the topology a physical source for it"
        )


async def _run(query: SteppedQuery, state: Path, directory: Path, steps: Steps, max_state_bytes: int) -> None:
    from nebuli.coordinator.triggers import TriggerSettings
    from nebuli.members.local_run import LocalRun

    end_on_termination()
    progress = _Progress(query.plan.members)
    settings = TriggerSettings(checkpoint_s=steps.checkpoint_s or CHECKPOINT_S)
    with contextlib.chdir(directory):
        async with LocalRun(
            query, state, directory, settings, observe=progress.hear, max_state_bytes=max_state_bytes
        ) as run:
            await run.until_ended()
    progress.say("done")


class _Progress:
    """A line on standard error for each change."""

    def __init__(self, members: int) -> None:
        self._began = time.monotonic()
        self.say(f"{members} member{'s' if members > 1 else ''}")

    def say(self, text: str) -> None:
        click.echo(f"{time.monotonic() - self._began:6.1f} s  {text}", err=True)

    def hear(self, order: Order) -> None:
        """What the coordinator orders."""
        from nebuli.coordinator import events as ev

        match order:
            case ev.ClaimEpoch(_, why):
                self.say(f"{why}; going on from the last checkpoint")
            case ev.CheckpointMade(step):
                self.say(f"checkpoint at step {step:,}")
            case ev.CheckpointFailed(step, why):
                self.say(f"no checkpoint at step {step:,}: {why}")
            case ev.InputsEnded(step):
                self.say(f"all inputs have ended, after {step:,} steps")
            case _:
                pass
