"""What exists: nodes, links, logical and physical sources, sinks; read from YAML and checked."""

from topology.errors import TopologyError
from topology.mistakes import Marks, Mistake
from topology.model import (
    Address,
    CsvSink,
    CsvSource,
    LinkLimits,
    Links,
    LogicalSource,
    Node,
    ParquetSink,
    ParquetSource,
    PhysicalSource,
    PrintSink,
    Sink,
    SinkMode,
    Topology,
)
from topology.reader import load_topology, parse_topology
from topology.schema import Column, DataType, Schema

__all__ = [
    "Address",
    "Column",
    "CsvSink",
    "CsvSource",
    "DataType",
    "LinkLimits",
    "Links",
    "LogicalSource",
    "Marks",
    "Mistake",
    "Node",
    "ParquetSink",
    "ParquetSource",
    "PhysicalSource",
    "PrintSink",
    "Schema",
    "Sink",
    "SinkMode",
    "Topology",
    "TopologyError",
    "load_topology",
    "parse_topology",
]
