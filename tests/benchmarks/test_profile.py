"""Where the time goes: what samples count as, and what they come to. Sampling itself needs ``perf``."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.profile import PARTS, part, table


@pytest.mark.parametrize(
    ("library", "symbol", "meant"),
    [
        ("[kernel.kallsyms]", "[k] _copy_from_iter", "copies to and from the kernel"),
        ("[kernel.kallsyms]", "[k] tcp_sendmsg_locked", "rest of the kernel"),
        ("_xxhash.cpython-311-x86_64-linux-gnu.so", "[.] XXH3_update_avx512", "checksums"),
        ("libpython3.11.so.1.0", "[.] _PyEval_EvalFrameDefault", "interpreter"),
        ("loop.cpython-311-x86_64-linux-gnu.so", "[.] 0x1", "uvloop"),
        ("libarrow.so.2600", "[.] x", "rest"),
    ],
)
def test_what_a_sample_counts_as(library: str, symbol: str, meant: str) -> None:
    assert part(library, symbol) == meant


def test_shares_become_times() -> None:
    sender = Counter({PARTS[0]: 25.0, PARTS[3]: 75.0})
    receiver = Counter({PARTS[5]: 100.0})
    lines = list(table({"sender": (40.0, sender), "receiver": (8.0, receiver)}))  # type: ignore[dict-item]
    assert lines[2] == "| copies to and from the kernel | 10 | 0 |"
    assert lines[5] == "| interpreter | 30 | 0 |"
    assert lines[7:] == ["| rest | 0 | 8 |", "| together | 40 | 8 |"]
