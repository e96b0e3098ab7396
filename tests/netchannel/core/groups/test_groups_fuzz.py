"""What peers may send to a staged channel that they should not: nobody else's groups are harmed."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from netchannel.core.client_core import ClientControl
from netchannel.core.receiving.data_receiver import ReceiverData
from netchannel.core.receiving.requests import RequestControl
from netchannel.core.receiving.sessions import ReceiverControl
from netchannel.core.sending.sender_core import SenderControl
from netchannel.servers.group_channels import as_winners
from netchannel.values import Sealed
from netchannel.wire.messages import Committed
from tests.netchannel.core.test_fuzz import message
from tests.support.forged import forged
from tests.support.sizes import examples
from tests.support.staged import Staged
from tests.support.world import End

LINKS = [ReceiverControl, ReceiverData, SenderControl, RequestControl, ClientControl]
VALUES = [b"one", b"", bytes(20_000)]
KINDS = ["open", "commit", "drop", "epoch", "committed", "dropped", "epoch_is", "deny", "finished", "ready"]


class Session:
    """Two attempts on their way, and then their commit."""

    def __init__(self, seed: int) -> None:
        self.staged = Staged(seed)
        self.writing = [self.staged.begin(VALUES, partition=partition) for partition in range(2)]
        self.sealed: list[Sealed] = []
        self.asked = False

    def proceed(self) -> None:
        """Commit, once both are sealed."""
        if not self.asked and all(attempt.channel.terminal for attempt in self.writing):
            self.asked = True
            if all(attempt.channel.error is None for attempt in self.writing):
                self.sealed = [attempt.sealed() for attempt in self.writing]
                self.staged.commit(0, self.sealed)

    def reach(self, kind: type, steps: int) -> End | None:
        """The receiving end of a link of that kind, after so many steps or as soon as there is one."""
        for step in range(steps + 60):
            found = [end for end in self.staged.world.ends if type(end.link) is kind]
            if found and step >= steps:
                return found[0]
            self.staged.world.step()
            self.proceed()
        return None

    def finish(self) -> None:
        """Until there is an answer, whatever it is."""

        def over() -> bool:
            self.proceed()
            return self.asked and (bool(self.staged.answers) or not self.sealed)

        self.staged.world.run(over)


@settings(max_examples=examples(300), deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from(LINKS),
    st.integers(0, 60),
    st.binary(min_size=1, max_size=300),
    st.sampled_from(["insert", "replace", "repeat"]),
)
def test_noise_anywhere_costs_a_connection_and_nothing_else(
    seed: int, kind: type, steps: int, noise: bytes, how: str
) -> None:
    """CH-BAD-1, CH-STG-1, CH-STG-3: the group is there, whole and once."""
    session = Session(seed)
    end = session.reach(kind, steps)
    if end is not None:
        place = session.staged.world.random.randint(0, len(end.inbox))
        match how:
            case "insert":
                end.inbox[place:place] = noise
            case "replace":
                end.inbox[place : place + len(noise)] = noise
            case "repeat":
                end.inbox[place:place] = end.inbox[: len(noise)]
    session.finish()
    assert isinstance(session.staged.answers.pop(), Committed)
    assert session.staged.read() == VALUES * 2


WINNERS = as_winners([Sealed(partition, "ab" * 16, 3, 3, 20_003, 0) for partition in range(2)])
COMMITS = st.builds(
    lambda application, epoch, winners, end: forged(
        {
            "t": "commit",
            "channel": "c",
            "request": 1 << 40,
            "application": application,
            "epoch": epoch,
            "winners": winners,
            "end": end,
        }
    ),
    st.sampled_from(["app", "another", "\n"]),
    st.sampled_from([0, 1, 2**63, 2**64 - 1]),
    st.sampled_from([b"", WINNERS, WINNERS[48:] + WINNERS, bytes(48 * 1000)]),
    st.booleans(),
)
OPENS = st.builds(
    lambda channel, stream, into, epoch: forged(
        {
            "t": "open",
            "channel": channel,
            "request": 1 << 40,
            "stream": stream,
            "codec": "bytes",
            "schema": None,
            "lossy": False,
            "into": into,
            "application": "app",
            "epoch": epoch,
            "partition": 0,
        }
    ),
    st.sampled_from(["c", "x", "y"]),
    st.sampled_from(["s", "ab" * 16]),
    st.sampled_from(["c", "x", None]),
    st.sampled_from([0, 1, 2**64 - 1]),
)


@settings(max_examples=examples(400), deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([ReceiverControl, SenderControl, RequestControl, ClientControl]),
    st.integers(0, 60),
    st.lists(st.sampled_from(KINDS).flatmap(message) | COMMITS | OPENS, min_size=1, max_size=5),
)
def test_what_is_well_formed_and_hostile_harms_nobody_else(
    seed: int, kind: type, steps: int, attack: list[bytes]
) -> None:
    """CH-BAD-1: a group that was committed is read whole; another channel of the receiver has its own."""
    session = Session(seed)
    end = session.reach(kind, steps)
    if end is not None:
        end.inbox += b"".join(attack)
    for _ in range(3):
        session.proceed()
        session.staged.world.pass_time(1)
    got: list[Any] = session.staged.read()
    assert got in ([], VALUES * 2)
    other = Staged(seed, world=session.staged.world, receiver=session.staged.receiver, channel_id="other")
    other.commit(0, [other.write(VALUES)])
    assert isinstance(other.answer(), Committed)
    assert other.read() == VALUES
