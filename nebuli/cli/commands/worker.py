"""``nebuli worker``: one node of a topology."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nebuli.cli.bounds import FilePath, max_state_bytes, state_place
from nebuli.cli.saved_queries import state_directory

if TYPE_CHECKING:
    from nebuli.store.store_url import StorePlace
    from topology import Node, Topology


def _address(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Check an address. Port 0, which takes a free one, is valid here, but not in a topology."""
    from topology.address import check_address

    if value is not None:
        try:
            check_address(re.sub(r":0$", ":1", value))
        except ValueError as error:
            raise click.BadParameter(str(error), context, parameter) from None
    return value


def _range(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, int]:
    if value is None:
        return 0, 0
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", value)
    first, last = map(int, match.groups()) if match else (0, 0)
    if not 0 < first <= last < 1 << 16:
        raise click.BadParameter(
            f"expected two ports, the lower one first, as in 9100-9199; got {value!r}", context, parameter
        )
    return first, last


def _data_ports(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value not in (None, "ephemeral"):
        _range(context, parameter, value)
    return value


_option = partial(click.option, metavar="HOST:PORT", callback=_address)


@click.command()
@_option("--data", help="Address for data from other workers.  [default: from --topology]")
@_option(
    "--advertise",
    help="Address by which other processes reach --data.  [default: from --topology, or --data]",
)
@_option("--grpc", help="Address for queries.  [default: from --topology]")
@_option("--metrics", help="Address of /metrics for Prometheus.")
@_option(
    "--http",
    help="HTTP address for the queries in steps whose coordinators run here; each query is served under its id.",
)
@click.option(
    "--topology",
    metavar="FILE",
    type=FilePath(),
    help="Topology with the addresses, TLS and secret of --node.",
)
@_option("--node", help="Node of --topology that this worker runs, by its address.")
@click.option(
    "--secret-file",
    metavar="FILE",
    type=FilePath(),
    help="File with the shared secret in its first line.  [default: the secret of --topology]",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Accept connections from other machines without TLS or a secret.",
)
@click.option(
    "--state",
    metavar="DIR|URL",
    type=FilePath(),
    help="Place where the worker records its fragments, to resume them after a restart: a folder, the URL of a store, "
    "or 'none'.  [default: a folder named after --data, in the XDG state directory]",
)
@click.option(
    "--fragment-memory",
    metavar="MIB",
    type=click.IntRange(min=1),
    help="Memory limit of a fragment.  [default: no limit]",
)
@click.option(
    "--fragment-ports",
    metavar="FIRST-LAST",
    callback=_range,
    help="Ports at which fragments receive data, one for each fragment.  [default: any free ports]",
)
@click.option(
    "--data-ports",
    metavar="FIRST-LAST|ephemeral",
    callback=_data_ports,
    help="Separate ports for data connections, one for each channel.  [default: the fragments' ports]",
)
@max_state_bytes
@click.option("--ends-with-stdin", is_flag=True, help="Exit at the end of standard input, as on SIGTERM.")
def worker(
    *,
    data: str | None,
    advertise: str | None,
    grpc: str | None,
    topology: str | None,
    node: str | None,
    secret_file: str | None,
    insecure: bool,
    state: str | None,
    fragment_memory: int | None,
    data_ports: str | None,
    **others: Any,
) -> None:
    """Run one node of a topology.

    Accepts fragments of queries over gRPC and runs them. Listens at --data and --grpc, or at the addresses of --node in
    --topology. TLS is configured in the topology, a secret in the topology or with --secret-file. Addresses that other
    machines can reach require TLS, a secret or --insecure. Paths of sources and sinks are relative to the working
    directory. Prints a line to standard error when the worker is ready.
    """
    from nebuli.node.fragment.worker_template import configure_libraries

    configure_libraries()
    from nebuli.node.exposure import Exposed, check_http_not_exposed, check_not_exposed
    from nebuli.node.fragment.worker_template import fork_worker
    from nebuli.node.records import StateUnusable
    from nebuli.node.worker_process import AddressUnusable, WorkerSettings, run_worker
    from nebuli.rpc.trust import Trust
    from topology import Access, SecretPlace

    if (topology is None) != (node is None):
        raise click.UsageError("--topology and --node require each other: give both, or neither")
    access = Access()
    if topology is not None and node is not None:
        model, own = _node(topology, node)
        data_ports = data_ports or own.data_ports
        data, advertise, grpc = data or own.listen or own.address, advertise or own.address, grpc or own.grpc
        access = model.access(own).below(Path(topology).resolve().parent)
    if secret_file is not None:
        access = access.model_copy(update={"secret": SecretPlace(file=secret_file)})
    if data is None or grpc is None:
        missing = "--data" if data is None else "--grpc"
        if topology is not None:
            raise click.UsageError(
                f"node {node} of {topology} has no grpc address: add one there, or give {missing}"
            )
        raise click.UsageError(f"{missing} is missing: give it, or give --topology and --node")
    settings = WorkerSettings(
        data=data,
        grpc=grpc,
        advertise=advertise,
        state=_state(state, data),
        fragment_memory=None if fragment_memory is None else fragment_memory << 20,
        data_ports=data_ports,
        trust=Trust.of(access),
        **others,
    )
    try:
        if not insecure:
            check_not_exposed(settings)
        check_http_not_exposed(settings)
        run_worker(settings, fork_worker())
    except (AddressUnusable, Exposed, StateUnusable, ImportError) as error:
        raise click.ClickException(str(error)) from error


def _state(given: str | None, data: str) -> StorePlace | None:
    """Return the place of a worker's state; a worker at port 0 has none, as its port changes at each start."""
    if given == "none" or (given is None and data.endswith(":0")):
        return None
    if given is not None:
        return state_place(given)
    return state_directory() / "workers" / re.sub(r"[^\w.-]", "_", data)


def _node(file: str, address: str) -> tuple[Topology, Node]:
    from topology import load_topology
    from topology.consistency import did_you_mean, listed

    model = load_topology(file)
    try:
        node = model.node(address)
    except KeyError:
        known = [each.address for each in model.nodes]
        raise click.ClickException(
            f"{file} has no node {address}{did_you_mean(address, known)}; expected {listed(known)}"
        ) from None
    return model, node
