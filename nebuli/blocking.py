"""The same as `nebuli`, for programs without an event loop: each call waits for its result."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from nebuli import circuits
from nebuli.circuits.circuit_client import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping
    from types import TracebackType
    from typing import Self

    import pyarrow as pa

    import netchannel
    from nebuli.circuits import CircuitStatus

__all__ = ["Circuit"]

_Result = TypeVar("_Result")


class Circuit:
    """`nebuli.Circuit`, from any thread, several at once: the same names, and each call waits."""

    def __init__(
        self,
        address: str,
        *,
        secret: str | None = None,
        tls: netchannel.Tls | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._circuit = circuits.Circuit(address, secret=secret, tls=tls, deadline_s=deadline_s)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nebuli-circuit", daemon=True)

    @property
    def address(self) -> str:
        """Where the circuit is served."""
        return self._circuit.address

    @property
    def inputs(self) -> Mapping[str, pa.Schema]:
        """What can be pushed: the schema of its rows, by input."""
        return self._circuit.inputs

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """What can be read: the schema of its rows, by output."""
        return self._circuit.outputs

    def __enter__(self) -> Self:
        """As `nebuli.Circuit`."""
        self._thread.start()
        try:
            self._wait(self._circuit.__aenter__())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Disconnect; the circuit runs on."""
        try:
            self._wait(self._circuit.__aexit__(kind, error, traceback))
        finally:
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # of this thread, as Ctrl-C is: what it waited for is not wanted any more
            future.cancel()
            raise

    def push(self, handle: str, batch: pa.RecordBatch, *, producer: str, sequence: int) -> int:
        """As `nebuli.Circuit.push`."""
        return self._wait(self._circuit.push(handle, batch, producer=producer, sequence=sequence))

    def next_sequence(self, handle: str, producer: str) -> int:
        """As `nebuli.Circuit.next_sequence`."""
        return self._wait(self._circuit.next_sequence(handle, producer))

    def output(self, name: str, from_step: int = 0) -> Iterator[tuple[int, pa.RecordBatch]]:
        """As `nebuli.Circuit.output`."""
        steps = self._circuit.output(name, from_step)
        try:
            while (found := self._wait(_next(steps))) is not None:
                yield found
        finally:
            self._wait(steps.aclose())

    def offsets(self, step: int) -> dict[str, tuple[int, int]]:
        """As `nebuli.Circuit.offsets`."""
        return self._wait(self._circuit.offsets(step))

    def checkpoint(self) -> int:
        """As `nebuli.Circuit.checkpoint`."""
        return self._wait(self._circuit.checkpoint())

    def pause(self) -> None:
        """As `nebuli.Circuit.pause`."""
        self._wait(self._circuit.pause())

    def start(self) -> None:
        """As `nebuli.Circuit.start`."""
        self._wait(self._circuit.start())

    def shut_down(self) -> None:
        """As `nebuli.Circuit.shut_down`."""
        self._wait(self._circuit.shut_down())

    def status(self) -> CircuitStatus:
        """As `nebuli.Circuit.status`."""
        return self._wait(self._circuit.status())


async def _next(steps: AsyncGenerator[tuple[int, pa.RecordBatch]]) -> tuple[int, pa.RecordBatch] | None:
    return await anext(steps, None)
