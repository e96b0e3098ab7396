"""Asking the workers of a query, and what is said where they do not answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from nebuli.cli.exits import ExitCode

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from nebuli.fleet.client import WorkerRefused, WorkerUnreachable
    from nebuli.fleet.deployed import DeployedQuery, Workers


def ran(work: Coroutine[Any, Any, int]) -> int:
    """Do what needs workers; who does not answer, or refuses, is said in a sentence."""
    from nebuli.fleet.client import WorkerRefused, WorkerUnreachable

    try:
        return asyncio.run(work)
    except WorkerUnreachable as error:
        click.echo(f"Error: {error}", err=True)
        return ExitCode.UNREACHABLE
    except WorkerRefused as error:
        click.echo(f"Error: {error}", err=True)
        return ExitCode.FAILED


def workers_of(query: DeployedQuery) -> Workers:
    """Those that have a fragment of the query, or may still have one of an earlier deployment."""
    from nebuli.fleet.deployed import Endpoint, Workers

    return Workers(Endpoint(each.node, each.grpc, each.access) for each in (*query.left, *query.fragments))


def said(errors: Sequence[WorkerUnreachable | WorkerRefused]) -> int:
    """Say each error once; the exit code."""
    from nebuli.fleet.client import WorkerUnreachable

    for text in dict.fromkeys(map(str, errors)):
        click.echo(f"Error: {text}", err=True)
    if any(isinstance(error, WorkerUnreachable) for error in errors):
        return ExitCode.UNREACHABLE
    return ExitCode.FAILED if errors else ExitCode.DONE
