"""Inputs and outputs of fragments: files, the terminal, TCP, the network, and connectors of other packages.

The names here are all that such a package needs: it describes its types by a `SourceConnector` or `SinkConnector`, and
does the work in a `Source` or an `Output`. `nebuli.connectors.testing` tests both.
"""

from nebuli.connectors.endpoints import Output, Resumable, Signal, Source
from nebuli.connectors.errors import FragmentStopped, InputError, OutputChanged, OutputError, OutputGone
from topology import DataType, Schema, SinkConnector, SourceConnector

__all__ = [
    "DataType",
    "FragmentStopped",
    "InputError",
    "Output",
    "OutputChanged",
    "OutputError",
    "OutputGone",
    "Resumable",
    "Schema",
    "Signal",
    "SinkConnector",
    "Source",
    "SourceConnector",
]
