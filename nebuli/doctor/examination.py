"""Asks each worker of a topology, from outside to inside, and has them probe the links between them."""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from nebuli import __version__
from nebuli.doctor import judgement
from nebuli.doctor.judgement import Check
from nebuli.rpc.trust import Trust, TrustUnusable
from nebuli.rpc.worker_client import WorkerClient, WorkerDenied, WorkerRefused, WorkerUnreachable
from netchannel.address import parse_address
from netchannel.errors import CertificateError, HandshakeError
from netchannel.resumable import Resumable
from netchannel.tls import Credentials, expiry
from netchannel.transports.tls_transport import TlsDialer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence

    from nebuli.rpc import worker_pb2 as wire
    from netchannel import Tls
    from topology import Node, Topology

__all__ = ["Fleet", "examine"]

_REACH_S = 3.0
_SEND_MS = 1000
HERE = "here"


@dataclass(frozen=True, slots=True)
class Fleet:
    """The subject of an examination: the nodes of a topology, read from ``file``, and ``edges`` between them."""

    topology: Topology
    file: Path
    nodes: Sequence[Node]
    edges: Sequence[tuple[str, str]]


def examine(fleet: Fleet) -> AsyncGenerator[Check]:
    """Each line of the diagnosis, as soon as it is known: this side, the workers, then the edges, one at a time.

    A call of the iterator that is cancelled takes no line: the next call gives it.
    """
    return Resumable(_examine(fleet))


async def _examine(fleet: Fleet) -> AsyncGenerator[Iterable[Check], None]:
    yield [Check(HERE, "version", f"nebuli {__version__}, Python {platform.python_version()}")]
    trusts: dict[str, Trust] = {}
    yield _own(fleet, trusts)
    async with AsyncExitStack() as stack:
        found = await asyncio.gather(
            *(_Patient(fleet, node, trusts, stack).examined() for node in fleet.nodes)
        )
        clients: dict[str, WorkerClient] = {}
        for node, (checks, client) in zip(fleet.nodes, found, strict=True):
            yield checks
            if client is not None:
                clients[node.address] = client
        for start, end in fleet.edges:
            yield await _edge(fleet, clients, start, end)


def _own(fleet: Fleet, trusts: dict[str, Trust]) -> list[Check]:
    """Check the credentials that this side shows to workers, each file once.

    Usable ones are put into ``trusts``, by node.
    """
    checks: dict[str, Check] = {}
    for node in fleet.nodes:
        access = fleet.topology.access_to(node).below(fleet.file.parent)
        try:
            trust = Trust.of(access)
        except TrustUnusable as error:
            where = "put the secret there; workers and commands use the same topology"
            checks[str(error)] = Check(HERE, "secret", str(error), where)
            continue
        found = [] if trust.tls is None else _certificates(HERE, trust.tls)
        if access.secret is not None and access.secret.file is not None:
            found += _private("secret's file", access.secret.file)
        if access.tls is not None:
            found += _private("key", access.tls.key)
        checks |= {f"{check.name} {check.found}": check for check in found}
        trusts[node.address] = trust
    return list(checks.values())


def _private(name: str, path: str) -> list[Check]:
    try:
        return [judgement.private(HERE, name, path, Path(path).stat().st_mode)]
    except OSError:  # its being unreadable is reported already
        return []


def _certificates(subject: str, tls: Tls) -> list[Check]:
    try:
        ends = expiry(tls)
    except CertificateError as error:
        return [Check(subject, "certificate", str(error), "fix the files that tls names in the topology")]
    now = time.time()
    return [
        judgement.certificate(subject, "certificate", str(tls.certificate), ends.certificate, now),
        judgement.certificate(subject, "authority", str(tls.authority), ends.authority, now),
    ]


class _Patient:
    """One worker, and the way to it."""

    def __init__(self, fleet: Fleet, node: Node, trusts: dict[str, Trust], stack: AsyncExitStack) -> None:
        self._fleet = fleet
        self._node = node
        self._trust = trusts.get(node.address)
        self._stack = stack
        self._subject = f"worker {node.address}"
        self._checks: list[Check] = []

    async def examined(self) -> tuple[list[Check], WorkerClient | None]:
        """Return the findings, and the worker, if it answers."""
        client = await self._client()
        return self._checks, client

    def _say(self, name: str, found: str, remedy: str = "", *, unreachable: bool = False) -> None:
        self._checks.append(Check(self._subject, name, found, remedy, unreachable=unreachable))

    async def _client(self) -> WorkerClient | None:
        grpc = self._node.grpc
        if grpc is None:
            self._say("port", "the topology has no grpc address for it", "add grpc: host:port to the node")
            return None
        if not await self._reached(grpc):
            return None
        if self._trust is None:
            self._say(
                "answer",
                "not tested: this machine lacks the secret",
                "put the secret at the path that the topology names",
            )
            return None
        try:
            if self._trust.tls is not None:
                await self._shaken(grpc, self._trust.tls)
            client = await self._stack.enter_async_context(
                WorkerClient(self._node.address, grpc, self._trust)
            )
            return await self._inspected(client)
        except CertificateError as error:
            self._say("TLS", str(error), "fix the files that tls names in the topology, on this machine")
        except TimeoutError:
            found = f"{grpc} does not complete its handshake within {_REACH_S:g} s"
            self._say("TLS", found, "check that a worker with TLS listens there", unreachable=True)
        except (HandshakeError, OSError) as error:
            remedy = "give workers and commands valid certificates of one authority, each for its own host"
            self._say("TLS", str(error), remedy, unreachable=True)
        return None

    async def _reached(self, address: str) -> bool:
        place = parse_address(address)
        start = f"nebuli worker --topology {self._fleet.file.name} --node {self._node.address}"
        remedy = f"start the worker there ({start}), or correct the node's grpc address"
        try:
            async with asyncio.timeout(_REACH_S):
                _, writer = await asyncio.open_connection(place.host, place.port)
        except TimeoutError:
            found = f"{address} does not answer within {_REACH_S:g} s"
            remedy = f"open port {place.port} there for this machine (firewall, routes), or {remedy}"
        except socket.gaierror as error:
            found = f"{address}: {error.strerror}"
            remedy = "correct the host of the node's grpc address, or its name resolution"
        except OSError as error:
            found = f"{address}: {os.strerror(error.errno).lower() if error.errno else error}"
        else:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            self._say("port", f"{address} is open")
            return True
        self._say("port", found, remedy, unreachable=True)
        return False

    async def _shaken(self, address: str, tls: Tls) -> None:
        """Do a TLS handshake alone, which has an error message, unlike gRPC. Raises HandshakeError, OSError."""
        host = tls.server_name or parse_address(self._node.address).host
        dialer = TlsDialer(Credentials(replace(tls, server_name=host), "sender"))
        async with asyncio.timeout(_REACH_S):
            await dialer.connect(address, _HangUp)
        self._say("TLS", "its certificate is from the authority, and for its host")

    async def _inspected(self, client: WorkerClient) -> WorkerClient | None:
        asked, began = time.time(), time.monotonic()
        try:
            reply = await client.inspect()
        except WorkerDenied as error:
            remedy = (
                "give workers and commands a topology with the same secret; restart workers that had "
                "another secret"
            )
            self._say("secret", str(error), remedy, unreachable=True)
            return None
        except (WorkerUnreachable, WorkerRefused) as error:
            self._say("answer", error.what, self._silent(), unreachable=True)
            return None
        took = time.monotonic() - began
        self._judge(reply, reply.time / 1e6 - (asked + took / 2), took / 2)
        return client

    def _silent(self) -> str:
        if self._trust is not None and self._trust.tls is not None:
            return (
                "check that the worker's authority has signed this command's certificate, and read the "
                "worker's standard error"
            )
        return "check that a worker of this version listens there, with TLS only if the topology has tls"

    def _judge(self, reply: wire.InspectReply, skew_s: float, uncertain_s: float) -> None:
        subject, access = self._subject, self._fleet.topology.access(self._node)
        self._checks.append(judgement.version(subject, reply.version, reply.python, __version__))
        self._checks.append(judgement.clock(subject, skew_s, uncertain_s))
        self._checks.append(judgement.files(subject, reply.files, reply.files_limit))
        controls = list(reply.congestion_controls)
        self._checks.append(judgement.congestion(subject, reply.congestion_control, controls))
        if reply.address != self._node.address:
            remedy = f"start the worker with --advertise {self._node.address}, or with --topology and --node"
            self._say("address", f"the worker reports that others reach it at {reply.address}", remedy)
        for name, has, wants in (
            ("tls", reply.tls, access.tls is not None),
            ("secret", reply.secret, access.secret is not None),
        ):
            if has != wants:
                found = f"the worker has {'a' if has else 'no'} {name}, unlike in the topology"
                self._say(
                    name, found, "start the worker with --topology and --node, and the current topology"
                )
        if reply.tls_error:
            self._say(
                "certificate",
                reply.tls_error,
                "fix the worker's files: it reads them again without a restart",
            )
        elif reply.tls:
            now = time.time()
            for name, path, ends in (
                ("certificate", reply.certificate, reply.certificate_ends),
                ("authority", reply.authority, reply.authority_ends),
            ):
                self._checks.append(judgement.certificate(subject, name, path, ends, now))


class _HangUp(asyncio.BufferedProtocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


async def _edge(fleet: Fleet, clients: dict[str, WorkerClient], start: str, end: str) -> list[Check]:
    subject = f"edge {start} -> {end}"
    silent = [node for node in (start, end) if node not in clients]
    if silent:
        found = f"not measured: no connection to {' and '.join(silent)}"
        return [
            Check(
                subject, "channel", found, "fix the problem that is listed for that worker", unreachable=True
            )
        ]
    name = f"doctor/{uuid4().hex}"
    try:
        async with clients[end].expecting(name):
            reply = await clients[start].probe(name, end, _SEND_MS)
    except (WorkerUnreachable, WorkerRefused) as error:
        return [Check(subject, "channel", error.what, "see the worker's standard error", unreachable=True)]
    checks = [judgement.channel(subject, end, reply)]
    said = fleet.topology.node(start).links.limits.get(end)
    if checks[0].ok and said is not None:
        judged = judgement.limits(subject, said, reply)
        checks += [] if judged is None else [judged]
    return checks
