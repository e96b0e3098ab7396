"""What a worker keeps of its logs, and tells."""

from __future__ import annotations

from nebuli.node.logs import KEPT, Logs
from nebuli.rpc.log_lines import LogLine


def line(number: int) -> LogLine:
    return LogLine(number, "INFO", "", f"line {number}")


async def test_who_follows_too_slowly_misses_lines_and_gets_none_twice() -> None:
    logs = Logs(lambda text: "")
    for number in range(5):
        logs.keep(line(number))
    following = logs.lines(follow=True)
    found = [await anext(following)]
    for number in range(5, KEPT + 20):
        logs.keep(line(number))
    while found[-1].time < KEPT + 19:
        found.append(await anext(following))
    logs.keep(line(KEPT + 20))
    found.append(await anext(following))
    await following.aclose()
    numbers = [each.time for each in found]
    assert numbers == [*range(5), *range(20, KEPT + 21)]


async def test_of_a_long_text_the_beginning_is_kept() -> None:
    """A message of gRPC has 4 MiB at most."""
    logs = Logs(lambda text: "")
    logs.keep(LogLine(0, "ERROR", "1", "x" * (5 << 20)))
    (kept,) = [each async for each in logs.lines("1")]
    assert len(kept.text) == 16 << 10
    assert kept.text.endswith("xxx...")
