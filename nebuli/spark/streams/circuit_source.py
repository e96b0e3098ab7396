"""The Spark data source ``circuit``: batch and streaming, reading outputs and writing into inputs.

Modules that need gRPC are imported within functions, since Spark imports this module in every session that has the
format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from spark_bridge.errors import UnsupportedSpark
from spark_bridge.versions import check_version

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    import pyarrow as pa
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )
    from pyspark.sql.types import StructType

    from nebuli.spark.streams.circuit_options import ReadOptions
    from spark_bridge.option_table import Use


class CircuitDataSource(DataSource):
    """``spark.read.format("circuit")`` and its three siblings."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        check_version()
        super().__init__(options)
        self._whole = False  # as in NetchannelDataSource

    @classmethod
    def name(cls) -> str:
        """The name for ``format(...)`` is given."""
        return "circuit"

    def schema(self) -> StructType:
        """The schema of the output, asked of the circuit."""
        from pyspark.sql.pandas.types import from_arrow_schema

        from nebuli.spark.streams.circuit_links import linked, output_schema
        from nebuli.spark.streams.circuit_options import read_options

        options = read_options(self.options)
        self._whole = True
        with linked(options.place, f"output {options.output}") as circuit:
            schema = output_schema(circuit.outputs, options.output, append_only=options.append_only)
        return from_arrow_schema(schema, prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader for ``spark.read``."""
        from nebuli.spark.streams.circuit_readers import CircuitBatchReader

        return CircuitBatchReader(*self._reading(schema, "batch read"), whole=self._whole)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The reader for ``spark.readStream``."""
        from nebuli.spark.streams.circuit_readers import CircuitStreamReader

        return CircuitStreamReader(*self._reading(schema, "streaming read"), whole=self._whole)

    def _reading(self, schema: StructType, use: Use) -> tuple[ReadOptions, pa.Schema]:
        from nebuli.spark.streams.circuit_options import read_options
        from spark_bridge.schemas import arrow_schema

        return read_options(self.options, use), arrow_schema(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The writer for ``df.write``."""
        from nebuli.spark.streams.circuit_options import write_options
        from nebuli.spark.streams.circuit_writers import CircuitBatchWriter
        from nebuli.spark.streams.piece_writer import Staged

        _check_append(overwrite)
        return CircuitBatchWriter(Staged.of(write_options(self.options, "batch write"), schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """The writer for ``df.writeStream``."""
        from nebuli.spark.streams.circuit_options import write_options
        from nebuli.spark.streams.circuit_writers import CircuitStreamWriter
        from nebuli.spark.streams.piece_writer import Staged

        _check_append(overwrite)
        return CircuitStreamWriter(Staged.of(write_options(self.options, "streaming write"), schema))


def _check_append(overwrite: bool) -> None:
    if overwrite:
        raise UnsupportedSpark(
            "rows can be pushed into an input, but cannot overwrite it: use mode('append'), or "
            "outputMode('append'); to retract rows, write a column _weight"
        )
