"""What an operator reads or writes, in this worker: files, the terminal and the network in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nebuli.worker.csv_source import CsvSource
from nebuli.worker.network import ChannelSink, ChannelSource
from nebuli.worker.outputs import GrowingFile, Terminal, WholeFile, csv_rows, parquet_rows
from nebuli.worker.parquet_source import ParquetSource
from nebuli.worker.sinks import AppendSink, ChangesSink, FinalSink
from placement.plan import BoundSink, BoundSource, NetworkSink, NetworkSource
from topology import CsvSink, ParquetSink, PrintSink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import netchannel
    from nebuli.worker.endpoints import Sink, Source
    from nebuli.worker.outputs import Output

__all__ = ["Provider"]

_MODES: Mapping[str, Callable[[Output], Sink]] = {
    "final": FinalSink,
    "changes": ChangesSink,
    "append": AppendSink,
}


@dataclass(frozen=True, slots=True)
class Provider:
    """Makes the ends of a fragment. To be used on the loop of the two servers; nothing is opened yet."""

    receiver: netchannel.ReceiverServer
    sender: netchannel.SenderServer

    def source(self, operator: BoundSource | NetworkSource, wake: Callable[[], None]) -> Source:
        """The source of an operator; ``wake`` is called when it has something after it had nothing."""
        match operator:
            case NetworkSource():
                return ChannelSource(operator, self.receiver, wake)
            case BoundSource(physical=physical) if physical.type == "CSV":
                return CsvSource(physical.path, operator.columns, physical.nulls)
            case BoundSource(physical=physical):
                return ParquetSource(physical.path, operator.columns)

    def sink(self, operator: BoundSink | NetworkSink) -> Sink:
        """The sink of an operator."""
        match operator:
            case NetworkSink():
                return ChannelSink(operator, self.sender)
            case BoundSink(target=target):
                return _MODES[target.mode](_output(target))


def _output(target: CsvSink | ParquetSink | PrintSink) -> Output:
    match target:
        case PrintSink():
            return Terminal()
        case ParquetSink():
            return WholeFile(target.path, parquet_rows)
        case CsvSink(mode="final"):
            return WholeFile(target.path, csv_rows)
        case CsvSink():
            return GrowingFile(target.path, csv_rows)
