"""What the reference lists is what the code has: all of it, and nothing else."""

from __future__ import annotations

import ast
import inspect
import re
import struct
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable
from enum import StrEnum
from typing import Any, get_args

import click
import duckdb
import pytest
import yaml

import netchannel
import netchannel.aio
import netchannel.testing
import netchannel.transports
from nebuli.cli import nebuli
from nebuli.cli.exits import ExitCode
from nebuli.dataflow.types import arrow_type
from nebuli.ingestion.definition import parse_definition
from netchannel.core import connections, control_connection, shared_memory, states, upqueries, waitlist
from netchannel.core.calls import bodies, callees
from netchannel.core.calls.caller_core import CallerControl
from netchannel.core.client_core import ClientControl
from netchannel.core.groups import staged_channel as groups
from netchannel.core.receiving import data_receiver, offers, requests, tombstones
from netchannel.core.receiving.node_members import MemberControl
from netchannel.core.receiving.requests import RequestControl
from netchannel.core.receiving.sessions import ReceiverControl
from netchannel.core.replay import consumers, read_server, retained_service
from netchannel.core.sending import data_sender
from netchannel.core.sending.sender_core import SenderControl
from netchannel.policies import Timing
from netchannel.prometheus import ChannelCollector
from netchannel.servers.receiver import MESSAGE_LIMIT
from netchannel.transports import host_memory
from netchannel.wire import envelope, frames, messages
from placement import plan
from placement.sql import sql_tree
from placement.sql.expressions import parse, parse_aggregate
from placement.sql.translation import AGGREGATES
from tests.development import faces
from tests.docs.diagrams import state_diagram
from tests.docs.markdown import PAGES, ROOT, blocks, code, headings, section, table
from topology import SINKS, SOURCES, SinkMode, access, model, policies
from topology.schema import Column, DataType

README = ROOT / "README.md"
DOCS = ROOT / "docs"
API, CLI = DOCS / "reference" / "api.md", DOCS / "reference" / "cli.md"
SQL = DOCS / "reference" / "sql.md"
TOPOLOGY, QUERY = DOCS / "reference" / "topology.md", DOCS / "reference" / "query.md"
PROTOCOL = DOCS / "protocol" / "wire.md"
MEMBERS = DOCS / "protocol" / "members.md"
OF_MEMBERS = ["member", "claim", "release", "over", "provide", "withdraw", "taken", "provided"]


# -- api.md


def _stubs() -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    trees = [ast.parse(block.text) for block in blocks(API) if block.language == "pyi"]
    return {
        node.name: node
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }


def _aliases() -> dict[str, str]:
    trees = [ast.parse(block.text) for block in blocks(API) if block.language == "pyi"]
    assigned = [node for tree in trees for node in tree.body if isinstance(node, ast.Assign)]
    return {ast.unparse(node.targets[0]): ast.unparse(node) for node in assigned}


def _source(thing: Any) -> ast.AST:
    return ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]


def _members(node: ast.AST) -> dict[str, str]:
    """The public fields, properties and methods of a class, with their types and signatures."""
    assert isinstance(node, ast.ClassDef)
    members = {}
    for each in node.body:
        if isinstance(each, ast.AnnAssign):
            members[ast.unparse(each.target)] = ast.unparse(each)
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            members[each.name] = _signature(each)
    return {name: text for name, text in members.items() if name in _SPECIAL or not name.startswith("_")}


_SPECIAL = {"__init__", "__aiter__", "__anext__"}
_INTERNAL = {**faces.INTERNAL, "Listener": {"descriptors"}}


def _signature(node: ast.AST) -> str:
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    kind = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    returns = ast.unparse(node.returns) if node.returns else ""
    return f"{decorators} {kind}{node.name}({ast.unparse(node.args)}) -> {returns}"


_MADE_BY_REGISTERING = {
    "SenderChannel",
    "GroupChannel",
    "ReceiverChannel",
    "RetainedChannel",
    "RetainedSenderChannel",
    "Service",
}
_PUBLIC = {
    name: getattr(module, name)
    for module in (netchannel, netchannel.transports, netchannel.testing)
    for name in module.__all__
}


@pytest.mark.parametrize("name", _PUBLIC)
def test_every_public_name_is_described(name: str) -> None:
    thing = _PUBLIC[name]
    if name == "MakeProtocol":
        assert inspect.getsource(netchannel.transports.interface).count(_aliases()[name]) == 1
    elif inspect.isclass(thing) and issubclass(thing, Exception):
        assert name in {code(row[0]) for row in table(API, "Errors")}
    elif inspect.isclass(thing):
        assert name in [heading.text for heading in headings(API)]
        documented, actual = _members(_stubs()[name]), _members(_source(thing))
        actual = {member: text for member, text in actual.items() if member not in _INTERNAL.get(name, ())}
        if name in _MADE_BY_REGISTERING:
            del actual["__init__"]
        assert documented == actual
    else:
        assert _signature(_stubs()[name]) == _signature(_source(thing))


def test_the_asynchronous_services_are_named() -> None:
    text = "\n".join(section(API, "For coroutines"))
    assert set(netchannel.aio.__all__) == set(re.findall(r"`(?:netchannel\.aio\.)?(\w+)(?:\(\))?`", text))


def test_nothing_else_is_described() -> None:
    errors = {code(row[0]) for row in table(API, "Errors")}
    assert set(_stubs()) | set(_aliases()) | errors == set(_PUBLIC)


_REGISTERING: dict[str, list[Callable[..., object]]] = {
    "ReceiverServer": [
        netchannel.ReceiverServer.register_channel,
        netchannel.ReceiverServer.register_staged_channel,
        netchannel.ReceiverServer.retain_channel,
    ],
    "SenderServer": [
        netchannel.SenderServer.register_channel,
        netchannel.SenderServer.register_attempt,
        netchannel.SenderServer.retain_channel,
    ],
}


@pytest.mark.parametrize("name", _REGISTERING)
def test_every_parameter_has_its_line(name: str) -> None:
    server = getattr(netchannel, name)
    methods = _REGISTERING[name]
    wanted = [
        parameter
        for function in (server.__init__, *methods)
        for parameter in inspect.signature(function).parameters
        if parameter != "self"
    ]
    rows = [code(row[0]) for row in table(API, name)]
    others = {method.__name__ for method in methods[1:]}
    described = [row for row in rows if row not in others]
    assert others <= set(rows)
    assert [parameter for parameter in wanted if parameter not in described] == (
        [] if name == "ReceiverServer" else ["secret", "tls", "timing"]
    )
    assert set(described) <= set(wanted)


@pytest.mark.parametrize(
    "name",
    ["SenderChannel", "GroupChannel", "GroupClient", "ReceiverChannel", "RetainedChannel", "ChannelReader"],
)
def test_every_member_of_a_channel_has_its_line(name: str) -> None:
    rows = {text for row in table(API, name) for text in re.findall(r"`(\w+)`", row[0])}
    members = {member for member in _members(_stubs()[name]) if not member.startswith("_")}
    assert members - rows <= {"id", "stream", "statistics"}


def _metrics() -> dict[str, dict[str, tuple[str, ...]]]:
    """The labels of every metric, by its name and by the side that it is of."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for family in ChannelCollector(netchannel.SenderServer(), netchannel.ReceiverServer()).describe():
        _, side, name = family.name.split("_", 2)
        name += "_total" if family.type == "counter" else ""
        found.setdefault(name, {})[side] = family._labelnames
    return found


def test_every_metric_is_described_with_its_labels() -> None:
    def labels(cell: str) -> tuple[str, ...]:
        return tuple(re.findall(r"`(\w+)`", cell))

    described = {
        code(name): {
            side: labels(cell) for side, cell in (("sender", sender), ("receiver", receiver)) if cell
        }
        for name, sender, receiver, _ in table(API, "Prometheus")
    }
    assert described == _metrics()


def test_alerts_are_on_metrics_that_there_are() -> None:
    page = (DOCS / "how-to" / "watch-channels.md").read_text("utf-8")
    named = set(re.findall(r"netchannel_(sender|receiver)_(\w+)", page))
    assert len(named) > 10
    assert {(side, name) for side, name in named if side not in _metrics().get(name, {})} == set()
    for block in blocks(DOCS / "how-to" / "watch-channels.md"):
        if block.language == "yaml":
            yaml.safe_load(block.text)


# -- cli.md


def _commands() -> dict[str, click.Command]:
    context = click.Context(nebuli)
    assert isinstance(nebuli, click.Group)
    found: dict[str, click.Command] = {}
    for name in nebuli.list_commands(context):
        command = nebuli.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            found |= {f"{name} {each}": below for each, below in command.commands.items()}
        else:
            found[name] = command
    return found


def test_every_command_is_described() -> None:
    described = [heading.text for heading in headings(CLI) if heading.text.startswith("nebuli ")]
    commands = (
        "place validate doctor certs%dev run bench query scale register start checkpoint status list top logs"
    )
    commands += " stop unregister watch worker"
    commands += "".join(
        f" collection%{each}"
        for each in (
            "create",
            "list",
            "show",
            "insert",
            "read",
            "follow",
            "release",
            "rendition",
            "handover",
            "drop",
            "serve",
        )
    )
    commands += "".join(
        f" source%{each}"
        for each in ["create", "list", "show", "serve", "run", "scale", "rebuild", "skip", "drop"]
    )
    commands += " view%get view%watch view%list view%add schema completion"
    assert described == [f"nebuli {name.replace('%', ' ')}" for name in commands.split()]
    assert {f"nebuli {name}" for name in _commands()} == set(described)


def test_summaries_of_commands_are_those_of_their_help_and_fit_a_line() -> None:
    assert isinstance(nebuli, click.Group)
    context = click.Context(nebuli)
    formatter = click.HelpFormatter(width=80)
    nebuli.format_commands(context, formatter)
    listed = dict(re.findall(r"^  (\w+) +(.+)$", formatter.getvalue(), re.MULTILINE))
    commands = {name: nebuli.get_command(context, name) for name in nebuli.list_commands(context)}
    assert listed == {
        name: command.get_short_help_str(limit=66)
        for name, command in commands.items()
        if command is not None
    }
    for name, command in _commands().items():
        assert not command.get_short_help_str(limit=60).endswith("..."), name


@pytest.mark.parametrize("name", sorted(_commands()))
def test_every_option_of_a_command_is_described(name: str) -> None:
    options = {
        option: parameter
        for parameter in _commands()[name].params
        if isinstance(parameter, click.Option) and not parameter.hidden
        for option in parameter.opts
    }
    rows = table(CLI, f"nebuli {name}") if options else []
    assert {code(row[0]) for row in rows} == {name for name in options if name.startswith("--")}
    for row in rows:
        option = options[code(row[0])]
        assert (row[1] == "required") == option.required
        if isinstance(option.type, click.Choice):
            assert set(option.type.choices) <= set(re.findall(r"`([\w-]+)`", row[2]))


def test_every_exit_code_is_described() -> None:
    described = {code(row[1]): int(row[0]) for row in table(CLI, "Exit codes")}
    assert described == {each.name: each.value for each in ExitCode}


def test_every_option_in_a_shell_block_is_one() -> None:
    known = {name: {o for p in command.params for o in p.opts} for name, command in _commands().items()}
    for page in sorted([README, *DOCS.rglob("*.md")]):
        for block in blocks(page):
            if block.language not in {"sh", "console"}:
                continue
            for name, arguments in re.findall(
                r"^(?:\$ )?nebuli ((?:certs|collection|source|view) \w+|\w+)(.*)", block.text, re.MULTILINE
            ):
                assert name in known, f"{page}: nebuli {name}"
                assert set(re.findall(r"(?<= )--[\w-]+", arguments)) <= known[name], f"{page}: {arguments}"


# -- topology.md and query.md


def test_every_type_is_described_with_its_arrow_type() -> None:
    described = {code(row[0]): row[1] for row in table(TOPOLOGY, "Types")}
    assert described == {str(type_): str(arrow_type(type_)) for type_ in DataType}


def test_a_type_can_be_cast_to_by_the_name_given() -> None:
    for name, _, sql in table(TOPOLOGY, "Types"):
        if sql:
            assert parse(f"CAST(NULL AS {sql})", ()).type == code(name)


@pytest.mark.parametrize(
    ("title", "models"),
    [
        ("Top level", [model.Topology]),
        ("Logical source", [model.LogicalSource]),
        ("Node", [model.Node]),
        ("TLS", [access.TlsFiles]),
        ("Secret", [access.SecretPlace]),
        ("Policies", [policies.ChannelPolicies]),
        ("Buffer", [policies.BufferSettings]),
        ("Fault", [policies.FaultSettings]),
        ("Physical source", list(SOURCES.known.values())),
        ("Sink", list(SINKS.known.values())),
    ],
)
def test_every_key_of_a_topology_is_described(title: str, models: list[Any]) -> None:
    fields = {field.alias or name: field for each in models for name, field in each.model_fields.items()}
    rows = table(TOPOLOGY, title)
    assert {code(row[0]) for row in rows} == set(fields)
    for row in rows:
        assert (row[1] == "required") == fields[code(row[0])].is_required()


def test_types_and_modes_of_sources_and_sinks_are_described() -> None:
    for title, connectors in (("Physical source", SOURCES), ("Sink", SINKS)):
        (row,) = [row for row in table(TOPOLOGY, title) if row[0] == "`type`"]
        assert set(re.findall(r"`(\w+)`", row[2])) == set(connectors.known)
    (row,) = [row for row in table(TOPOLOGY, "Sink") if row[0] == "`mode`"]
    assert set(re.findall(r"`(\w+)`", row[2])) == set(get_args(SinkMode))
    assert {code(row[0].split()[0]) for row in table(DOCS / "how-to" / "files.md", "Sinks")} == set(
        get_args(SinkMode)
    )


def test_every_operator_is_described_with_its_fields() -> None:
    described = {code(row[0]): re.findall(r"`(\w+)`", row[1]) for row in table(QUERY, "Operators")}
    operators = get_args(get_args(plan.QueryOperator)[0])
    assert described == {
        each.model_fields["type"].default: [name for name in each.model_fields if name not in {"id", "type"}]
        for each in operators
    }


def test_every_operator_of_a_fragment_is_described() -> None:
    described = {
        code(row[0]): re.findall(r"`(\w+)`", row[1]) for row in table(CLI, "Formats") if row[0] in _NETWORK
    }
    for kind in (plan.NetworkSource, plan.NetworkSink):
        names = [field.alias or name for name, field in kind.model_fields.items() if name != "type"]
        assert described[kind.model_fields["type"].default] == names


_NETWORK = {"`network_source`", "`network_sink`"}


def test_every_aggregate_is_described_with_its_type() -> None:
    rows = table(QUERY, "Aggregates")
    assert {code(row[0]).partition("(")[0] for row in rows} == set(AGGREGATES.values())
    for row in rows:
        for type_ in (DataType.INT32, DataType.FLOAT32):
            result = parse_aggregate(code(row[0]), (Column(name="x", type=type_),)).type
            assert (str(result) in row[1]) or (row[1] == "as `x`" and result is type_)


def test_every_function_is_described() -> None:
    cells = " ".join(row[1] for row in table(QUERY, "Expressions"))
    named = set(re.findall(r"\b\w+\b", " ".join(re.findall(r"`([^`]*)`", cells))))
    assert {*sql_tree.FUNCTION_NAMES} <= named


def test_every_function_is_described_by_its_name_in_duckdb() -> None:
    """With those that it has no function for, but syntax; and aggregates."""
    named = [code(row[0]).partition("(")[0] for row in table(SQL, "Functions")]
    assert sorted(named) == sorted([*sql_tree.FUNCTION_NAMES, *sql_tree.AGGREGATE_NAMES])
    with duckdb.connect() as connection:
        found = connection.execute("SELECT DISTINCT function_name FROM duckdb_functions()").fetchall()
    syntax = {"coalesce", "extract", "if", "ifnull"}
    assert {*named} - {each for (each,) in found} <= syntax


@pytest.mark.parametrize(
    "sql",
    [
        "-n + 1 - 2 * 3 / 4",
        "n // 2 % 3",
        "n <> 1 AND n IS NOT NULL OR NOT n IS DISTINCT FROM 2",
        "n BETWEEN 1 AND 2 OR n IN (1, 2)",
        "CASE WHEN n > 1 THEN 'a' ELSE 'b' END",
        "if(n = 1, coalesce(n, 1), ifnull(nullif(n, 2), greatest(n, least(n, 3))))",
        "n::VARCHAR || CAST(1.5 AS INT)::VARCHAR",
        "round(sqrt(abs(n)) + ln(exp(1.0)) + power(n, 2), 2) + floor(n) + ceil(n)",
        "s LIKE 'a%' OR s ILIKE 'b_' OR starts_with(s, 'c') OR contains(s, 'd')",
        "length(trim(concat(upper(s), lower(substring(s, 1, 2)))))",
        "extract(dow FROM t) + date_part('doy', t)",
        "date_trunc('week', t) + INTERVAL 3 HOURS > t - INTERVAL 1 WEEK",
        "d + 3 > DATE '2024-01-01' AND d - d = 0",
        '"wind speed" > 3',
        "a.n > 3",
    ],
)
def test_what_expressions_may_hold_is_true(sql: str) -> None:
    columns = {
        "n": "int64",
        "s": "string",
        "t": "timestamp",
        "d": "date",
        "wind speed": "float64",
        "a.n": "int8",
    }
    parse(sql, tuple(Column(name=name, type=DataType(type_)) for name, type_ in columns.items()))


def test_fields_and_units_of_time_are_described() -> None:
    text = QUERY.read_text("utf-8")
    (shown,) = re.findall(r"Fields: ([^.]+)\. Units of `date_trunc`: ([^.]+)\.", text)
    fields = [name.partition(" ")[0] for name in shown[0].split(", ")]
    timed = (Column(name="t", type=DataType.TIMESTAMP),)
    for field in fields:
        parse(f"extract({field} FROM t)", timed)
    for unit in shown[1].split(", "):
        parse(f"date_trunc('{unit}', t)", timed)
    with pytest.raises(Exception, match=f"known are {', '.join(fields)} "):
        parse("extract(century FROM t)", timed)


# -- protocol/wire.md

_TYPES = {bool: "boolean", int: "integer", str: "text", bytes: "bytes"}


def test_what_fields_may_hold_is_described() -> None:
    fields = [field for message in messages.MESSAGES.values() for field in message.fields]
    wanted = {field.rule.name: [_TYPES[field.type], field.rule.says] for field in fields}
    assert {row[0]: row[1:] for row in table(PROTOCOL, "What fields may hold")} == wanted


@pytest.mark.parametrize("name", messages.MESSAGES)
def test_every_control_message_is_described_with_its_fields(name: str) -> None:
    wanted = {
        field.name: f"{field.rule.name} or nil" if field.optional else field.rule.name
        for field in messages.MESSAGES[name].fields
    }
    page = MEMBERS if name in OF_MEMBERS else PROTOCOL
    fields = {code(row[0]): row[1] for row in table(page, name)[: len(wanted)]}
    assert fields == wanted


def test_no_other_control_message_is_described() -> None:
    """Those between the processes of a node are on a page of their own."""
    described = [heading.text for heading in headings(PROTOCOL) if heading.level == 4]
    assert described == [name for name in messages.MESSAGES if name not in OF_MEMBERS]
    assert [heading.text for heading in headings(MEMBERS) if heading.level == 3] == OF_MEMBERS


def test_features_are_those_of_the_code() -> None:
    rows = {code(row[0]): row[1] for row in table(PROTOCOL, "Features")}
    takers, readers, askers, clients = (
        {name for name, who in rows.items() if role in who}
        for role in ("a receiver", "a client that reads", ": a sender", "a client")
    )
    assert takers == ReceiverControl.features | RequestControl.features | {messages.MEMORY}
    assert RequestControl.features < takers
    assert askers == SenderControl.features
    assert readers <= clients == ClientControl.features | CallerControl.features
    assert MemberControl.features <= takers
    assert table(PROTOCOL, "Features")[0][2].startswith(f"the largest body is {frames.WHOLE_LIMIT} bytes")


def test_every_kind_of_frame_is_described_with_its_number() -> None:
    rows = table(PROTOCOL, "Kinds")
    assert {code(row[1]): int(row[0]) for row in rows} == {kind.name: kind.value for kind in frames.Kind}
    for row in rows:
        if row[2]:
            assert row[2] == ("to the sender" if int(row[0]) >= 16 else "to the receiver")


def test_the_header_is_described_byte_by_byte() -> None:
    assert f"a header of {frames.HEADER_SIZE} bytes (`{frames.HEADER.format}`" in PROTOCOL.read_text("utf-8")
    rows = [[int(row[0]), int(row[1])] for row in table(PROTOCOL, "Data connection")]
    sizes = [struct.calcsize(f"<{each}") for each in frames.HEADER.format.removeprefix("<")]
    assert rows == [[sum(sizes[:index]), size] for index, size in enumerate(sizes)]
    (flags,) = [row[3] for row in table(PROTOCOL, "Data connection") if row[2] == "flags"]
    assert flags == f"{frames.NOTES} `NOTES`, {frames.UNSUMMED} `UNSUMMED`"


def test_the_greeting_is_described_byte_by_byte() -> None:
    rows = table(PROTOCOL, "Greeting")
    assert sum(int(row[1]) for row in rows) == control_connection.GREETING.size
    assert code(rows[0][2]).encode() == control_connection.MAGIC
    assert rows[-1][2].startswith("check: the lowest byte")
    purposes = {
        "control": control_connection.FOR_CONTROL,
        "data": control_connection.FOR_DATA,
        "member": control_connection.FOR_MEMBERS,
        "client": control_connection.FOR_REQUESTS,
        "reading": control_connection.FOR_READING,
    }
    (shown,) = [row[2] for row in rows if row[2].startswith("purpose: ")]
    assert {name: int(number) for number, name in re.findall(r"(\d) \[?(\w+)", shown)} == purposes
    assert (
        f"This is version {control_connection.greeting(control_connection.FOR_CONTROL)[4]}."
        in PROTOCOL.read_text("utf-8")
    )


def test_the_prefix_of_a_control_message_is_described_byte_by_byte() -> None:
    prefix = envelope._PREFIX
    assert f"a prefix of {prefix.size} bytes (`{prefix.format}`" in PROTOCOL.read_text("utf-8")
    rows = [[int(row[0]), int(row[1])] for row in table(PROTOCOL, "Control connection")]
    sizes = [struct.calcsize(f"<{each}") for each in prefix.format.removeprefix("<")]
    assert rows == [[sum(sizes[:index]), size] for index, size in enumerate(sizes)]


def test_each_limit_says_who_sees_to_it() -> None:
    said = {
        re.match(r"(checked|the sender's duty|(the receiver|the sender|each side)'s own)", row[2]) is not None
        for row in table(PROTOCOL, "Limits")
    }
    assert said == {True}


def test_limits_are_those_of_the_code() -> None:
    timing = Timing()
    limits = {
        row[0]: [float(number) for number in re.findall(r"\d+(?:\.\d+)?", row[1])]
        for row in table(PROTOCOL, "Limits")
    }
    assert limits == {
        "channel id": [255],
        "control message": [envelope.MESSAGE_LIMIT],
        "control message before the handshake is complete": [envelope.STRANGER_LIMIT],
        "fields of a control message": [envelope.FIELDS_LIMIT],
        "text in a control message": [messages.TEXT_LIMIT],
        "payload of a frame": [frames.PAYLOAD_LIMIT],
        "payload of a frame before the token": [frames.TOKEN_FRAME_LIMIT],
        "body in a `DATA` frame": [frames.WHOLE_LIMIT],
        "piece in a `PART`, `SCHEMA` or `CONTEXT` frame": [frames.FRAME_LIMIT],
        "bodies and notes packed together": [frames.PACK_LIMIT],
        "messages in a frame": [frames.PACK_COUNT],
        "upquery": [frames.UPQUERY_LIMIT],
        "upqueries waiting for a producer": [upqueries.WAITING, upqueries.WAITING_BYTES],
        "note": [frames.NOTE_LIMIT],
        "body": [MESSAGE_LIMIT],
        "token": [messages.TOKEN_SIZE, timing.token_s],
        "handshake of a connection": [timing.handshake_s],
        "heartbeat, dead after": [timing.heartbeat_s, timing.dead_after_s],
        "asking again, dialing again": [timing.backoff_s, timing.backoff_limit_s],
        "idle control connection": [timing.idle_s],
        "body in shared memory": [frames.SHARED_FROM],
        "shared memory": [host_memory.SHARED_MEMORY],
        "alignment in shared memory": [shared_memory.ALIGNMENT],
        "bodies in shared memory that are not received": [data_sender.AHEAD_LIMIT],
        "waiting for the other side to close after the end": [timing.leave_s],
        "delay of an acknowledgement": [data_receiver.ACK_DELAY_S, frames.ACK_BYTES],
        "tombstones": [tombstones.TOMBSTONES, tombstones.TOMBSTONE_S],
        "channels awaited by denied senders": [waitlist.WAITING_LIMIT],
        "outstanding tokens": [offers.OFFERS_LIMIT],
        "senders expected with a token": [offers.COMING],
        "unidentified connections": [connections.STRANGERS],
        "unanswered ranges on a connection": [read_server.REQUESTS_LIMIT],
        "consumers of a channel": [consumers.CONSUMERS_LIMIT],
        "name of a consumer or holder": [consumers.NAME_LIMIT],
        "time between heads": [retained_service.PUSH_S],
        "schema in `open` and `heads`": [messages.SCHEMA_LIMIT],
        "watches and unused tokens of a client": [requests.HELD_LIMIT],
        "unanswered questions of a client": [requests.UNANSWERED_BYTES],
        "body of a call, or of its answer": [messages.CALL_LIMIT],
        "piece of the body of a call": [messages.PIECE_LIMIT],
        "unanswered calls of a client's connection": [callees.CALLS_LIMIT],
        "total of large bodies in unanswered calls; size of a large body": [
            callees.BODIES_LIMIT,
            bodies.SMALL,
        ],
        "unsent answers, above which no other call is begun": [callees.UNSENT_LIMIT],
        "attempts for a channel being written": [groups.ATTEMPTS_LIMIT],
        "finished channels that still answer for their commits": [requests.OVER_LIMIT],
    }


def test_the_example_of_a_payload_is_one() -> None:
    payload = b"".join(frames.pack([b"abc", b"123456789"], {}, 0, 0))[frames.HEADER_SIZE :]
    assert payload == bytes.fromhex("03 00 00 00 09 00 00 00") + b"abc" + bytes(5) + b"123456789" + bytes(7)
    assert "`03 00 00 00 09 00 00 00`, 3 bytes, 5 zeros, 9 bytes, 7 zeros: 32 bytes" in PROTOCOL.read_text(
        "utf-8"
    )


def test_refusals_that_are_for_good_are_those_of_the_code() -> None:
    from netchannel.core.sending.sender_core import PERMANENT

    rows = table(PROTOCOL, "Refusals")
    assert {code(row[0]) for row in rows if row[3] == "gives up"} == set(PERMANENT)
    assert {row[2] for row in rows} == {"either", "`deny`", "`REFUSED`"}


def test_every_refusal_of_a_channel_is_described() -> None:
    """By the codes that stand in the code of the receiving side."""
    described = {code(row[0]) for row in table(PROTOCOL, "Refusals")}
    folders = ("core/receiving", "core/groups")
    sources = [path for each in folders for path in sorted((ROOT / "netchannel" / each).rglob("*.py"))]
    sources.append(ROOT / "netchannel" / "core" / "connections.py")
    written = "\n".join(source.read_text("utf-8") for source in sources)
    assert described == set(re.findall(r'\b(?:Refusal|refused)\(\s*"(\w+)"', written))


def test_refusals_of_clients_that_are_for_good_are_those_of_the_code() -> None:
    from netchannel.core.client_core import ERRORS

    assert [code(row[0]) for row in table(PROTOCOL, "Clients")] == list(ERRORS)


def test_refusals_of_calls_are_those_of_the_code() -> None:
    from netchannel.core.calls.caller_core import FOR_GOOD

    rows = table(PROTOCOL, "Calls")
    assert {code(row[0]) for row in rows if row[2] == "the call is over"} == set(FOR_GOOD)
    sources = [ROOT / "netchannel" / each for each in ("core/calls/callees.py", "servers/call_service.py")]
    written = "\n".join(source.read_text("utf-8") for source in sources)
    refusing = r'(?:refuse|cancel|_end|_deny)\((?:(?:message\.service|service_id), request, )?"(\w+)"'
    said = set(re.findall(refusing, written)) | set(re.findall(r'stopped_by or \("(\w+)"', written))
    assert said == {code(row[0]) for row in rows[:-1]}


def test_states_are_drawn_from_the_tables() -> None:
    drawn = [block.text for block in blocks(PROTOCOL) if block.text.startswith("stateDiagram")]
    tables: list[tuple[type[StrEnum], Any, Any]] = [
        (states.SenderState, states.SENDER_TABLE, states.SENDER_TERMINAL),
        (states.ReceiverState, states.RECEIVER_TABLE, states.RECEIVER_TERMINAL),
    ]
    assert drawn == [state_diagram(*each) for each in tables]


# -- installing, and the pictures of pages


def test_what_is_installed_is_what_the_page_says() -> None:
    project, nebuli = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text("utf-8"))["project"]
        for folder in ("", "distributions/nebuli")
    )
    page = (DOCS / "install.md").read_text("utf-8")
    shown = dict(re.findall(r"^pip install '?(\S+?)'? +# (.*)$", page, re.MULTILINE))
    required = {re.split(r"[<>=]", each)[0] for each in project["dependencies"]}
    assert set(shown["netchannel"].removeprefix("channels: ").split(", ")) == required
    extras = set(project["optional-dependencies"]) - {"bench", "dev", "docs", "nebuli"}
    of_its_own = set(nebuli["optional-dependencies"]) - extras
    assert {f"netchannel[{extra}]" for extra in extras} | {"netchannel", "nebuli"} | {
        f"nebuli[{extra}]" for extra in of_its_own
    } == set(shown)
    assert f"Python {project['requires-python'].removeprefix('>=')} or later" in page


@pytest.mark.processes
def test_the_picture_of_the_demo_is_what_the_command_draws() -> None:
    example = ROOT / "examples" / "flights"
    drawn = subprocess.run(
        [
            *(sys.executable, "-m", "nebuli", "place", "--format", "mermaid"),
            *(example / "topology.yaml", example / "query.json"),
        ],
        capture_output=True,
        encoding="utf-8",
        check=True,
        timeout=60,
    )
    page = DOCS / "topics" / "placement.md"
    pictures = [block.text for block in blocks(page) if block.text.startswith("flowchart BT")]
    assert drawn.stdout in pictures


def test_every_failure_names_a_test() -> None:
    page = (DOCS / "development" / "tested-failures.md").read_text("utf-8")
    named = re.findall(r"`((?:[a-z_/]*/)?\w+\.py)::(test_\w+)`", page)
    assert len(named) > 100
    for file, function in named:
        directory = ROOT / "tests" if "/test_" in f"/{file}" else ROOT
        room = "" if file.startswith(("examples/", "hosts/", "nebuli/")) else "netchannel"
        source = (directory / room / file).read_text("utf-8")
        assert re.search(rf"^ *(?:async )?def {function}\(", source, re.MULTILINE), f"{file}::{function}"
    modules = re.findall(r"`(nebuli/[a-z_/]*test_\w+\.py)`", page)
    assert modules
    assert [file for file in modules if not (ROOT / "tests" / file).exists()] == []
    rows = [row for row in page.splitlines() if re.match(r"\| (?!failure|subject|-)", row)]
    assert [row for row in rows if "test_" not in row and "testing/" not in row] == []


def test_pages_for_users_name_no_test_of_ours() -> None:
    """Pages for contributors do: users have the packages alone."""
    contributors = ("docs/development/", "docs/protocol/", "docs/benchmarks/", "CONTRIBUTING.md")
    pages = [page for page in PAGES if not str(page.relative_to(ROOT)).startswith(contributors)]
    ours = re.compile(r"`(?:tests/[^`]*|(?:\w+/)+test_\w+\.py[^`]*|test_\w+\.py::\w+)`")
    assert [(page.name, match[0]) for page in pages for match in ours.finditer(page.read_text("utf-8"))] == []


# -- sources.md


def test_the_example_of_a_source_is_one() -> None:
    """And the types of its columns are all that there are."""
    page = DOCS / "reference" / "sources.md"
    (example,) = [each for each in blocks(page) if each.file == "customers.yaml"]
    assert parse_definition(example.text).raw
    (types,) = [row for row in page.read_text("utf-8").splitlines() if row.startswith("| `schema` |")]
    assert {*re.findall(r"`(\w+)`", types)} - {"schema"} == {each.value for each in DataType}
