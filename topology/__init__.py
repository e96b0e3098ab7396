"""What exists: nodes, links, logical and physical sources, sinks; read from YAML and checked."""

from topology.access import Access, SecretPlace, TlsFiles
from topology.base import Address
from topology.errors import TopologyError
from topology.mistakes import Marks, Mistake
from topology.model import (
    CsvSink,
    CsvSource,
    EngineName,
    GeneratorSource,
    LinkLimits,
    Links,
    LogicalSource,
    Node,
    NullSink,
    ParquetSink,
    ParquetSource,
    PhysicalSource,
    PrintSink,
    Sink,
    SinkMode,
    TcpSink,
    TcpSource,
    Topology,
    place_of,
)
from topology.policies import BufferSettings, ChannelPolicies, FaultSettings
from topology.reader import load_topology, parse_topology
from topology.schema import Column, DataType, Schema

__all__ = [
    "Access",
    "Address",
    "BufferSettings",
    "ChannelPolicies",
    "Column",
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
    "SinkMode",
    "TcpSink",
    "TcpSource",
    "TlsFiles",
    "Topology",
    "TopologyError",
    "load_topology",
    "parse_topology",
    "place_of",
]
