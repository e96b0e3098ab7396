"""Proofs of the secret with each call: who is let in, and who is not, by a clock that the test sets."""

from __future__ import annotations

import pytest

from nebuli.rpc.proof import WINDOW_S, Proofs, prove

NOW = 1_790_000_000.0
METHOD, REQUEST = "/nebuli.worker.v1.Worker/Start", b"\x0a\x011"


def proofs() -> Proofs:
    return Proofs("s3cret", "10.0.0.5:9001")


def proof(**changes: object) -> str:
    given = {"secret": "s3cret", "worker": "10.0.0.5:9001", "method": METHOD, "request": REQUEST, "now": NOW}
    return prove(**(given | changes))  # type: ignore[arg-type]  # as the cases give them


def test_who_knows_the_secret_is_let_in() -> None:
    checking = proofs()
    for behind in (-WINDOW_S, 0.0, WINDOW_S):
        assert checking.refusal(proof(now=NOW - behind), METHOD, REQUEST, NOW) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"secret": "another"},
        {"worker": "10.0.0.6:9001"},
        {"method": "/nebuli.worker.v1.Worker/Stop"},
        {"request": b"\x0a\x012"},
    ],
)
def test_a_proof_is_good_for_its_secret_worker_method_and_request_only(changes: dict[str, object]) -> None:
    refusal = proofs().refusal(proof(**changes), METHOD, REQUEST, NOW)
    assert refusal == "worker 10.0.0.5:9001 has another secret: give all workers and commands the same secret"


def test_a_proof_is_good_once() -> None:
    checking, once = proofs(), proof()
    assert checking.refusal(once, METHOD, REQUEST, NOW) is None
    for later in (0.0, WINDOW_S):
        assert "has seen this call before" in str(checking.refusal(once, METHOD, REQUEST, NOW + later))


@pytest.mark.parametrize(("behind", "said"), [(301.0, "301 s ahead of"), (-302.0, "302 s behind")])
def test_clocks_that_differ_too_much_are_named_with_both_numbers(behind: float, said: str) -> None:
    refusal = str(proofs().refusal(proof(now=NOW - behind), METHOD, REQUEST, NOW))
    assert said in refusal
    assert "limit is 300 s" in refusal


def test_what_was_seen_is_forgotten_when_its_time_is_out() -> None:
    checking = proofs()
    for number in range(10):
        now = NOW + number * WINDOW_S
        assert checking.refusal(proof(now=now), METHOD, REQUEST, now) is None
    assert len(checking._seen) == len(checking._order) == 3


@pytest.mark.parametrize("shown", ["", "1", "a b c", f"{NOW} aa", "x" * 10_000, "ä ö ü"])
def test_noise_is_refused(shown: str) -> None:
    assert "another secret" in str(proofs().refusal(shown, METHOD, REQUEST, NOW))


def test_who_shows_nothing_hears_what_is_asked_for() -> None:
    assert "requires a secret, and the call has none" in str(proofs().refusal(None, METHOD, REQUEST, NOW))
