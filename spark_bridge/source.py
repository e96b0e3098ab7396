"""The Spark data source ``netchannel``: batch and streaming, reading and writing.

PySpark is imported here, so that the package itself can be used without it. Modules that need channels are imported
within functions, since Spark imports this module in every session that looks up a format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from .errors import UnsupportedSpark
from .versions import check_version

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

    from .option_table import Use
    from .options import ReadOptions


class NetchannelDataSource(DataSource):
    """``spark.read.format("netchannel")`` and its three siblings."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        check_version()
        super().__init__(options)
        # Spark pickles this object between schema() and reader(), and does not call schema() where the user gave one.
        self._whole = False

    @classmethod
    def name(cls) -> str:
        """The name for ``format(...)`` is given."""
        return "netchannel"

    def schema(self) -> StructType:
        """The schema of the channels, asked of their servers."""
        from pyspark.sql.pandas.types import from_arrow_schema

        from .options import read_options
        from .reading.range_reader import source_schema

        options = read_options(self.options)
        self._whole = options.columns is None
        return from_arrow_schema(source_schema(options), prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader for ``spark.read``."""
        from .reading.batch_reader import BatchReader, FilteringBatchReader
        from .reading.filters import are_pushed

        options, declared = self._reading(schema, "batch read")
        kind = FilteringBatchReader if are_pushed() and options.metadata else BatchReader
        return kind(options, declared, whole=self._whole)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The reader for ``spark.readStream``."""
        from .reading.stream_reader import StreamReader

        return StreamReader(*self._reading(schema, "streaming read"), whole=self._whole)

    def _reading(self, schema: StructType, use: Use) -> tuple[ReadOptions, pa.Schema]:
        from .options import read_options
        from .reading.range_reader import check_declared
        from .schemas import arrow_schema

        options, declared = read_options(self.options, use), arrow_schema(schema)
        check_declared(declared, options)
        return options, declared

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The writer for ``df.write``."""
        from .options import write_options
        from .writing.task_writer import Rows
        from .writing.writers import BatchWriter

        _check_append(overwrite)
        return BatchWriter(Rows.of(write_options(self.options, "batch write"), schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """The writer for ``df.writeStream``."""
        from .options import write_options
        from .writing.task_writer import Rows
        from .writing.writers import StreamWriter

        _check_append(overwrite)
        return StreamWriter(Rows.of(write_options(self.options, "streaming write"), schema))


def _check_append(overwrite: bool) -> None:
    if overwrite:
        raise UnsupportedSpark(
            "a channel cannot be overwritten, only appended to: use mode('append'), or outputMode('append')"
        )
