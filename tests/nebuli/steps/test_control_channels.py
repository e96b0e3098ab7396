"""Greetings as bytes, and what is none."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nebuli.steps.control_sessions import Greeting, encoded, read_greeting
from nebuli.steps.protocol.errors import MalformedMessage

texts = st.text(min_size=1, max_size=20)
greetings = st.builds(Greeting, texts, texts)


@given(greetings)
def test_a_greeting_is_read_as_it_was(greeting: Greeting) -> None:
    assert read_greeting(encoded(greeting), "a coordinator") == greeting


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ([2, "session", "host:1"], "expected a greeting of version 1"),
        ([1, "session"], "expected a greeting of version 1"),
        ([1, "session", 7], "not a text"),
        ([1, "session", ""], "has no session, or no address"),
        ({"session": 1}, "expected an array"),
    ],
)
def test_what_is_no_greeting_is_an_error_that_says_from_whom_and_why(content: Any, what: str) -> None:
    with pytest.raises(MalformedMessage, match=f"^a coordinator sent [0-9]+ bytes .*{what}"):
        read_greeting(msgpack.packb(content), "a coordinator")


@given(st.binary(max_size=60), greetings, st.data())
def test_whatever_the_bytes_are_it_is_a_greeting_or_that_error(
    junk: bytes, greeting: Greeting, data: st.DataObject
) -> None:
    spoiled = bytearray(encoded(greeting))
    spoiled[data.draw(st.integers(0, len(spoiled) - 1))] ^= data.draw(st.integers(1, 255))
    for content in (junk, bytes(spoiled), bytes(spoiled[:-1]), bytes(spoiled) + junk):
        try:
            read = read_greeting(content, "a coordinator")
        except MalformedMessage:
            continue
        assert read.session
        assert read.address
