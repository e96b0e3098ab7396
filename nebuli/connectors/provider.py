"""The endpoints of operators, in this worker: files, the terminal and the network in one place."""

from __future__ import annotations

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from nebuli.connectors.endpoints import OnceOutput
from nebuli.connectors.errors import FragmentError, InputError, OutputError
from nebuli.connectors.network import ChannelSink, NetworkChannelSource
from nebuli.connectors.positions import CountedSource
from nebuli.connectors.sinks.modes import AppendSink, ChangesSink, FinalSink
from placement.plan import BoundSink, BoundSource, NetworkSink, NetworkSource
from topology import SINKS, SOURCES

if TYPE_CHECKING:
    from collections.abc import Callable

    import netchannel
    from nebuli.connectors.endpoints import Output, Sink, Source
    from nebuli.connectors.positions import Lineage
    from topology import SinkConnector, SinkMode, SourceConnector
    from topology.connectors import Connectors

__all__ = ["Provider", "import_built_in", "output_of", "sink_of", "sink_over", "source_of"]


@dataclass(frozen=True, slots=True)
class Provider:
    """Makes the ends of a fragment. To be used on the loop of the two servers; nothing is opened yet."""

    receiver: netchannel.ReceiverServer
    sender: netchannel.SenderServer
    query: str | None = None
    """The id of the fragment's query, if it has one."""

    def source(
        self, operator: BoundSource | NetworkSource, wake: Callable[[], None], lineage: Lineage | None = None
    ) -> Source:
        """The source of an operator; ``wake`` is called when it has something after it had nothing.

        ``lineage`` is that of an exact fragment.
        """
        if isinstance(operator, NetworkSource):
            return NetworkChannelSource(operator, self.receiver, wake, lineage)
        source = source_of(operator, wake)
        return source if lineage is None else CountedSource(source, lineage, wake)

    def sink(
        self, operator: BoundSink | NetworkSink, lineage: Lineage | None = None, *, resumed: bool = False
    ) -> Sink:
        """The sink of an operator; ``resumed``: it continues a predecessor's stream."""
        if isinstance(operator, NetworkSink):
            return ChannelSink(operator, self.sender, lineage, resumed=resumed)
        return sink_of(operator.target, self.query, only_grows=operator.only_grows)


def source_of(operator: BoundSource, wake: Callable[[], None]) -> Source:
    """Return the reader of a physical source. Raises InputError if the connector is not available."""
    source: Source = _made(SOURCES, InputError, operator.physical, operator.columns, wake)
    return source


def sink_of(target: SinkConnector, query: str | None = None, *, only_grows: bool = False) -> Sink:
    """Return the writer to a sink, by its mode; see `sink_over`. Raises OutputError without the connector."""
    output = output_of(target)
    if query is not None and target.mode == "final" and isinstance(output, OnceOutput):
        output.identify(query)
    return sink_over(output, target.mode, only_grows=only_grows)


def sink_over(output: Output, mode: SinkMode, *, only_grows: bool = False) -> Sink:
    """Return the writer to an output in a mode; ``only_grows``: none of its rows is retracted."""
    if mode == "final":
        return FinalSink(output, only_grows=only_grows)
    return ChangesSink(output) if mode == "changes" else AppendSink(output)


def output_of(target: SinkConnector) -> Output:
    """The output for a sink's rows. Raises OutputError if the connector is not available."""
    output: Output = _made(SINKS, OutputError, target)
    return output


def _made(
    connectors: Connectors[Any],
    blamed: type[FragmentError],
    settings: SourceConnector | SinkConnector,
    *arguments: object,
) -> Any:
    try:
        return resolve_name(settings.implementation)(settings, *arguments)
    except (Exception, SystemExit) as error:  # most of it is third-party code
        package = connectors.packages.get(settings.type, "built in")
        raise blamed(
            f"type {settings.type!r} ({package}): {settings.implementation} cannot be used here: "
            f"{type(error).__name__}: {error}; install its missing dependencies, or another version of it"
        ) from error


def import_built_in() -> None:
    """Import what does the work of the connectors that come with this package.

    Connectors of other packages are imported by a fragment that needs them: if that fails, only it fails, with the
    reason.
    """
    for connectors in (SOURCES, SINKS):
        for name, connector in connectors.known.items():
            if name not in connectors.packages:
                resolve_name(connector.implementation)
