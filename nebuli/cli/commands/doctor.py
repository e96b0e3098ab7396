"""``nebuli doctor``: checks of a fleet, with remedies."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nebuli.cli.bounds import FilePath
from nebuli.cli.exits import ExitCode

if TYPE_CHECKING:
    from nebuli.doctor import Check, Fleet


@click.command()
@click.argument("topology", type=FilePath())
@click.argument("query", required=False, type=FilePath())
@click.option(
    "--seed",
    default=0,
    show_default=True,
    help=(
        "Seed for the placement of QUERY: 'nebuli place' with the same seed gives the same placement. The "
        "edges of this placement are measured."
    ),
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(topology: str, query: str | None, seed: int, as_json: bool) -> int:
    """Check the workers of a fleet and the links between them.

    Checks the workers of TOPOLOGY and the edges between them; with QUERY, only the workers and edges that its
    placement uses. Measures one edge after the other, for one second each, over a separate channel. Prints a remedy
    with each problem.

    Exit codes: 1 a check failed, 3 a worker or an edge is unreachable.
    """
    return asyncio.run(_diagnose(_fleet(topology, query, seed), as_json=as_json))


def _fleet(file: str, query: str | None, seed: int) -> Fleet:
    from nebuli.doctor import Fleet

    if query is None:
        from nebuli.cli.files import load_topology

        model = load_topology(file)
        links = [(node.address, end) for node in model.nodes for end in node.links.downstream]
        return Fleet(model, Path(file).resolve(), model.nodes, links)
    import placement
    from nebuli.cli.files import load

    model, plan = load(file, query)
    placed = placement.decompose(placement.place(plan, model, seed))
    used = {fragment.node for fragment in placed.fragments}
    links = [(channel.start, channel.end) for channel in placed.channels if channel.start != channel.end]
    edges = list(dict.fromkeys(links))
    nodes = [node for node in model.nodes if node.address in used]
    return Fleet(model, Path(file).resolve(), nodes, edges)


async def _diagnose(fleet: Fleet, *, as_json: bool) -> int:
    from nebuli.doctor import examine

    checks: list[Check] = []
    async for check in examine(fleet):
        if not as_json:
            _print(check, checks[-1].subject if checks else "")
        checks.append(check)
    bad = [check for check in checks if not check.ok]
    if as_json:
        click.echo(json.dumps({"ok": not bad, "checks": [check.to_data() for check in checks]}, indent=2))
    click.echo(f"{len(bad)} of {len(checks)} checks failed" if bad else "all checks passed", err=True)
    if any(check.unreachable for check in bad):
        return ExitCode.UNREACHABLE
    return ExitCode.FAILED if bad else ExitCode.DONE


def _print(check: Check, before: str) -> None:
    if check.subject != before:
        click.echo(check.subject)
    mark = click.style("ok  ", fg="green") if check.ok else click.style("FAIL", fg="red")
    click.echo(f"  {mark}  {check.name}: {check.found}")
    if not check.ok:
        click.echo(f"        -> {check.remedy}")
