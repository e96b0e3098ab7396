"""Addresses are host:port, with an IPv6 host in brackets."""

from __future__ import annotations

import pytest

from topology.address import check_address


@pytest.mark.parametrize(
    "text", ["127.0.0.1:1", "node-1.example.org:65535", "worker_1:80", "[::1]:9001", "[fe80::1%eth0]:9"]
)
def test_addresses_are_taken_as_they_are(text: str):
    assert check_address(text) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("127.0.0.1", "expected host:port"),
        ("::1:9001", "expected host:port, with an IPv6 host in brackets"),
        ("a:0", "a port from 1 to 65535"),
        ("a:65536", "a port from 1 to 65535"),
        ("a:+9", "a port from 1 to 65535"),
        ("a:", "a port from 1 to 65535"),
        (":9001", "a host name or an IP address"),
        ("a b:1", "a host name or an IP address"),
        ("[127.0.0.1]:1", "a host name or an IP address"),
    ],
)
def test_what_is_expected_is_said_of_anything_else(text: str, said: str):
    with pytest.raises(ValueError, match=said):
        check_address(text)
