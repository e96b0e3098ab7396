"""Several receiver processes at one node: servers, sockets and kills are real."""

from __future__ import annotations

import asyncio
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import netchannel
from netchannel import ReceiverServer, SenderServer, StagingPolicy, Timing
from netchannel.prometheus import ChannelCollector
from netchannel.storage import StagingStore
from tests.support.chaos import Proxy
from tests.support.consumer import TIMING
from tests.support.ports import free_addresses
from tests.support.waiting import until_async

QUICK = Timing(backoff_s=0.002, backoff_limit_s=0.05, idle_s=0.05)


@pytest.fixture
def node(tmp_path: Path) -> str:
    return f"unix:{tmp_path}/node.sock"


async def until(condition: Callable[[], object], what: str) -> None:
    async def holds() -> bool:
        return bool(condition())

    await until_async(holds, what)


# -- settings


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"members": "127.0.0.1:9000"}, ValueError, "members is '127.0.0.1:9000': expected unix:/path"),
        ({"node": "mem:node"}, ValueError, "node is 'mem:node': expected unix:/path"),
        ({"node": "unix:"}, ValueError, "expected unix:/path"),
        ({"members": "unix:/a", "node": "unix:/b"}, ValueError, "members= or node="),
        ({"node": 3}, TypeError, "node is 3: expected a str"),
        (
            {"listen": "unix:/c", "members": "unix:/a"},
            ValueError,
            "distinguished by their ports",
        ),
        ({"listen": "mem:1", "node": "unix:/a"}, ValueError, "but mem:1 has none"),
        ({"advertise": "unix:/c", "node": "unix:/a"}, ValueError, "but unix:/c has none"),
    ],
    ids=str,
)
def test_settings_that_make_no_node_are_named_at_once(
    settings: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        ReceiverServer(**settings)


async def test_a_socket_that_another_front_has_is_an_error(node: str) -> None:
    """And the address is free again."""
    async with ReceiverServer(members=node):
        address = free_addresses(1)[0]
        with pytest.raises(OSError, match=f"cannot listen on {node}: "):
            await ReceiverServer(address, members=node).__aenter__()
        async with ReceiverServer(address):
            pass


async def test_the_socket_is_for_this_user_and_goes_with_its_server(node: str) -> None:
    path = Path(node.removeprefix("unix:"))
    async with ReceiverServer(members=node):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()


# -- in one process


def metric(server: ReceiverServer, name: str) -> float | None:
    """What Prometheus gets."""
    for family in ChannelCollector(server).collect():
        if family.name == f"netchannel_receiver_{name}":
            return next((sample.value for sample in family.samples), None)
    raise AssertionError(name)


async def test_two_processes_share_an_address(node: str) -> None:
    """CH-REG-1: statistics show who has what; whichever comes first."""
    async with (
        ReceiverServer(node=node, timing=QUICK) as member,
        SenderServer(timing=QUICK) as sender,
    ):
        assert member.statistics().node is not None
        inbox = member.register_channel("c", codec="bytes")
        async with ReceiverServer(members=node, timing=QUICK) as front:
            outbox = sender.register_channel("c", to=front.address, codec="bytes")
            await outbox.send(b"x")
            await outbox.flush()
            (known,) = front.statistics().members
            assert (known.port, known.channels) == (int(member.address.split(":")[1]), 1)
            assert known.name.startswith("receiver ")
            link = member.statistics().node
            assert link is not None
            assert (link.address, link.state, link.channels) == (node, "up", 1)
            assert front.statistics().channels == {}
            assert (metric(front, "members"), metric(front, "node_up")) == (1, None)
            assert (metric(member, "members"), metric(member, "node_up")) == (0, 1)
            assert list(sender.statistics().channels) == [("c", front.address)]
            with pytest.raises(netchannel.ChannelInUse, match="already registered at this node"):
                front.register_channel("c")
            await outbox.close()
            assert [bytes(body) async for body in inbox] == [b"x"]
        assert front._core.members.links == {}


async def test_a_member_leaves_while_its_disk_is_slow(
    node: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not come back meanwhile, as it does when it loses the connection to its node."""
    close = StagingStore.close

    def slowly(store: StagingStore) -> None:
        time.sleep(0.5)
        close(store)

    monkeypatch.setattr(StagingStore, "close", slowly)
    async with ReceiverServer(members=node, timing=QUICK) as front, asyncio.timeout(60):
        async with ReceiverServer(node=node, timing=QUICK) as member:
            member.register_staged_channel("c", StagingPolicy(tmp_path / "staged"))
            await until(lambda: front.statistics().members, "the member is known")
        assert front.statistics().members == ()


async def test_the_second_who_registers_a_channel_hears_of_it_in_recv(node: str) -> None:
    """CH-REG-3: registering does not wait; the error says who has it."""
    async with (
        ReceiverServer(members=node, timing=QUICK) as front,
        ReceiverServer(node=node, timing=QUICK) as first,
        ReceiverServer(node=node, timing=QUICK) as second,
    ):
        mine = first.register_channel("c", codec="bytes")
        await until(lambda: sum(member.channels for member in front.statistics().members), "claimed")
        with pytest.raises(netchannel.ChannelInUse, match=r"registered at this node, by receiver .*/[0-9]+"):
            await second.register_channel("c", codec="bytes").recv()
        await mine.detach()
        await until(lambda: not sum(member.channels for member in front.statistics().members), "released")
        theirs = second.register_channel("c", codec="bytes")
        async with SenderServer(timing=QUICK) as sender:
            outbox = sender.register_channel("c", to=front.address, codec="bytes")
            await outbox.send(b"x")
            assert bytes(await theirs.recv()) == b"x"
            await outbox.close()


@pytest.mark.parametrize("data_ports", [None, "ephemeral"])
async def test_a_member_has_a_secret_data_ports_and_a_mapping_of_its_own(
    node: str, data_ports: str | None
) -> None:
    """CH-SEC-1: the member's advertised port is the one that senders are sent on to."""
    (behind,) = free_addresses(1)
    async with (
        Proxy(behind) as gate,
        ReceiverServer(members=node, secret="s", timing=QUICK) as front,
        ReceiverServer(
            behind, node=node, secret="s", advertise=gate.address, data_ports=data_ports, timing=QUICK
        ) as member,
        ReceiverServer(node=node, secret="another", timing=QUICK) as stranger,
        SenderServer(secret="s", timing=QUICK) as sender,
    ):  # fmt: skip
        inbox = member.register_channel("c", codec="bytes")
        stranger.register_channel("d")
        outbox = sender.register_channel("c", to=front.address, codec="bytes")
        await outbox.send(b"x")
        assert bytes(await inbox.recv()) == b"x"
        await outbox.close()
        assert [known.port for known in front.statistics().members] == [int(gate.address.split(":")[1])]


# -- in several


class Processes:
    """Consumers that run, by name."""

    def __init__(self, folder: Path, node: str) -> None:
        self._folder = folder
        self._node = node
        self._running = ExitStack()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    async def start(self, listen: str, role: str, *channels: str) -> Consumer:
        consumer = Consumer(self._popen(listen, role, *channels))
        self._running.callback(consumer.kill)
        await asyncio.to_thread(consumer.read_address)
        return consumer

    def _popen(self, listen: str, role: str, *channels: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [
                *(sys.executable, "-W", "error", "-m", "tests.support.consumer"),
                *(str(self._folder), listen, role, self._node, *channels),
            ],
            stdout=subprocess.PIPE,
            encoding="utf-8",
            cwd=Path(__file__).resolve().parents[2],
        )


class Consumer:
    """A process that was started."""

    address: str

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def read_address(self) -> None:
        """Wait until it listens."""
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        assert self.address, "it did not start"

    def kill(self) -> None:
        """kill -9."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def processes(tmp_path: Path, node: str) -> Iterator[Processes]:
    with Processes(tmp_path, node) as running:
        yield running


def lines(file: Path) -> list[str]:
    return [line.split()[1] for line in file.read_text("utf-8").splitlines()] if file.exists() else []


async def produce(outbox: netchannel.SenderChannel, count: int, pause_s: float) -> None:
    for number in range(count):
        await outbox.send(b"%d" % number)
        await asyncio.sleep(pause_s)
    await outbox.close()


@pytest.mark.processes
async def test_a_member_that_is_killed_comes_back_at_another_port(
    processes: Processes, tmp_path: Path
) -> None:
    """Four channels, three processes, one address; one process is killed twice, and each message is there once."""
    async with asyncio.timeout(60):
        front = await processes.start("127.0.0.1:0", "members", "c0")
        member = await processes.start("127.0.0.1:0", "node", "c1", "c2")
        await processes.start("127.0.0.1:0", "node", "c3")
        async with SenderServer(timing=TIMING) as sender:
            producing = [
                asyncio.create_task(produce(outbox, 600, 0.002))
                for number in range(4)
                for outbox in [sender.register_channel(f"c{number}", to=front.address, codec="bytes")]
            ]
            ports = {member.address}
            for reached in (50, 300):
                await until(lambda reached=reached: len(lines(tmp_path / "c1")) > reached, "consumed")
                member.kill()
                member = await processes.start("127.0.0.1:0", "node", "c1", "c2")
                ports.add(member.address)
            await asyncio.gather(*producing)
        assert len(ports) == 3
        for number in range(4):
            assert lines(tmp_path / f"c{number}") == [str(each) for each in range(600)]


@pytest.mark.processes
async def test_a_front_that_is_killed_holds_up_no_stream_of_a_member(
    processes: Processes, tmp_path: Path
) -> None:
    """Started anew it knows the members again, and opens new channels to them."""
    async with asyncio.timeout(60):
        address = free_addresses(1)[0]
        front = await processes.start(address, "members")
        await processes.start("127.0.0.1:0", "node", "c1", "late")
        async with SenderServer(timing=TIMING) as sender:
            outbox = sender.register_channel("c1", to=address, codec="bytes")
            producing = asyncio.create_task(produce(outbox, 400, 0.002))
            await until(lambda: len(lines(tmp_path / "c1")) > 20, "consumed")
            front.kill()
            await producing
            assert outbox.statistics().reconnects == 0
            late = sender.register_channel("late", to=address, codec="bytes")
            await processes.start(address, "members")
            await produce(late, 10, 0)
        assert lines(tmp_path / "c1") == [str(each) for each in range(400)]
        assert lines(tmp_path / "late") == [str(each) for each in range(10)]
