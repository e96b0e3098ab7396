"""The exit codes of commands, and the exit code of each error."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from enum import IntEnum
from typing import TYPE_CHECKING

import click

from nebuli.disk_room import what_to_do

if TYPE_CHECKING:
    from collections.abc import Callable

    from nebuli.store.errors import StorageError


class ExitCode(IntEnum):
    """The exit codes of ``nebuli``."""

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
"""The errors that a user's file can cause, by module and name."""
_OF_OUTPUT = (errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC)


def exit_code(command: Callable[[], object]) -> int:
    """Run a command, and return the exit code of the process.

    Mistakes in the user's input go to standard error, one line each. Any other error is ours, and keeps its traceback.
    """
    try:
        _open_closed_streams()
        _escape_what_cannot_be_encoded()
        # Without click's standalone mode, a requested exit (--help) is a returned code.
        code = command()
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return ExitCode.BAD_INPUT
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader has closed our output.
        _drop_output()
        return ExitCode.FAILED
    except OSError as error:
        # Errors of the user's files name the file; this is an error of our own output, such as a full disk.
        _drop_output()
        click.echo(f"Error: {_of_output(error)}", err=True)
        return ExitCode.FAILED
    except Exception as error:
        if not is_bad_input(error):
            raise
        has_places = hasattr(error, "mistakes")
        click.echo(str(error) if has_places else f"Error: {error}", err=True)
        return ExitCode.BAD_INPUT
    return code if isinstance(code, int) else ExitCode.DONE


def _of_output(error: OSError) -> str:
    """Return the message of an error, with what to do about it if it is one of standard output."""
    if error.filename is not None or error.errno not in _OF_OUTPUT:
        return str(error)
    remedy = what_to_do(error)
    return f"standard output cannot be written: {error.strerror}{'' if remedy is None else f'; {remedy}'}"


def end_on_termination() -> None:
    """Cancel the current task on SIGTERM and SIGHUP, as asyncio does on Ctrl-C."""
    import asyncio  # not at the top: commands that only plan do not load it

    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)


def code_of_storage(error: StorageError) -> int:
    """Return the exit code for an error or a refusal of a store."""
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
    """Open the standard streams that are closed: else the next sockets get their descriptors.

    Writing to a standard output that was closed is an error; output to such a standard error is dropped.
    """
    for name, flags in (("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, flags)
            os.set_inheritable(descriptor, True)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - as long as the process


def _escape_what_cannot_be_encoded() -> None:
    """Escape characters that standard output's encoding lacks, as Python does on standard error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Drop the rest of the buffer, which Python would try to write again at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_bad_input(error: Exception) -> bool:
    """Return whether a user's file caused the error."""
    # A module that raised one of these is imported already; --help does not import them.
    return any(
        isinstance(error, getattr(sys.modules[module], name))
        for module, name in _BAD_INPUT
        if module in sys.modules
    )
