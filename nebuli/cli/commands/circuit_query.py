"""``nebuli query``: SQL over the contents of a query in steps."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import click

from nebuli.cli.bounds import FilePath
from nebuli.cli.exits import ExitCode
from nebuli.cli.rows.printed_rows import format_option, how_many, print_rows
from nebuli.cli.stepped.circuit_access import reached, trust_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from ssl import SSLContext

    import pyarrow as pa

    from nebuli.rpc.trust import Trust

_WITHIN_S = 40.0


@click.command()
@click.argument("circuit")
@click.argument("sql")
@click.option(
    "--topology",
    type=FilePath(),
    help="Topology with the certificates and the secret for CIRCUIT, if CIRCUIT is an address or a URL.",
)
@format_option
@click.option("--json", "as_json", is_flag=True, help="Same as --format json.")
def query(circuit: str, sql: str, topology: str | None, form: str, *, as_json: bool) -> int:
    """Read the contents of a query in steps with SQL.

    Runs a SELECT over the outputs, views and materialized inputs of CIRCUIT, at one step of all members. The dialect is
    DuckDB's. Prints the step to standard error.

    CIRCUIT is the id of a registered query in steps, the HOST:PORT of a served query (--serve), or the URL of a query
    that is served over HTTP (--http).

    Exit codes: 0 done; 1 CIRCUIT could not answer; 2 the SQL is invalid; 3 CIRCUIT is unreachable.
    """
    from nebuli.circuits.errors import CircuitError, CircuitUnreachable, WrongQuery

    trust = trust_of(topology)
    try:
        if circuit.startswith(("http://", "https://")):
            step, rows = _over_http(circuit, sql, trust)
        else:
            step, rows = asyncio.run(_over_grpc(circuit, sql, trust))
    except CircuitError as error:
        click.echo(f"Error: {error}", err=True)
        match error:
            case CircuitUnreachable():
                return ExitCode.UNREACHABLE
            case WrongQuery():
                return ExitCode.BAD_INPUT
        return ExitCode.FAILED
    print_rows(rows, "json" if as_json else form)
    click.echo(f"{how_many(rows.num_rows)} at step {step:,}", err=True)
    return ExitCode.DONE


async def _over_grpc(circuit: str, sql: str, trust: Trust) -> tuple[int, pa.Table]:
    async with reached(circuit, trust, _WITHIN_S) as found:
        return await found.query(sql)


def _over_http(url: str, sql: str, trust: Trust) -> tuple[int, pa.Table]:
    """Raises CircuitError."""
    import pyarrow as pa

    from nebuli.circuits.errors import CircuitUnreachable

    try:
        status, headers, body = _asked(url, sql, trust, _WITHIN_S)
    except OSError as error:
        raise CircuitUnreachable(
            f"no answer from {url}: {error}; check that 'nebuli run --stepped --http' runs there"
        ) from None
    if status == 200:
        return int(headers["nebuli-step"]), pa.ipc.open_stream(body).read_all()
    raise _refused(status, body, url)


def _refused(status: int, body: bytes, url: str) -> Exception:
    from nebuli.circuits.errors import CircuitDenied, CircuitFailed, WrongQuery

    try:
        said = json.loads(body)
        text = f"{said['what']}; {said['do']}"
    except (ValueError, KeyError, TypeError):
        return CircuitFailed(
            f"{url} serves no query in steps, or runs another version of nebuli (HTTP status {status})"
        )
    if status == 401:
        return CircuitDenied(f"{text}: give the query's topology with --topology")
    return WrongQuery(said["what"]) if status == 400 else CircuitFailed(text)


def _asked(url: str, sql: str, trust: Trust, within_s: float) -> tuple[int, Mapping[str, str], bytes]:
    """Return the answer's status, headers and body, an Arrow stream of rows. Raises OSError, CertificateError."""
    import urllib.error
    import urllib.request

    headers = {"content-type": "application/json", "accept": "application/vnd.apache.arrow.stream"}
    if trust.secret is not None:
        headers["authorization"] = f"Bearer {trust.secret}"
    body = json.dumps({"sql": sql}).encode()
    request = urllib.request.Request(f"{url.rstrip('/')}/query", body, headers, method="POST")  # noqa: S310 - http only
    handlers: list[urllib.request.BaseHandler] = [
        urllib.request.ProxyHandler({})  # a proxy would reach neither this machine nor its network
    ]
    if trust.tls is not None:
        handlers.append(urllib.request.HTTPSHandler(context=_context(trust)))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=within_s) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


def _context(trust: Trust) -> SSLContext:
    from netchannel.tls import Credentials

    assert trust.tls is not None
    return Credentials(trust.tls, "sender").context()
