"""What contestants use, whatever is measured: a `pace` to send at, and a `watch` for what arrives."""

from __future__ import annotations

from typing import Any

from . import throughput
from .work import Work


def pace(work: Work) -> Any:
    """An iterable of lists of messages, for blocking senders and for coroutines, with a `result`."""
    return throughput.Pace(work) if work.rate is None else _latency().Pace(work)


def watch(work: Work) -> Any:
    """What makes functions that `look` at messages, with a `result`."""
    return throughput.Watch(work) if work.rate is None else _latency().Watch(work)


def _latency() -> Any:
    from . import latency  # needs a package that throughput does not

    return latency
