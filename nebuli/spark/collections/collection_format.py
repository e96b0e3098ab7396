"""The Spark data source ``collection``: a collection at a time and following, read and written.

Modules that need the store are imported within functions, since Spark imports this module in every session that has the
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

    from nebuli.spark.collections.collection_options import ReadOptions
    from nebuli.spark.collections.collection_writers import Inserting
    from spark_bridge.option_table import Use


class CollectionDataSource(DataSource):
    """``spark.read.format("collection")`` and its three siblings."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        check_version()
        super().__init__(options)
        self._whole = False  # as in NetchannelDataSource

    @classmethod
    def name(cls) -> str:
        """The name for ``format(...)`` is given."""
        return "collection"

    def schema(self) -> StructType:
        """The schema of the collection; with a weight and a time, where it is read as changes."""
        from pyspark.sql.pandas.types import from_arrow_schema

        from nebuli.spark.collections.collection_links import opened
        from nebuli.spark.collections.collection_options import read_options
        from nebuli.spark.collections.time_ranges import TIME
        from nebuli.spark.row_schemas import WEIGHT, read_as

        options = read_options(self.options)
        self._whole = True
        with opened(options.place) as collections:
            found = collections.describe(options.place.collection).schema
        schema = read_as(found, WEIGHT, TIME) if options.changes else read_as(found)
        return from_arrow_schema(schema, prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader for ``spark.read``."""
        from nebuli.spark.collections.time_readers import CollectionBatchReader

        return CollectionBatchReader(*self._reading(schema, "batch read"), whole=self._whole)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The reader for ``spark.readStream``."""
        from nebuli.spark.collections.time_readers import CollectionStreamReader

        return CollectionStreamReader(*self._reading(schema, "streaming read"), whole=self._whole)

    def _reading(self, schema: StructType, use: Use) -> tuple[ReadOptions, pa.Schema]:
        from nebuli.spark.collections.collection_options import read_options
        from spark_bridge.schemas import arrow_schema

        return read_options(self.options, use), arrow_schema(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The writer for ``df.write``."""
        from nebuli.spark.collections.collection_writers import CollectionBatchWriter

        return CollectionBatchWriter(self._inserting(schema, overwrite, "batch write"))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """The writer for ``df.writeStream``."""
        from nebuli.spark.collections.collection_writers import CollectionStreamWriter

        return CollectionStreamWriter(self._inserting(schema, overwrite, "streaming write"))

    def _inserting(self, schema: StructType, overwrite: bool, use: Use) -> Inserting:
        from nebuli.spark.collections.collection_options import write_options
        from nebuli.spark.collections.collection_writers import Inserting

        if overwrite:
            raise UnsupportedSpark(
                "a collection cannot be overwritten, only inserted into: use mode('append'), or "
                "outputMode('append'), and retract rows by a column _weight; or write a "
                "rendition of the collection, and hand over to it"
            )
        return Inserting.of(write_options(self.options, use), schema)
