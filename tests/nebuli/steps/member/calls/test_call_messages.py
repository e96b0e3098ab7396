"""What a coordinator's process asks and a member answers, as bytes, and what is not a message."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nebuli.steps.member.calls import call_messages as ask
from nebuli.steps.protocol.errors import MalformedMessage

numbers = st.integers(0, (1 << 64) - 1)
texts = st.text(max_size=20)
drawn_as = {
    int: numbers,
    str: texts,
    float: st.floats(0, 1e9),
    bytes: st.binary(max_size=40),
    tuple[str, ...]: st.lists(texts, max_size=4).map(tuple),
    tuple[tuple[int, bytes], ...]: st.lists(st.tuples(numbers, st.binary(max_size=20)), max_size=4).map(
        tuple
    ),
    dict[str, tuple[int, int]]: st.dictionaries(texts, st.tuples(numbers, numbers), max_size=4),
}
ASKED, ANSWERS = typing.get_args(ask.Asked), typing.get_args(ask.Answer)


def drawn(kinds: tuple[type, ...]) -> st.SearchStrategy[Any]:
    return st.one_of(
        [
            st.builds(kind, **{name: drawn_as[hint] for name, hint in typing.get_type_hints(kind).items()})
            for kind in kinds
        ]
    )


@given(numbers, drawn(ASKED))
def test_what_is_asked_is_read_as_it_was(number: int, asked: ask.Asked) -> None:
    assert ask.read_asked(ask.encode_asked(number, asked), "a coordinator") == (number, asked)


@given(numbers, drawn(ANSWERS))
def test_what_is_answered_is_read_as_it_was(number: int, answer: ask.Answer) -> None:
    assert ask.read_answer(ask.encode_answer(number, answer), "member 3") == (number, answer)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ([7, "explode"], "the kind 'explode' is unknown here"),
        ([7, "next", "a"], "'next' has 1 fields; expected 2"),
        ([7, "next", "a", 1], "producer of 'next' is '1', not a text of at most 4096 characters"),
        ([7, "offsets", -1], "step of 'offsets' is '-1', not a number of 64 bits"),
        ([7, "read", "out", 0, 0, float("nan")], "within_s of 'read' is 'nan', not a time in seconds"),
        ([7, "push", "a", "p", 0, 1.0, "text"], "rows of 'push' is 'text', not bytes"),
        ([7], r"expected an array that begins with a kind, got '\[\]'"),
    ],
)
def test_what_is_wrong_behind_a_number_can_be_answered(content: Any, what: str) -> None:
    number, error = ask.read_asked(msgpack.packb(content), "a coordinator")
    assert number == 7
    assert isinstance(error, MalformedMessage)
    with pytest.raises(
        MalformedMessage, match=f"a coordinator sent [0-9]+ bytes that are not a message: {what}"
    ):
        raise error


@pytest.mark.parametrize("content", [[], ["push"], [-1, "publish"], [True, "publish"], {"publish": 1}, 7])
def test_without_a_number_it_is_an_error_that_names_the_sender(content: Any) -> None:
    with pytest.raises(MalformedMessage, match=r"^member 3 sent ") as raised:
        ask.read_answer(msgpack.packb(content), "member 3")
    assert raised.value.sender == "member 3"


@pytest.mark.parametrize(
    ("kinds", "encode", "read"),
    [(ASKED, ask.encode_asked, ask.read_asked), (ANSWERS, ask.encode_answer, ask.read_answer)],
    ids=["asked", "answered"],
)
@given(data=st.data())
def test_whatever_the_bytes_are_it_is_a_message_or_that_error(
    kinds: tuple[type, ...],
    encode: Callable[[int, Any], bytes],
    read: Callable[[bytes, str], tuple[int, Any]],
    data: st.DataObject,
) -> None:
    junk = data.draw(st.binary(max_size=60))
    spoiled = bytearray(encode(data.draw(numbers), data.draw(drawn(kinds))))
    spoiled[data.draw(st.integers(0, len(spoiled) - 1))] ^= data.draw(st.integers(1, 255))
    for content in (junk, bytes(spoiled), bytes(spoiled[:-1]), bytes(spoiled) + junk):
        try:
            number, message = read(content, "who")
        except MalformedMessage as error:
            message, number = error, 0
        assert type(number) is int
        if isinstance(message, MalformedMessage):
            assert message.sender == "who"
        else:
            assert isinstance(message, kinds)
