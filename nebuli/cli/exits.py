"""How a command ends: the exit codes, and which error has which."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from enum import IntEnum
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from nebuli.store.errors import StorageError


class ExitCode(IntEnum):
    """What a process that calls ``nebuli`` learns."""

    DONE = 0
    FAILED = 1
    BAD_INPUT = 2
    UNREACHABLE = 3
    INTERRUPTED = 130
    TERMINATED = 128 + signal.SIGTERM


_BAD_INPUT = (
    ("placement.errors", "PlacementError"),
    ("topology.mistakes", "ConnectorUnusable"),
    ("topology.mistakes", "TopologyError"),
    ("netchannel.errors", "CertificateError"),
    ("nebuli.rpc.trust", "TrustUnusable"),
)
"""What files that the user gives can be the reason of."""


def exit_code(command: Callable[[], object]) -> int:
    """Run a command; the code that the process should exit with.

    What is wrong with the user's input goes to standard error, one line for each mistake. Any other error is ours,
    and keeps its traceback.
    """
    try:
        _open_closed_streams()
        _escape_what_cannot_be_encoded()
        # Without click's standalone mode, an exit that was asked for (--help) is a returned code.
        code = command()
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return ExitCode.BAD_INPUT
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # Whoever read us has seen enough.
        _drop_output()
        return ExitCode.FAILED
    except OSError as error:
        # What reads or writes the user's files says which; this is a full disk below our output, or the like.
        _drop_output()
        click.echo(f"Error: {error}", err=True)
        return ExitCode.FAILED
    except Exception as error:
        if not is_bad_input(error):
            raise
        has_places = hasattr(error, "mistakes")
        click.echo(str(error) if has_places else f"Error: {error}", err=True)
        return ExitCode.BAD_INPUT
    return code if isinstance(code, int) else ExitCode.DONE


def end_on_termination() -> None:
    """SIGTERM and a lost terminal end the task as Ctrl-C does, for which asyncio sees itself."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)


def code_of_storage(error: StorageError) -> int:
    """The exit code of a command that a store fails, or refuses."""
    from nebuli.store.collections import errors as refused
    from nebuli.store.errors import NotYet, SchemaMismatch, SequenceError, StoreAway, StoreUnusable

    match error:
        case StoreAway():
            return ExitCode.UNREACHABLE
        case (
            refused.CollectionUnknown() | refused.CollectionExists() | refused.CollectionMisused()
            | refused.RenditionUnknown() | refused.RenditionRefused() | refused.TooLate()
            | NotYet() | SchemaMismatch() | SequenceError() | StoreUnusable()
        ):  # fmt: skip
            return ExitCode.BAD_INPUT
    return ExitCode.FAILED


def _open_closed_streams() -> None:
    """Open the standard streams that are closed, or the next sockets would be taken for them.

    Data has nowhere to go then, which is an error where some is written; talk is dropped.
    """
    for name, flags in (("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, flags)
            os.set_inheritable(descriptor, True)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - as long as the process


def _escape_what_cannot_be_encoded() -> None:
    """Print names with characters that standard output's encoding lacks as Python prints them to standard error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Drop what is left in the buffer: it has nowhere to go, and would be tried again at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_bad_input(error: Exception) -> bool:
    """Whether files that the user gave are the reason."""
    # Whoever raised one of these has imported it, and --help has not.
    return any(
        isinstance(error, getattr(sys.modules[module], name))
        for module, name in _BAD_INPUT
        if module in sys.modules
    )
