"""What an operator reads or writes, in this worker: files, the terminal and the network in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import topology
from nebuli.connectors.network import ChannelSink, ChannelSource
from nebuli.connectors.sinks.modes import AppendSink, ChangesSink, FinalSink
from nebuli.connectors.sinks.outputs import GrowingFile, Nothing, Terminal, WholeFile, csv_rows, parquet_rows
from nebuli.connectors.sinks.tcp_output import TcpOutput
from nebuli.connectors.sources.counted_source import CountedSource
from nebuli.connectors.sources.csv_source import CsvSource
from nebuli.connectors.sources.generator_source import GeneratorSource
from nebuli.connectors.sources.parquet_source import ParquetSource
from nebuli.connectors.sources.tcp_source import TcpSource
from placement.plan import BoundSink, BoundSource, NetworkSink, NetworkSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import netchannel
    from nebuli.connectors.endpoints import Sink, Source
    from nebuli.connectors.positions import Lineage
    from nebuli.connectors.sinks.outputs import Output
    from topology import Sink as Target

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

    def source(
        self, operator: BoundSource | NetworkSource, wake: Callable[[], None], lineage: Lineage | None = None
    ) -> Source:
        """The source of an operator; ``wake`` is called when it has something after it had nothing.

        ``lineage`` is that of an exact fragment.
        """
        if isinstance(operator, NetworkSource):
            return ChannelSource(operator, self.receiver, wake, lineage)
        source = _physical(operator, wake)
        return source if lineage is None else CountedSource(source, lineage, wake)

    def sink(
        self, operator: BoundSink | NetworkSink, lineage: Lineage | None = None, *, resumed: bool = False
    ) -> Sink:
        """The sink of an operator; ``resumed``: it goes on with what a predecessor has sent."""
        match operator:
            case NetworkSink():
                return ChannelSink(operator, self.sender, lineage, resumed=resumed)
            case BoundSink(target=target):
                return _MODES[target.mode](_output(target))


def _physical(operator: BoundSource, wake: Callable[[], None]) -> Source:
    match operator.physical:
        case topology.CsvSource() as physical:
            return CsvSource(physical.path, operator.columns, physical.nulls)
        case topology.ParquetSource() as physical:
            return ParquetSource(physical.path, operator.columns)
        case topology.TcpSource() as physical:
            return TcpSource(physical, operator.columns, wake)
        case topology.GeneratorSource() as physical:
            return GeneratorSource(physical, operator.columns, wake)


def _output(target: Target) -> Output:
    match target:
        case topology.TcpSink():
            return TcpOutput(target)
        case topology.NullSink():
            return Nothing()
        case topology.PrintSink():
            return Terminal()
        case topology.ParquetSink():
            return WholeFile(target.path, parquet_rows)
        case topology.CsvSink(mode="final"):
            return WholeFile(target.path, csv_rows)
        case topology.CsvSink():
            return GrowingFile(target.path, csv_rows)
