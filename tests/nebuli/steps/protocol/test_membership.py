"""Who the members are, in the three ways to say it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from nebuli.steps.protocol.errors import MembershipUnclear
from nebuli.steps.protocol.membership import (
    MEMBERS_LIMIT,
    Membership,
    from_environment,
    from_list,
    of_stateful_set,
)

THREE = ("circuit-0.circuits.svc:7000", "circuit-1.circuits.svc:7000", "circuit-2.circuits.svc:7000")


def test_a_list_has_the_addresses_by_index() -> None:
    """FT-MEM-2"""
    assert from_list("a:1, b:2,[::1]:3", 1) == Membership(("a:1", "b:2", "[::1]:3"), 1)


def test_the_environment_has_the_same_list_and_the_own_index() -> None:
    """FT-MEM-2"""
    assert from_environment({"NEBULI_MEMBERS": "a:1,b:2", "NEBULI_MEMBER": "0"}) == from_list("a:1,b:2", 0)


@pytest.mark.parametrize(
    ("host_name", "service"),
    [
        ("circuit-2.circuits.svc", ""),
        ("circuit-2", "circuits.svc"),
        ("circuit-2.elsewhere", "circuits.svc"),
    ],
)
def test_the_own_name_in_a_stateful_set_says_all_names(host_name: str, service: str) -> None:
    """FT-MEM-2"""
    assert of_stateful_set(host_name, 3, service, 7000) == Membership(THREE, 2)
    environment = {
        "NEBULI_MEMBERS": "3",
        "NEBULI_PORT": "7000",
        "NEBULI_SERVICE": service,
        "HOSTNAME": host_name,
    }
    assert from_environment(environment) == Membership(THREE, 2)


def test_the_name_of_a_set_may_have_numbers_and_dashes() -> None:
    assert of_stateful_set("my-2-circuit-11", 12, "", 1).addresses[3] == "my-2-circuit-3:1"
    assert of_stateful_set("my-2-circuit-11", 12, "", 1).own == 11


@pytest.mark.parametrize(
    ("environment", "what"),
    [
        ({}, "NEBULI_MEMBERS is not set: set it to the list of members"),
        ({"NEBULI_MEMBERS": "a:1"}, "NEBULI_MEMBER is not set"),
        ({"NEBULI_MEMBERS": "a:1", "NEBULI_MEMBER": "x"}, "NEBULI_MEMBER is 'x', which is no number"),
        ({"NEBULI_MEMBERS": "a:1", "NEBULI_MEMBER": "1"}, "there are 1 members, and this is number 1"),
        ({"NEBULI_MEMBERS": "a:1,a:1", "NEBULI_MEMBER": "1"}, "a:1 is in the list twice"),
        ({"NEBULI_MEMBERS": "a:1,b", "NEBULI_MEMBER": "1"}, "'b' is no address: write HOST:PORT"),
        ({"NEBULI_MEMBERS": "a:1,b:99999", "NEBULI_MEMBER": "1"}, "'b:99999' is no address"),
        ({"NEBULI_MEMBERS": "a:1,", "NEBULI_MEMBER": "0"}, "'' is no address"),
        ({"NEBULI_MEMBERS": "3"}, "HOSTNAME is not set"),
        ({"NEBULI_MEMBERS": "3", "HOSTNAME": "c-0"}, "NEBULI_PORT is not set"),
        ({"NEBULI_MEMBERS": "3", "HOSTNAME": "c", "NEBULI_PORT": "1"}, "does not end in an index"),
        ({"NEBULI_MEMBERS": "3", "HOSTNAME": "c-03", "NEBULI_PORT": "1"}, "does not end in an index"),
        ({"NEBULI_MEMBERS": "3", "HOSTNAME": "c-3", "NEBULI_PORT": "1"}, "this is number 3"),
        ({"NEBULI_MEMBERS": "0", "HOSTNAME": "c-0", "NEBULI_PORT": "1"}, "there are 0 members"),
        ({"NEBULI_MEMBERS": str(MEMBERS_LIMIT + 1), "HOSTNAME": "c-0", "NEBULI_PORT": "1"}, "1 to 1024"),
    ],
)
def test_what_does_not_say_it_is_an_error_that_says_what_is_missing(
    environment: dict[str, str], what: str
) -> None:
    with pytest.raises(MembershipUnclear, match=what):
        from_environment(environment)


_MEMBER = """
import json, os
from nebuli.steps.protocol.membership import from_environment
found = from_environment(os.environ)
print(json.dumps([found.addresses, found.own]))
"""


@pytest.mark.processes
@pytest.mark.parametrize("way", ["a list", "a stateful set"])
def test_three_processes_agree_on_the_list_and_each_knows_its_index(way: str) -> None:
    """FT-MEM-1"""
    said = []
    for own in range(3):
        environment = {"NEBULI_MEMBERS": ",".join(THREE), "NEBULI_MEMBER": str(own)}
        if way == "a stateful set":
            environment = {
                "NEBULI_MEMBERS": "3",
                "NEBULI_PORT": "7000",
                "HOSTNAME": THREE[own].partition(":")[0],
            }
        program = subprocess.run(
            [sys.executable, "-c", _MEMBER], env=os.environ | environment, capture_output=True, check=True
        )
        said.append(json.loads(program.stdout))
    assert said == [[list(THREE), own] for own in range(3)]
