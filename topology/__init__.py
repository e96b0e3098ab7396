"""What exists: nodes, links, logical and physical sources, sinks; read from YAML and checked."""

from topology.errors import TopologyError
from topology.mistakes import Marks, Mistake
from topology.model import (
    Address,
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
from topology.reader import load_topology, parse_topology
from topology.schema import Column, DataType, Schema

__all__ = [
    "Address",
    "Column",
    "CsvSink",
    "CsvSource",
    "DataType",
    "EngineName",
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
    "Sink",
    "SinkMode",
    "TcpSink",
    "TcpSource",
    "Topology",
    "TopologyError",
    "load_topology",
    "parse_topology",
    "place_of",
]
