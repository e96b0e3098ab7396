"""Messages as bytes, and what is not a message."""

from __future__ import annotations

import typing
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nebuli.steps.protocol import messages as say
from nebuli.steps.protocol.errors import MalformedMessage
from nebuli.steps.protocol.messages import Instant

numbers = st.integers(0, (1 << 64) - 1)
checkpoints = st.builds(say.Checkpoint, st.integers(0, (1 << 64) - 1), numbers)
one_or_two = st.tuples(st.integers(0, (1 << 64) - 2), numbers, numbers, st.booleans()).map(
    lambda drawn: (
        say.Checkpoint(drawn[0], drawn[1]),
        *([say.Checkpoint(drawn[0] + 1, drawn[2])] if drawn[3] else []),
    )
)
drawn_as = {
    int: numbers,
    bool: st.booleans(),
    str: st.text(max_size=20),
    Instant: st.integers(-(1 << 63), (1 << 63) - 1),
    tuple[int, ...]: st.lists(numbers, max_size=5).map(tuple),
    tuple[str, ...]: st.lists(st.text(max_size=20), max_size=5).map(tuple),
    say.Checkpoint: checkpoints,
    tuple[say.Checkpoint, ...]: one_or_two,
}
COORDINATOR, MEMBER = typing.get_args(say.FromCoordinator), typing.get_args(say.FromMember)


def drawn(kinds: tuple[type, ...]) -> st.SearchStrategy[Any]:
    return st.one_of(
        [
            st.builds(kind, **{name: drawn_as[hint] for name, hint in typing.get_type_hints(kind).items()})
            for kind in kinds
        ]
    )


@given(drawn(COORDINATOR))
def test_what_a_coordinator_says_is_read_as_it_was(message: say.FromCoordinator) -> None:
    assert say.read_from_coordinator(say.encode(message), "the coordinator") == message


@given(drawn(MEMBER))
def test_what_a_member_says_is_read_as_it_was(message: say.FromMember) -> None:
    assert say.read_from_member(say.encode(message), "member 3") == message


@given(drawn(COORDINATOR))
def test_one_side_does_not_take_what_the_other_one_says(message: say.FromCoordinator) -> None:
    with pytest.raises(MalformedMessage, match=r"member 3 sent .* is unknown here"):
        say.read_from_member(say.encode(message), "member 3")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (["explode", 1], "the kind 'explode' is unknown here"),
        (["stepped", 1, 2, 3], "'stepped' has 3 fields; expected 2"),
        (["stepped", 1], "'stepped' has 1 fields; expected 2"),
        (["stepped", 1, -1], "step of 'stepped' is '-1', not a number of 64 bits"),
        (["stepped", 1, True], "step of 'stepped' is 'True', not a number of 64 bits"),
        (["stepped", "1", 1], "epoch of 'stepped' is '1', not a number"),
        (["aborted", 1, "full", 0, False], "lasting of 'aborted' is '0', neither true nor false"),
        (["aborted", 1, "x" * 5000, True, False], "not a text of at most 4096 characters"),
        (["joined", 1, 2, "i", "f", "a", [], 0, 0], "not one version or two consecutive"),
        (["joined", 1, 2, "i", "f", "a", [[1, 0], [3, 0]], 0, 0], "not one version or two consecutive"),
        (["joined", 1, 2, "i", "f", "a", [[1, 0], [2, 0], [3, 0]], 0, 0], "not one version or two"),
        (["joined", 1, 2, "i", "f", "a", [[1]], 0, 0], "not a version and step"),
        (["joined", 1, 2, "i", "f", "a", 7, 0, 0], "checkpoints of 'joined' is '7', not an array"),
        ({"stepped": 1}, "expected an array, got .*: run coordinator"),
        ([], "expected an array that begins with a kind"),
        ([7, 1], "expected an array that begins with a kind"),
    ],
)
def test_what_is_no_message_is_an_error_that_says_from_whom_and_why(content: Any, what: str) -> None:
    with pytest.raises(MalformedMessage, match=what) as raised:
        say.read_from_member(msgpack.packb(content), "member 3")
    assert raised.value.sender == "member 3"
    assert str(raised.value).startswith("member 3 sent ")


def test_nothing_is_made_of_bytes_above_the_limit() -> None:
    with pytest.raises(MalformedMessage, match=f"a message has at most {say.MESSAGE_LIMIT} bytes"):
        say.read_from_member(msgpack.packb(["stepped", *[1] * say.MESSAGE_LIMIT]), "member 3")


@given(st.binary(max_size=60), drawn(MEMBER), st.data())
def test_whatever_the_bytes_are_it_is_a_message_or_that_error(
    junk: bytes, message: say.FromMember, data: st.DataObject
) -> None:
    spoiled = bytearray(say.encode(message))
    spoiled[data.draw(st.integers(0, len(spoiled) - 1))] ^= data.draw(st.integers(1, 255))
    for content in (junk, bytes(spoiled), bytes(spoiled[:-1]), bytes(spoiled) + junk):
        try:
            read = say.read_from_member(content, "member 3")
        except MalformedMessage:
            continue
        assert isinstance(read, say.FromMember)
