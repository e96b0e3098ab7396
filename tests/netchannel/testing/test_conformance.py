"""CH-MEM-1: the conformance kit over every transport of ours, on every loop, and over transports of others."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Self
from xml.etree import ElementTree

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook

import netchannel.testing
from netchannel import ReceiverServer, SenderServer, Tls
from netchannel.testing import (
    ChannelConformance,
    FaultyTransport,
    backpressure,
    calls,
    deadlines,
    delivery,
    ends,
    establishment,
    outages,
    raw_connections,
    replay,
    staged_groups,
    suite,
    upstream,
)
from netchannel.testing.channels import pair
from netchannel.testing.deadlines import eventually
from netchannel.testing.suite import QUICK
from netchannel.transports import register, schemes, unregister
from netchannel.transports.ports import parse_data_ports
from tests.support.authority import TlsTransport
from tests.support.sockets import connections, ports, sockets

ROOT = Path(__file__).resolve().parents[3]

_names = itertools.count()

OF_THE_KIT = [
    backpressure,
    calls,
    delivery,
    ends,
    establishment,
    outages,
    replay,
    staged_groups,
    suite,
    upstream,
]
"""Its modules that make receivers."""
_PORTS = range(32_000, 32_768)
"""Between those that tests are given (tests/support/ports.py) and those that outgoing connections take."""


class TestTcp(ChannelConformance):
    @pytest.fixture
    def address(self) -> str:
        return "127.0.0.1:0"


class TestUnix(ChannelConformance):
    @pytest.fixture
    def address(self, tmp_path: Path) -> str:
        return f"unix:{tmp_path}/s"


class TestMemory(ChannelConformance):
    @pytest.fixture
    def address(self) -> str:
        return f"mem:{next(_names)}"


class Member(ReceiverServer):
    """A receiver with a front of its own at the address where it was to listen: who asks there is sent on to it."""

    sockets: ClassVar[Iterator[str]]

    def __init__(self, listen: str, **settings: Any) -> None:
        address = next(self.sockets)
        self.front = ReceiverServer(listen, members=address, **settings)
        super().__init__(f"{listen.rpartition(':')[0]}:0", node=address, **settings)

    async def __aenter__(self) -> Self:
        await self.front.__aenter__()
        return await super().__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        await super().__aexit__(*error)
        await self.front.__aexit__(*error)

    @property
    def address(self) -> str:
        return self.front.address


@pytest.mark.uvloop
class TestMember(ChannelConformance):
    """Every receiver is a member of a node, and senders know the node's address only."""

    @pytest.fixture
    def address(self) -> str:
        return "127.0.0.1:0"

    @pytest.fixture(autouse=True)
    def receivers_are_members(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            Member, "sockets", (f"unix:{tmp_path}/{n}" for n in itertools.count()), raising=False
        )
        for module in OF_THE_KIT:
            monkeypatch.setattr(module, "ReceiverServer", Member)

    async def test_many_channels_share_one_control_connection(self, address: str) -> None:
        """CH-CTL-1: to the member, beside the one to the front, which is closed when it is not needed."""
        async with (
            FaultyTransport() as network,
            Member(network.at(address), timing=QUICK) as receiver,
            SenderServer(timing=QUICK) as sender,
        ):
            pairs = [pair(receiver, sender, f"c{number}") for number in range(100)]
            await asyncio.gather(*(outbox.attached() for _, outbox in pairs))
            assert network.dialed == 102
            await eventually(lambda: network.connections == 101)
            await asyncio.gather(*(outbox.close() for _, outbox in pairs))
            await eventually(lambda: network.connections == 0)

    async def test_servers_know_their_connections(self, address: str) -> None:
        """CH-OBS-1: the sender's to the member, the member's to the front as well."""
        async with Member(address, timing=QUICK) as receiver, SenderServer(timing=QUICK) as sender:
            inbox, outbox = pair(receiver, sender)
            await outbox.send(bytes(100_000))
            await outbox.flush()
            await eventually(lambda: receiver.front.statistics().connections == 1)
            sent, received, front = sender.statistics(), receiver.statistics(), receiver.front.statistics()
            assert (list(sent.channels), list(received.channels)) == ([("c", receiver.address)], ["c"])
            assert [(peer.state, peer.channels) for peer in (*sent.peers, *received.peers)] == [("up", 1)] * 2
            assert received.node is not None
            assert (received.node.state, received.node.channels) == ("up", 1)
            (member,) = front.members
            assert (member.name, member.channels) == (received.peers[0].name.replace("sender", "receiver"), 1)
            assert sent.peers[0].address == f"127.0.0.1:{member.port}"
            assert (sent.connections, received.connections, front.peers) == (2, 3, ())
            await outbox.close()
            assert len([body async for body in inbox]) == 1


class AtPorts(ReceiverServer):
    """A receiver whose data connections have ports of their own, also by way of the kit's faults."""

    data_ports: ClassVar[str]

    def __init__(self, listen: str, **settings: Any) -> None:
        if schemes.scheme_of(listen) == "tcp":
            settings["data_ports"] = self.data_ports
        super().__init__(listen, **settings)
        # Only TCP has ports, and users' transports are asked for none; the kit's faults have those of what is behind.
        self._data_ports = "127.0.0.1", parse_data_ports(self.data_ports)


@pytest.mark.uvloop
class TestDataPorts(ChannelConformance):
    """CH-DATA-2: what `TestTcp` shows of the shared port holds for a range, and for a fresh port per channel."""

    @pytest.fixture
    def address(self) -> str:
        return "127.0.0.1:0"

    @pytest.fixture(
        autouse=True, params=[f"{_PORTS[0]}-{_PORTS[-1]}", "ephemeral"], ids=["range", "ephemeral"]
    )
    def receivers_have_ports(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setattr(AtPorts, "data_ports", request.param, raising=False)
        for module in OF_THE_KIT:
            monkeypatch.setattr(module, "ReceiverServer", AtPorts)
        return request.param

    async def test_data_goes_to_ports_of_its_own(self, receivers_have_ports: str) -> None:
        """CH-DATA-2: not to the receiver's: another one for each channel, at which nobody listens then."""
        async with AtPorts("127.0.0.1:0") as receiver, SenderServer(timing=QUICK) as sender:
            before = sockets()
            pairs = [pair(receiver, sender, f"c{number}") for number in range(10)]
            await asyncio.gather(*(outbox.attached() for _, outbox in pairs))
            assert connections("self", receiver.address) == 2  # both ends of the control connection
            assert len(sockets() - before) == 2 + 2 * len(pairs)  # and none that listens
            used = {local for local, remote in ports() if local in _PORTS}
            assert receivers_have_ports == "ephemeral" or len(used) == len(pairs)
            await asyncio.gather(*(outbox.close() for _, outbox in pairs))


class TestTls(ChannelConformance):
    """CH-TLS-1: the same over TLS."""

    @pytest.fixture
    def address(self, tls: Tls) -> Iterator[str]:
        register("tls", TlsTransport(tls))
        yield "tls:127.0.0.1:0"
        unregister("tls")


# -- transports of others, in a project that has no settings of its own

PROJECT = """
import pytest
from netchannel.testing import ChannelConformance
from netchannel.transports import register
from tests.support.framed import {connection}, FramedTransport

register("framed", FramedTransport("framed", {connection}))


class TestFramed(ChannelConformance):
    time_limit_s = {limit_s}

    @pytest.fixture
    def address(self):
        return "framed:127.0.0.1:0"
"""


def run_kit(
    directory: Path, connection: str, *tests: str, limit_s: float = 20.0
) -> tuple[list[str], set[str]]:
    """All tests that ran over ``connection``, and the names of those that failed."""
    (directory / "test_framed.py").write_text(PROJECT.format(connection=connection, limit_s=limit_s), "utf-8")
    result = directory / "result.xml"
    output = subprocess.run(
        [
            *(sys.executable, "-W", "error", "-m", "pytest", "-p", "no:cacheprovider", "--tb=short"),
            *("-o", "asyncio_default_fixture_loop_scope=function", f"--junitxml={result}"),
            *("test_framed.py", "-k", " or ".join(tests)),
        ],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=100,
    ).stdout
    assert result.exists(), output
    cases = list(ElementTree.parse(result).iter("testcase"))
    failed = {case.attrib["name"].partition("[")[0] for case in cases if len(case)}
    return [case.attrib["name"] for case in cases], failed


@pytest.mark.processes
def test_a_transport_of_somebody_else_passes(tmp_path: Path) -> None:
    """CH-MEM-1: registered under a scheme of its own, with a framing of its own; nothing else is needed."""
    ran, failed = run_kit(tmp_path, "FramedConnection")
    assert failed == set()
    assert len(ran) >= 60


FAULTS = {
    "Dropping": {
        "test_bytes_arrive_in_order_both_ways",
        "test_closing_sends_what_was_written_first",
        "test_flush_waits_for_the_receiver",
        "test_large_messages_are_cut_and_joined",
    },
    "Deaf": {
        "test_a_reader_that_pauses_gets_nothing",
        "test_a_reader_can_pause_as_it_reads",
        "test_a_full_connection_pauses_its_writer",
        "test_only_the_channel_of_a_slow_consumer_is_held_back",
        "test_a_stalled_consumer_bounds_what_is_under_way",
    },
    "Unforgetting": {
        "test_aborting_ends_both_sides",
        "test_ending_twice_ends_once",
        "test_the_twelve_lines",
        "test_a_receiver_that_leaves_is_heard",
    },
}


@pytest.mark.processes
@pytest.mark.parametrize("connection", FAULTS)
def test_a_transport_with_a_fault_fails(connection: str, tmp_path: Path) -> None:
    """CH-MEM-1: one that loses bytes, that ignores pauses, or whose connections never end: by name, and soon."""
    _, failed = run_kit(tmp_path, connection, *FAULTS[connection], "test_nobody_listens", limit_s=0.7)
    assert failed == FAULTS[connection]


@pytest.mark.processes
def test_the_kit_is_imported_by_tests_only() -> None:
    """`import netchannel` needs no pytest."""
    script = "import sys, netchannel, netchannel.transports, netchannel.aio; print('pytest' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8", check=True)
    assert output.stdout == "False\n"


KIT = {
    "test_a_call_that_is_cancelled_takes_none": "CH-CAN-1",
    "test_a_consumer_that_leaves_stops_the_producer": "CH-END-3",
    "test_a_cut_at_every_byte": "CH-SEQ-2 CH-END-4",
    "test_a_denied_channel_is_served_once_it_is_registered": "CH-REG-4",
    "test_a_durable_buffer_outlives_its_senders": "CH-DUR-1 CH-END-8",
    "test_a_durable_buffer_survives_cuts": "CH-DUR-1 CH-SEQ-2",
    "test_a_full_connection_pauses_its_writer": "CH-BP-1",
    "test_a_full_history_holds_the_sender_back": "CH-REP-5",
    "test_a_group_is_there_from_its_commit_on": "CH-STG-1 CH-STG-2 CH-STG-3",
    "test_a_kept_range_is_read_again": "CH-REP-1",
    "test_a_new_stream_on_an_ended_id": "CH-END-9",
    "test_a_new_stream_waits_until_the_last_one_is_read": "CH-REG-4 CH-END-9",
    "test_a_receiver_that_comes_back_goes_on": "CH-ACK-1 CH-REG-2",
    "test_a_receiver_that_leaves_is_heard": "CH-END-8",
    "test_a_silent_peer_is_found_dead_and_comes_back": "CH-CTL-3",
    "test_a_stall_shorter_than_the_budget_is_no_death": "CH-CTL-4",
    "test_a_stalled_consumer_bounds_what_is_under_way": "CH-BP-1",
    "test_a_stalled_consumer_is_no_broken_connection": "CH-BP-3",
    "test_a_starved_channel_is_named_on_both_sides": "CH-ACK-3",
    "test_a_successor_of_the_consumer_goes_on": "CH-ACK-1 CH-ACK-2 CH-END-8",
    "test_a_successor_of_the_producer_goes_on": "CH-END-8 CH-NOTE-1",
    "test_a_taken_id_is_refused": "CH-REG-5",
    "test_abort_reaches_the_consumer": "CH-END-2",
    "test_another_schema_at_send": "CH-ARW-4",
    "test_cancelling_takes_nothing_away": "CH-CAN-1",
    "test_closing_comes_back_where_nobody_is": "CH-END-5",
    "test_closing_comes_back_where_nothing_passes": "CH-END-5",
    "test_closing_waits_for_the_acknowledgement": "CH-END-6",
    "test_codecs_must_agree": "CH-ARW-4",
    "test_cuts_at_random_bytes": "CH-SEQ-2 CH-SEQ-3",
    "test_delays_change_nothing": "CH-SEQ-3",
    "test_dictionaries_survive_reconnects": "CH-ARW-3",
    "test_dropping_and_explicit_acknowledgement_do_not_go_together": "CH-BUF-2",
    "test_few_bytes_at_a_time": "CH-BAD-1",
    "test_flush_waits_for_the_receiver": "CH-SEQ-1",
    "test_groups_through_cuts_at_random_bytes": "CH-STG-1 CH-STG-2",
    "test_heads_are_pushed_and_ranges_found": "CH-REP-2",
    "test_large_messages_are_cut_and_joined": "CH-ARW-2",
    "test_leaving_at_any_moment_leaves_no_connection": "CH-CAN-1",
    "test_leaving_by_an_exception_is_no_clean_end": "CH-END-7",
    "test_leaving_does_not_wait_for_who_is_not_there": "CH-END-5",
    "test_many_are_sent_at_once": "CH-SEQ-3 CH-BP-1",
    "test_many_channels_share_one_control_connection": "CH-CTL-1 CH-CTL-5",
    "test_notes_numbers_and_timestamps": "CH-NOTE-1",
    "test_only_the_channel_of_a_slow_consumer_is_held_back": "CH-BP-1 CH-DATA-1 CH-BUF-2",
    "test_reading_through_cuts_at_random_bytes": "CH-REP-1",
    "test_registering_needs_no_network": "CH-REG-1 CH-CTL-2",
    "test_schemas_must_agree": "CH-ARW-4",
    "test_servers_know_their_connections": "CH-OBS-1",
    "test_statistics_agree_with_the_traffic": "CH-OBS-1",
    "test_strangers_open_no_channels": "CH-SEC-1",
    "test_the_oldest_may_be_dropped": "CH-BUF-2",
    "test_the_receiver_comes_first": "CH-REG-3",
    "test_the_schema_is_known_before_data": "CH-ARW-4",
    "test_the_sender_comes_first": "CH-REG-2",
    "test_the_twelve_lines": "CH-END-1 CH-SEQ-1",
    "test_what_consumers_are_done_with_is_gone": "CH-REP-3 CH-REP-4",
    "test_what_does_not_fit_is_spilled": "CH-BUF-2",
    "test_what_the_receiver_that_came_cannot_take": "CH-ARW-2",
    "test_who_knows_the_secret_is_served": "CH-SEC-1",
}
"""The rows that each test of the kit shows."""


def test_the_kit_has_the_tests_that_show_these_rows() -> None:
    assert {name for name in KIT if not hasattr(ChannelConformance, name)} == set()


def test_what_the_kit_asserts_is_explained() -> None:
    """By pytest, which rewrites modules that are registered before they are imported."""
    modules = [
        backpressure,
        calls,
        raw_connections,
        deadlines,
        delivery,
        ends,
        establishment,
        outages,
        replay,
        staged_groups,
        suite,
        upstream,
    ]
    explained = {module.__name__: isinstance(module.__loader__, AssertionRewritingHook) for module in modules}
    assert explained == dict.fromkeys(explained, True)
    folder = Path(netchannel.testing.__file__).parent
    asserting = {path.stem for path in folder.glob("*.py") if "    assert " in path.read_text("utf-8")}
    assert asserting <= {name.rpartition(".")[2] for name in explained}
