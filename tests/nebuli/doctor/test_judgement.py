"""What workers say, judged: where each bound is, and that each red line has a remedy."""

from __future__ import annotations

import pytest

from nebuli.doctor import judgement
from nebuli.rpc import worker_pb2 as wire
from topology import LinkLimits

DAY = 86400.0
NOW = 1_790_000_000.0


def test_another_version_is_red() -> None:
    assert judgement.version("w", "0.1.0", "3.11.2", "0.1.0").ok
    check = judgement.version("w", "0.2.0", "3.11.2", "0.1.0")
    assert (check.found, check.remedy.startswith("install one version everywhere")) == (
        "nebuli 0.2.0, but 0.1.0 on this machine",
        True,
    )


@pytest.mark.parametrize(
    ("skew_s", "ok"), [(0.0, True), (1.0, True), (-1.0, True), (1.2, False), (-1.2, False), (1.05, True)]
)
def test_a_clock_may_be_off_by_a_second_and_what_asking_took(skew_s: float, ok: bool) -> None:
    check = judgement.clock("w", skew_s, 0.1)
    assert check.ok is ok
    assert ok or "NTP" in check.remedy
    assert ("ahead of" in check.found) == (skew_s > 0)


@pytest.mark.parametrize(("used", "limit", "ok"), [(20, 1024, True), (768, 1024, True), (769, 1024, False)])
def test_256_descriptors_are_to_be_free(used: int, limit: int, ok: bool) -> None:
    check = judgement.files("w", used, limit)
    assert (check.ok, "ulimit" in check.remedy) == (ok, not ok)


@pytest.mark.parametrize(
    ("default", "available", "ok"),
    [
        ("cubic", ["reno", "cubic"], True),
        ("bbr", ["reno", "cubic", "bbr"], True),
        ("reno", ["reno"], True),
        ("bbr", ["reno", "bbr"], False),
        ("", [], True),
    ],
)
def test_a_congestion_control_for_networks_alone_is_red(default: str, available: list[str], ok: bool) -> None:
    check = judgement.congestion("w", default, available)
    assert (check.ok, "modprobe tcp_cubic" in check.remedy) == (ok, not ok)


@pytest.mark.parametrize(
    ("left", "found", "remedy"),
    [
        (30 * DAY, "valid until", ""),
        (7 * DAY, "valid until", ""),
        (3 * DAY, "valid until", "in time: 72 h are left"),
        (0.0, "expired on 2026-09-21", "renew node.pem: it is read again"),
    ],
)
def test_a_certificate_is_red_in_its_last_week(left: float, found: str, remedy: str) -> None:
    check = judgement.certificate("w", "certificate", "node.pem", NOW + left, NOW)
    assert check.ok == (not remedy)
    assert check.found.startswith(found)
    assert remedy in check.remedy


@pytest.mark.parametrize(
    ("limits", "ok"),
    [
        ({"bandwidth": 1e8}, True),
        ({"bandwidth": 2.1e8}, False),
        ({"latency_ms": 1}, True),
        ({"latency_ms": 0.5}, False),
    ],
)
def test_a_link_that_is_much_worse_than_the_topology_says_is_red(limits: dict[str, float], ok: bool) -> None:
    reply = wire.ProbeReply(reached=True, throughput=100_000_000, round_trip_min_us=4000)
    check = judgement.limits("e", LinkLimits(**limits), reply)
    assert check is not None
    assert check.ok is ok


def test_a_link_without_limits_is_not_judged_by_them() -> None:
    assert judgement.limits("e", LinkLimits(), wire.ProbeReply(reached=True)) is None


@pytest.mark.parametrize(
    ("reply", "remedy"),
    [
        ({"error": "connection refused"}, "let the first node reach port 9001 of the second"),
        ({"reached": True, "error": "the secret is another"}, "the same secret"),
        ({"reached": True, "error": "TLS with it failed"}, "certificates of one authority"),
        ({"reached": True, "error": "nothing happened"}, "read both workers' standard error"),
    ],
)
def test_each_way_that_a_channel_fails_has_its_remedy(reply: dict[str, object], remedy: str) -> None:
    check = judgement.channel("e", "10.0.0.5:9001", wire.ProbeReply(**reply))  # type: ignore[arg-type]  # as the cases
    assert (check.ok, check.unreachable) == (False, True)
    assert remedy in check.remedy


@pytest.mark.parametrize(
    ("mode", "ok"), [(0o100600, True), (0o100400, True), (0o100640, False), (0o100604, False)]
)
def test_what_others_can_read_is_red(mode: int, ok: bool) -> None:
    check = judgement.private("here", "key", "node.key", mode)
    assert (check.ok, "chmod 600 node.key" in check.remedy) == (ok, not ok)
