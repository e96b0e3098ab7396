"""``nebuli worker``: one node of a topology."""

from __future__ import annotations

import re
from functools import partial

import click

from nebuli.cli.bounds import max_state_bytes


def _address(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Check an address; port 0, which takes a free one, is none that a topology could name."""
    from topology.address import check_address

    if value is not None:
        try:
            check_address(re.sub(r":0$", ":1", value))
        except ValueError as error:
            raise click.BadParameter(str(error), context, parameter) from None
    return value


_option = partial(click.option, metavar="HOST:PORT", callback=_address)


@click.command()
@_option("--data", required=True, help="Where to take data from other workers.")
@_option("--advertise", help="Where others reach --data, where that differs.")
@_option("--grpc", required=True, help="Where to take queries.")
@_option("--metrics", help="Where to serve /metrics for Prometheus.")
@max_state_bytes
@click.option("--ends-with-stdin", is_flag=True, help="End when standard input does, as well as on SIGTERM.")
def worker(
    *,
    data: str,
    advertise: str | None,
    grpc: str,
    metrics: str | None,
    max_state_bytes: int,
    ends_with_stdin: bool,
) -> None:
    """Run one node: it takes fragments of queries over gRPC and runs them.

    Paths of sources and sinks start at the working directory. Prints one line on stderr once it is ready.
    """
    from nebuli.worker.process import AddressUnusable, WorkerSettings, run_worker

    settings = WorkerSettings(
        data=data,
        grpc=grpc,
        advertise=advertise,
        metrics=metrics,
        max_state_bytes=max_state_bytes,
        ends_with_stdin=ends_with_stdin,
    )
    try:
        run_worker(settings)
    except (AddressUnusable, ImportError) as error:
        raise click.ClickException(str(error)) from error
