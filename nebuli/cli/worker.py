"""``nebuli worker``: one node of a topology."""

from __future__ import annotations

import click


@click.command()
@click.option("--data", required=True, metavar="HOST:PORT", help="Where to take data from other workers.")
@click.option("--advertise", metavar="HOST:PORT", help="Where others reach --data, where that differs.")
@click.option("--grpc", required=True, metavar="HOST:PORT", help="Where to take queries.")
@click.option("--ends-with-stdin", is_flag=True, help="End when standard input does, as well as on SIGTERM.")
def worker(data: str, advertise: str | None, grpc: str, ends_with_stdin: bool) -> None:
    """Run one node: it takes fragments of queries over gRPC and runs them.

    Paths of sources and sinks start at the working directory. Prints one line on stderr once it is ready.
    """
    from nebuli.worker.process import AddressUnusable, WorkerSettings, run_worker

    settings = WorkerSettings(data=data, grpc=grpc, advertise=advertise, ends_with_stdin=ends_with_stdin)
    try:
        run_worker(settings)
    except AddressUnusable as error:
        raise click.ClickException(str(error)) from error
