"""The parts of a topology: nodes, links, logical and physical sources, sinks; read from YAML and checked."""

from topology.access import Access, SecretPlace, TlsFiles
from topology.base import Address
from topology.built_in import (
    SINKS,
    SOURCES,
    ChannelSource,
    CollectionSink,
    CollectionSource,
    CsvSink,
    CsvSource,
    GeneratorSource,
    NullSink,
    ParquetSink,
    ParquetSource,
    PrintSink,
    TcpSink,
    TcpSource,
)
from topology.connectors import SinkConnector, SinkMode, SourceConnector
from topology.mistakes import ConnectorUnusable, Marks, Mistake, TopologyError
from topology.model import (
    EngineName,
    LinkLimits,
    Links,
    LogicalSource,
    Node,
    PhysicalSource,
    Sink,
    Topology,
)
from topology.policies import BufferSettings, ChannelPolicies, FaultSettings
from topology.reader import load_topology, parse_topology
from topology.schema import Column, DataType, Schema

__all__ = [
    "SINKS",
    "SOURCES",
    "Access",
    "Address",
    "BufferSettings",
    "ChannelPolicies",
    "ChannelSource",
    "CollectionSink",
    "CollectionSource",
    "Column",
    "ConnectorUnusable",
    "CsvSink",
    "CsvSource",
    "DataType",
    "EngineName",
    "FaultSettings",
    "GeneratorSource",
    "LinkLimits",
    "Links",
    "LogicalSource",
    "Marks",
    "Mistake",
    "Node",
    "NullSink",
    "ParquetSink",
    "ParquetSource",
    "PhysicalSource",
    "PrintSink",
    "Schema",
    "SecretPlace",
    "Sink",
    "SinkConnector",
    "SinkMode",
    "SourceConnector",
    "TcpSink",
    "TcpSource",
    "TlsFiles",
    "Topology",
    "TopologyError",
    "load_topology",
    "parse_topology",
]
