"""``netchannel send``, ``recv``, ``tail`` and ``ping``."""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import math
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import uvloop

import netchannel
from netchannel.cli.progress_line import ProgressLine
from netchannel.cli.row_files import FileNotWritten, FileUnusable, Output, read_batches, suffix_of
from netchannel.log_texts import refusals

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    import pyarrow as pa

_DONE, _FAILED, _BAD_INPUT, _INTERRUPTED, _TERMINATED = 0, 1, 2, 130, 143
_OF_OUTPUT = frozenset({errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC})
"""The errors of standard output, if they name no file."""
_PINGS_S = 0.2
"""Seconds between the heartbeats of a ping."""

_PING = "ping-"
"""The beginning of a ping's channel."""
_MOST_REFUSALS = 1000
_KEPT: list[object] = []
"""Lives as long as the process: a reader of Arrow that is released waits for its input, which may never end."""


class Place(NamedTuple):
    """A channel, and the address of its receiver, or of the process that retains it."""

    address: str
    channel: str

    @classmethod
    def of(cls, text: str) -> Place:
        """Read HOST:PORT/CHANNEL."""
        address, _, channel = text.partition("/")
        if not channel or not address.rpartition(":")[2].isdigit() or not address.rpartition(":")[0]:
            raise argparse.ArgumentTypeError(f"expected HOST:PORT/CHANNEL, got {text!r}")
        return cls(address, channel)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    _open_closed_streams()
    given = _parser().parse_args(arguments)
    try:
        secret = None if given.secret_file is None else _secret(given.secret_file)
        code: int = uvloop.run(_ended_on_termination(given.command(given, secret)))
    except KeyboardInterrupt:
        return _INTERRUPTED
    except asyncio.CancelledError:
        return _TERMINATED
    except BrokenPipeError:  # the reader of the output has left
        _drop_output()
        return _FAILED
    except (FileUnusable, ValueError) as error:
        return _failed(error, _BAD_INPUT)
    except (netchannel.NetChannelError, FileNotWritten, OSError) as error:
        return _failed(error, _FAILED)
    return code


def _failed(error: Exception, code: int) -> int:
    if isinstance(error, OSError) and error.filename is None and error.errno in _OF_OUTPUT:
        error = FileNotWritten.of("standard output", error)
    sys.stderr.write(f"Error: {error}\n")
    _drop_output()
    return code


def _drop_output() -> None:
    """Drop the rest of the buffer, which Python would try to write again at the exit."""
    with suppress(OSError):
        sys.stdout.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_closed_streams() -> None:
    """Open the standard streams that are closed: else the event loop gets their descriptors, and aborts.

    Writing to a standard output that was closed is an error; output to such a standard error is dropped.
    """
    for name, flags in (("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, flags)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - as long as the process


async def _ended_on_termination(command: Coroutine[Any, Any, int]) -> int:
    """Run a command that SIGTERM cancels, as Ctrl-C does: `recv` keeps the rows that came."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await command


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="netchannel",
        description="Send files over channels, receive files, and test connections.",
        epilog="Exit codes: 0 done, 1 the channel failed or the rows cannot be written, 2 invalid input, "
        "130 interrupted, 143 terminated.",
    )
    parser.add_argument("--version", action="version", version=netchannel.__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: object, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.add_argument(
            "--secret-file", metavar="FILE", help="File with the shared secret in its first line."
        )
        made.set_defaults(command=run)
        return made

    send = command("send", _send, "Send the rows of a file, and wait until they are acknowledged.")
    send.add_argument(
        "file",
        metavar="FILE",
        help="a .csv, .jsonl, .parquet, .arrow or .arrows file; - is CSV on standard input",
    )
    send.add_argument(
        "to",
        metavar="HOST:PORT/CHANNEL",
        type=Place.of,
        help="address of the receiver, which may start later, and the channel's id",
    )
    recv = command("recv", _recv, "Listen at an address, receive one stream, and write its rows.")
    recv.add_argument(
        "at", metavar="HOST:PORT/CHANNEL", type=Place.of, help="address to listen at, and the channel's id"
    )
    recv.add_argument(
        "--out", metavar="FILE", default="-", help="File for the rows.  [default: CSV on standard output]"
    )
    tail = command("tail", _tail, "Follow a retained channel until its stream ends.")
    tail.add_argument(
        "of",
        metavar="HOST:PORT/CHANNEL",
        type=Place.of,
        help="address of the process that retains the channel, and the channel's id",
    )
    tail.add_argument("--from-start", action="store_true", help="Begin with the oldest retained row.")
    ping = command("ping", _ping, "Measure the round-trip times of heartbeats to a receiver.")
    ping.add_argument("address", metavar="HOST:PORT", help="address of a receiver")
    ping.add_argument(
        "--count",
        type=_number_above_0(int),
        default=5,
        metavar="N",
        help="Number of round trips.  [default: 5]",
    )
    ping.add_argument(
        "--timeout",
        type=_number_above_0(float),
        default=5.0,
        metavar="S",
        help="Time limit of each round trip, in seconds.  [default: 5]",
    )
    return parser


def _number_above_0(kind: Callable[[str], float]) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
        return number

    return read


def _secret(name: str) -> str:
    try:
        return Path(name).read_text("utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise FileUnusable(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}") from error


async def _send(given: argparse.Namespace, secret: str | None) -> int:
    suffix_of(given.file)
    rows = messages = 0
    async with netchannel.SenderServer(secret=secret) as sender:
        channel = sender.register_channel(given.to.channel, to=given.to.address)
        batches = read_batches(given.file)
        _KEPT.append(batches)
        over = asyncio.create_task(_until_over(channel))
        try:
            with ProgressLine() as line:
                line.show(f"waiting for {given.to.address}")
                while (batch := await _next_of(batches, over)) is not None:
                    await channel.send(batch)
                    rows, messages = rows + batch.num_rows, messages + 1
                    acknowledged = channel.statistics().acknowledged
                    line.show(f"{rows:,} rows sent, messages: {messages:,}, acknowledged: {acknowledged:,}")
                await channel.close()
        finally:
            over.cancel()
    sys.stderr.write(f"{rows:,} rows acknowledged, messages: {messages:,}\n")
    return _DONE


async def _until_over(channel: netchannel.SenderChannel) -> None:
    """Wait until the channel can take nothing more, and raise why. Upqueries have no answer in a file."""
    while True:
        await channel.recv_upquery()


async def _next_of(batches: Iterator[pa.RecordBatch], over: asyncio.Task[None]) -> pa.RecordBatch | None:
    """Wait for the next one, on a thread that is not joined at exit: standard input may never end.

    Raises what ``over`` does before that.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[pa.RecordBatch | None] = loop.create_future()

    def tell(result: pa.RecordBatch | None, error: Exception | None) -> None:
        if found.done():
            return
        if error is None:
            found.set_result(result)
        else:
            found.set_exception(error)

    def read() -> None:
        try:
            result, error = next(batches, None), None
        except Exception as raised:  # noqa: BLE001 - raised by the caller
            result, error = None, raised
        with suppress(RuntimeError):  # the loop is closed: the command has ended
            loop.call_soon_threadsafe(tell, result, error)

    Thread(target=read, daemon=True).start()
    await asyncio.wait((found, over), return_when=asyncio.FIRST_COMPLETED)
    if over.done():
        await over
    return await found


def _print_refusals() -> None:
    """Print each sender that is refused to standard error, once per cause: it asks again and again.

    A ping has a channel that no receiver has.
    """
    printed: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if f"channel '{_PING}" in text or text in printed or len(printed) == _MOST_REFUSALS:
            return False
        printed.add(text)
        return True

    handler = logging.StreamHandler()
    handler.addFilter(is_new)
    refusals.addHandler(handler)
    refusals.setLevel(logging.INFO)
    refusals.propagate = False


async def _recv(given: argparse.Namespace, secret: str | None) -> int:
    _print_refusals()
    output = Output(given.out)
    rows = messages = 0
    try:
        async with netchannel.ReceiverServer(given.at.address, secret=secret) as receiver:
            channel = receiver.register_channel(given.at.channel, ack="explicit")
            sys.stderr.write(f"listening at {receiver.address}, channel {given.at.channel}\n")
            try:
                schema = await channel.schema()
                if schema is not None:
                    output.open(schema)
                async for batch in channel:
                    output.write(batch)
                    position = channel.position
                    assert position is not None
                    rows, messages = rows + batch.num_rows, messages + 1
                    await channel.ack(position)
                counted = channel.statistics()
            except netchannel.StreamReplaced as error:
                raise netchannel.StreamReplaced(
                    "send was started again, with a new stream: start recv again to receive the complete stream"
                ) from error
            except BaseException as error:
                # Acknowledged rows come to no other receiver. Without any, the next one gets the whole stream.
                if isinstance(error, Exception) or rows:
                    await channel.close(f"recv failed: {error}" if str(error) else "recv was interrupted")
                raise
        if earlier := counted.acknowledged - counted.dropped - messages:
            output.refuse_rest(earlier)
        output.publish()
    except BaseException:
        if (part := output.keep_part()) is not None:
            sys.stderr.write(f"{given.out} is not complete: {part} has the {rows:,} received rows\n")
        raise
    sys.stderr.write(f"{rows:,} rows received\n")
    return _DONE


async def _tail(given: argparse.Namespace, secret: str | None) -> int:
    output = Output("-")
    async with netchannel.ChannelReader(given.of.address, given.of.channel, secret=secret) as reader:
        heads = await reader.heads()
        schema = await reader.schema()
        if schema is not None:
            output.open(schema)
        first = heads.oldest if given.from_start else heads.head
        while True:
            if first < heads.head:
                async for batch in reader.read(netchannel.Position(heads.stream, first), heads.head):
                    output.write(batch)
                first = heads.head
            if heads.ended:
                if heads.failure is not None:
                    raise netchannel.ChannelFailed(f"the producer has failed: {heads.failure}")
                return _DONE
            heads = await reader.heads(first)


async def _ping(given: argparse.Namespace, secret: str | None) -> int:
    async with netchannel.SenderServer(
        secret=secret, timing=netchannel.Timing(heartbeat_s=_PINGS_S)
    ) as sender:
        channel = sender.register_channel(f"{_PING}{uuid4().hex}", to=given.address)
        refused = asyncio.create_task(
            channel.attached()
        )  # it is never attached: it ends with the connection's error
        times: list[float] = []
        try:
            while len(times) < given.count:
                try:
                    async with asyncio.timeout(given.timeout):
                        times.append(await _round_trip_s(sender, refused, times))
                except TimeoutError:
                    (peer,) = sender.statistics().peers
                    why = "" if peer.state == "up" else f" ({channel.core.last_failure})"
                    raise netchannel.ChannelBroken(
                        f"{given.address} did not answer in {given.timeout:g} s: is a receiver running there?{why}"
                    ) from None
                sys.stdout.write(f"{times[-1] * 1000:.2f} ms\n")
                sys.stdout.flush()
        finally:
            refused.cancel()
            await channel.detach()
        (peer,) = sender.statistics().peers
    sys.stdout.write(
        f"{given.address} ({peer.name}): {min(times) * 1000:.2f} to {max(times) * 1000:.2f} ms\n"
    )
    return _DONE


async def _round_trip_s(
    sender: netchannel.SenderServer, refused: asyncio.Task[object], before: Sequence[float]
) -> float:
    """Wait for another round trip than the last one."""
    while True:
        if refused.done():
            await refused
        for peer in sender.statistics().peers:
            if peer.round_trip_s is not None and [peer.round_trip_s] != [*before[-1:]]:
                return peer.round_trip_s
        await asyncio.sleep(_PINGS_S / 10)
