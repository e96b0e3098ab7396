"""The two files that commands read, and the copies that a registered query keeps."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nebuli.cli.query_argument import InlineStatement
from placement import InvalidQuery, Statement, parse_query, parse_statement, read_statement
from placement.reading.json_document import is_statement
from topology import Access, Mistake, TopologyError, parse_topology
from topology.mistakes import decoded, read_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nebuli.control.deployed_queries import DeployedQuery, Endpoint, GivenFile
    from placement import Query
    from topology import EngineName, Topology


STDIN = "-"
"""The file name that stands for standard input; one of the two files can be read from it."""
_STDIN_SHOWN = "<stdin>"
_INLINE_SHOWN = "<-e>"


def load(topology: str, query: str, engine: EngineName | None = None) -> tuple[Topology, Query]:
    """Read both files. If the topology is invalid, the mistakes of a query in JSON are reported, too.

    ``engine`` replaces that of every node. Raises TopologyError, InvalidQuery.
    """
    model, text, shown = _loaded(topology, query, engine)
    return model, _query_of(text, shown, model)


def load_statement(topology: str, query: str, engine: EngineName | None = None) -> tuple[Topology, Statement]:
    """Read both files as `load` does. Accepts a statement without a sink, and EXPLAIN."""
    model, text, shown = _loaded(topology, query, engine)
    if not _is_sql(text, shown):
        return model, Statement(_query_of(text, shown, model))
    return model, read_statement(text, model, _name_of(shown), shown)


def _loaded(topology: str, query: str, engine: EngineName | None) -> tuple[Topology, str, str]:
    if topology == query == STDIN and not isinstance(query, InlineStatement):
        raise click.UsageError("TOPOLOGY and QUERY cannot both be standard input: give one of them by name")
    try:
        model = load_topology(topology, engine)
    except TopologyError as error:
        try:
            text, shown = text_of(query)
            if not _is_sql(text, shown):  # SQL has no meaning without a topology
                parse_query(text, file=shown)
        except InvalidQuery as other:
            raise TopologyError((*error.mistakes, *other.mistakes)) from None
        raise
    return model, *text_of(query)


def load_topology(file: str, engine: EngineName | None = None) -> Topology:
    """Read a topology. Raises TopologyError, or ClickException if it looks like a query."""
    text = _text(file)
    if isinstance(text, Mistake):
        raise TopologyError([text])
    try:
        return parse_topology(text, _shown(file), engine)
    except TopologyError:
        _refuse_query(file, text)
        raise


def _query_of(text: str, file: str, topology: Topology) -> Query:
    """Parse a query in JSON or SQL, and name it after its file. Raises InvalidQuery."""
    name = _name_of(file)
    return (
        parse_statement(text, topology, name, file) if _is_sql(text, file) else parse_query(text, name, file)
    )


def _name_of(file: str) -> str:
    return "query" if file in (_STDIN_SHOWN, _INLINE_SHOWN) else Path(file).stem


def _is_sql(text: str, file: str) -> bool:
    """Return whether a query is in SQL rather than JSON."""
    if file in (_STDIN_SHOWN, _INLINE_SHOWN):
        return not text.lstrip().startswith("{")
    return file.lower().endswith(".sql")


def text_of(file: str) -> tuple[str, str]:
    """Read a file that is part of a query, and the name under which to report it. Raises InvalidQuery."""
    if isinstance(file, InlineStatement):
        return str(file), _INLINE_SHOWN
    text = _text(file)
    if isinstance(text, Mistake):
        if is_statement(file):
            text = replace(text, message=f"{text.message}; give a statement with -e")
        raise InvalidQuery([text])
    return text, _shown(file)


def refuse_stdin(*files: str, why: str) -> None:
    """Raise UsageError if one of the files is standard input."""
    if any(each == STDIN and not isinstance(each, InlineStatement) for each in files):
        raise click.UsageError(f"standard input (-) is not accepted here: {why}")


def refuse_unreadable(topology: Topology, file: str) -> None:
    """Raise UsageError if workers would have to read a topology that came from standard input."""
    if any(topology.access(node) != Access() or node.data_ports for node in topology.nodes):
        refuse_stdin(
            file, why="workers read TLS, secret and data_ports from the topology's file; save it to a file"
        )


def refuse_overwritten(topology: Topology, query: Query, directory: Path, given: Iterable[str]) -> None:
    """Raise ClickException if the query writes a file on this machine that it also reads, or writes it twice.

    It reads what was ``given``, too: the files of the topology and the query, unless they are not files.
    """
    from nebuli.connectors.errors import OutputError
    from nebuli.connectors.sinks.sink_locks import check_query_files

    files = [
        str(Path(each).resolve()) for each in given if each != STDIN and not isinstance(each, InlineStatement)
    ]
    try:
        check_query_files(topology, query, directory, files)
    except OutputError as error:
        raise click.ClickException(str(error)) from None


def _text(file: str) -> str | Mistake:
    return decoded(sys.stdin.buffer.read(), _STDIN_SHOWN) if file == STDIN else read_text(Path(file))


def _shown(file: str) -> str:
    return _STDIN_SHOWN if file == STDIN else file


def given(path: str) -> GivenFile:
    """Read the current version of a file, or return a statement of the command line. Raises TopologyError."""
    from nebuli.control.deployed_queries import GivenFile

    if isinstance(path, InlineStatement):
        return GivenFile(path=_INLINE_SHOWN, text=str(path))
    text = read_text(Path(path))
    if isinstance(text, Mistake):
        raise TopologyError([text])
    return GivenFile(path=str(Path(path).resolve()), text=text)


def parsed(topology: GivenFile, query: GivenFile, engine: EngineName | None) -> tuple[Topology, Query]:
    """Parse the files that a query was registered with."""
    model = parse_topology(topology.text, topology.path, engine)
    return model, _query_of(query.text, query.path, model)


def say_changed(query: DeployedQuery) -> None:
    """Print to standard error which files have changed or gone since the query was registered."""
    changed = [each.path for each in (query.topology, query.query) if not _is_as_given(each)]
    if changed:
        has = "has" if len(changed) == 1 else "have"
        click.echo(
            f"{' and '.join(changed)} {has} changed since query {query.id} was registered; the query keeps its own "
            f"copies; 'nebuli register {shlex.quote(query.topology.path)} {shlex.quote(query.query.path)}' registers "
            f"another query from the current files",
            err=True,
        )


def _is_as_given(file: GivenFile) -> bool:
    return file.path == _INLINE_SHOWN or read_text(Path(file.path)) == file.text


def endpoints(file: str, topology: Topology, used: Iterable[str]) -> list[Endpoint]:
    """Return the endpoints of these nodes' workers. Raises ClickException for nodes without a grpc address."""
    from nebuli.control.deployed_queries import Endpoint

    known = {node.address: node for node in topology.nodes}
    nodes = [known[address] for address in used]
    if silent := [node.address for node in nodes if node.grpc is None]:
        raise click.ClickException(
            f"{file}: {', '.join(silent)} {'has' if len(silent) == 1 else 'have'} no grpc address, at which a "
            f"worker accepts queries: add 'grpc: host:port'"
        )
    directory = Path(file).resolve().parent
    return [
        Endpoint(node.address, str(node.grpc), topology.access_to(node).below(directory)) for node in nodes
    ]


def _refuse_query(topology: str, text: str) -> None:
    """Raise ClickException if the file given as topology is a query, as the arguments are in the wrong order then."""
    is_query = _is_sql(text, topology)
    if not is_query:
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            return
        is_query = isinstance(data, dict) and "operators" in data and "nodes" not in data
    if is_query:
        command = click.get_current_context().command_path
        raise click.ClickException(f"{topology} looks like a query; the usage is {command} TOPOLOGY QUERY")
