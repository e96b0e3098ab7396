"""Expected types are those of Spark's documented mapping between Spark SQL and Arrow types."""

from __future__ import annotations

import datetime
import decimal

import pyarrow as pa
import pytest
from pyspark.sql import types

from spark_bridge import SchemaConflict
from spark_bridge.schemas import Normaliser, arrow_schema

UTC = datetime.UTC
STRING, LONG = pa.string(), pa.int64()


def normalise(values: pa.Array, kind: pa.DataType | pa.Field) -> pa.Array:
    field = kind.with_name("x") if isinstance(kind, pa.Field) else pa.field("x", kind)
    batch = Normaliser(pa.schema([field]))(pa.RecordBatch.from_arrays([values], names=["x"]))
    batch.validate(full=True)
    assert batch.schema.field("x").equals(field)
    return batch.column(0)


def list_of(kind: pa.DataType, *, nullable: bool = True) -> pa.DataType:
    return pa.list_(pa.field("element", kind, nullable=nullable))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array(["a", None, "a"]).dictionary_encode(), STRING),
        (pa.array(["a", None], pa.large_string()), STRING),
        (pa.array(["a", None], pa.string_view()), STRING),
        (pa.array([b"ab", None], pa.binary(2)), pa.binary()),
        (pa.array([1, None], pa.int32()), LONG),
        (pa.array([1, None], LONG), pa.int32()),
        (pa.array([255], pa.uint8()), pa.int16()),
        (pa.array([1.5, None], pa.float32()), pa.float64()),
        (pa.array([1, None], LONG), pa.float64()),
        (pa.array([None, None]), STRING),
        (pa.array([["a"], None], pa.list_(pa.large_string())), list_of(STRING)),
        (pa.array([["a", "b"]], pa.list_(STRING, 2)), list_of(STRING)),
        (pa.array([["a"]], pa.list_(pa.dictionary(pa.int8(), STRING))), list_of(STRING)),
        (pa.array([["a"], None]), list_of(STRING, nullable=False)),
        (pa.array([{"a": 1}, None], pa.struct({"a": pa.int32()})), pa.struct({"a": LONG})),
        (
            pa.array([[("k", 1)], None], pa.map_(pa.large_string(), pa.int32())),
            pa.map_(STRING, pa.field("value", LONG, nullable=False)),
        ),
        (pa.array([decimal.Decimal("1.5")], pa.decimal128(5, 1)), pa.decimal128(10, 2)),
        (pa.array([decimal.Decimal("1.2E+4")], pa.decimal128(5, -2)), pa.decimal128(7, 0)),
        (pa.array([datetime.date(2013, 1, 1)], pa.date64()), pa.date32()),
        (pa.array([datetime.timedelta(1)], pa.duration("s")), pa.duration("us")),
    ],
    ids=lambda value: str(value.type if isinstance(value, pa.Array) else value),
)
def test_values_stay_and_their_type_becomes_the_declared_one(values, kind):
    assert normalise(values, kind).to_pylist() == values.to_pylist()


@pytest.mark.parametrize("zone", ["UTC", "+00:00", "Europe/Paris"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_an_instant_is_the_same_instant_in_utc(unit, zone):
    instant = datetime.datetime(2013, 7, 1, 12, tzinfo=UTC)
    values = pa.array([instant, None], pa.timestamp(unit, tz=zone))
    assert normalise(values, pa.timestamp("us", tz="UTC")).to_pylist() == [instant, None]


def test_an_extension_becomes_its_storage():
    values = pa.array([bytes(range(16))], pa.uuid())
    assert normalise(values, pa.binary()).to_pylist() == [bytes(range(16))]


def test_a_run_end_encoded_column_is_decoded():
    values = pa.RunEndEncodedArray.from_arrays([2, 3], [7, 8])
    assert normalise(values, LONG).to_pylist() == [7, 7, 8]


@pytest.mark.parametrize(
    ("values", "kind", "why"),
    [
        (pa.array([2**40]), pa.int32(), "without loss"),
        (pa.array([2**53 + 1]), pa.float64(), "without loss"),
        (pa.array([1], pa.timestamp("ns", tz="UTC")), pa.timestamp("us", tz="UTC"), "without loss"),
        (pa.array([1.5]), pa.float32(), "arrives as double"),
        (pa.array([1.0]), LONG, "arrives as double"),
        (pa.array(["1"]), LONG, "arrives as string"),
        (pa.array([1]), STRING, "arrives as int64"),
        (pa.array([0], pa.timestamp("us")), pa.timestamp("us", tz="UTC"), "arrives as timestamp"),
        (pa.array([0], pa.timestamp("us", tz="UTC")), pa.timestamp("us"), "arrives as timestamp"),
        (pa.array([{"b": 1}]), pa.struct({"a": LONG}), "arrives as struct"),
        (pa.array([1, None]), pa.field("x", LONG, nullable=False), "1 of 2 values are null"),
        (pa.array([["a", None]]), list_of(STRING, nullable=False), "'x.element' .* 1 of 2 values are null"),
        (
            pa.array([[("k", None)]], pa.map_(STRING, LONG)),
            pa.map_(STRING, pa.field("value", LONG, nullable=False)),
            "'x.value' .* 1 of 1 values are null",
        ),
    ],
    ids=lambda value: str(value.type if isinstance(value, pa.Array) else value),
)
def test_what_would_change_a_value_is_refused_with_the_columns_name(values, kind, why):
    with pytest.raises(SchemaConflict, match=f"the column '?x?.*{why}"):
        normalise(values, kind)


def test_columns_are_found_by_name_and_others_are_left_out():
    batch = pa.RecordBatch.from_pydict({"c": [1], "b": ["x"], "a": [2]})
    target = pa.schema({"a": LONG, "b": STRING})
    assert Normaliser(target)(batch).equals(pa.RecordBatch.from_pydict({"a": [2], "b": ["x"]}))


@pytest.mark.parametrize(("names", "count"), [(["a", "c"], "none"), (["a", "b", "b"], "2")])
def test_a_column_that_is_missing_or_there_twice_is_named(names, count):
    batch = pa.RecordBatch.from_arrays([pa.array([1])] * len(names), names=names)
    with pytest.raises(SchemaConflict, match=f"a column 'b', but the batch has {count} of"):
        Normaliser(pa.schema({"a": LONG, "b": LONG}))(batch)


def test_a_batch_that_is_right_already_is_not_copied():
    batch = pa.RecordBatch.from_pydict({"a": [1], "b": ["x"]})
    assert Normaliser(pa.schema({"a": LONG, "b": STRING}))(batch) is batch


def test_a_null_where_the_senders_own_schema_has_none_is_refused():
    schema = pa.schema([pa.field("a", LONG, nullable=False)])
    batch = pa.RecordBatch.from_arrays([pa.array([None], LONG)], schema=schema)
    with pytest.raises(SchemaConflict, match="declared without nulls"):
        Normaliser(schema)(batch)


def test_a_schema_that_changes_in_the_stream_is_followed():
    normaliser = Normaliser(pa.schema({"a": LONG}))
    batches = [
        pa.RecordBatch.from_pydict({"a": pa.array([n], kind)})
        for n, kind in enumerate([LONG, pa.int8(), LONG])
    ]
    assert [normaliser(batch).to_pydict() for batch in batches] == [{"a": [0]}, {"a": [1]}, {"a": [2]}]


def test_a_batch_without_columns_keeps_its_rows():
    batch = pa.RecordBatch.from_pydict({"a": [1, 2, 3]})
    assert Normaliser(pa.schema([]))(batch).num_rows == 3


def test_an_arrow_schema_is_brought_to_sparks_types():
    declared = pa.schema(
        {
            "at": pa.timestamp("ns", tz="Asia/Tokyo"),
            "local": pa.timestamp("s"),
            "word": pa.dictionary(pa.int8(), pa.large_string()),
            "count": pa.uint32(),
            "big": pa.uint64(),
            "tags": pa.large_list(pa.string_view()),
            "by": pa.map_(pa.large_string(), pa.date64()),
            "price": pa.decimal32(7, 2),
            "hundreds": pa.decimal128(5, -2),
        }
    )
    assert arrow_schema(declared) == pa.schema(
        {
            "at": pa.timestamp("us", tz="UTC"),
            "local": pa.timestamp("us"),
            "word": STRING,
            "count": LONG,
            "big": pa.decimal128(20, 0),
            "tags": list_of(STRING),
            "by": pa.map_(STRING, pa.date32()),
            "price": pa.decimal128(7, 2),
            "hundreds": pa.decimal128(7, 0),
        }
    )


@pytest.mark.parametrize("kind", [pa.month_day_nano_interval(), pa.decimal256(50, 0), pa.list_view(LONG)])
def test_a_type_that_spark_has_not_is_named(kind):
    with pytest.raises(SchemaConflict, match="Spark has no type for the Arrow type"):
        arrow_schema(pa.schema({"x": kind}))


def test_a_type_of_sparks_that_arrow_has_not_is_named():
    from pyspark.sql import types

    declared = types.StructType([types.StructField("ages", types.YearMonthIntervalType())])
    with pytest.raises(SchemaConflict, match=r"the column 'ages' .* interval year to month, .*Arrow"):
        arrow_schema(declared)


def test_a_column_in_another_case_is_pointed_out():
    with pytest.raises(SchemaConflict, match="names are case-sensitive: 'fare' exists"):
        Normaliser(pa.schema({"FARE": LONG}))(pa.record_batch({"fare": [1]}))


def test_a_spark_schema_has_its_time_zone_in_utc():
    from pyspark.sql import types

    declared = types.StructType(
        [
            types.StructField("at", types.TimestampType(), nullable=False),
            types.StructField("local", types.TimestampNTZType()),
            types.StructField("tags", types.ArrayType(types.StringType(), containsNull=False)),
        ]
    )
    assert arrow_schema(declared) == pa.schema(
        [
            pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
            pa.field("local", pa.timestamp("us")),
            pa.field("tags", list_of(STRING, nullable=False)),
        ]
    )


@pytest.mark.parametrize("kind", ["VARIANT", "STRUCT<a: ARRAY<VARIANT>>", "MAP<STRING, VARIANT>"])
def test_variants_are_refused_with_what_to_do(kind):
    """Spark would give them to Arrow as structs of bytes, of which nobody else knows what they are."""
    variant = types.VariantType()
    columns = {
        "VARIANT": variant,
        "STRUCT<a: ARRAY<VARIANT>>": types.StructType([types.StructField("a", types.ArrayType(variant))]),
        "MAP<STRING, VARIANT>": types.MapType(types.StringType(), variant),
    }
    schema = types.StructType([types.StructField("v", columns[kind])])
    with pytest.raises(
        SchemaConflict, match=r"the column 'v' is .*do not carry VARIANT.*to_json.*parse_json"
    ):
        arrow_schema(schema)


VOID, PLAIN = types.NullType(), types.StringType()


@pytest.mark.parametrize(
    ("kind", "arrow"),
    [
        # Spark's types of array(), array(array()), map('k', array()) and of what has them within.
        (types.ArrayType(VOID, False), list_of(pa.null())),
        (types.ArrayType(VOID, True), list_of(pa.null())),
        (types.ArrayType(types.ArrayType(VOID, False), False), list_of(list_of(pa.null()), nullable=False)),
        (types.MapType(PLAIN, VOID, False), pa.map_(STRING, pa.null())),
        (
            types.MapType(PLAIN, types.ArrayType(VOID, False), False),
            pa.map_(STRING, pa.field("value", list_of(pa.null()), nullable=False)),
        ),
        (types.StructType([types.StructField("a", VOID, False)]), pa.struct({"a": pa.null()})),
        (types.ArrayType(PLAIN, False), list_of(STRING, nullable=False)),
    ],
    ids=str,
)
def test_an_array_or_map_of_nothing_is_one_of_nulls(kind, arrow):
    """Spark says that it has none, which Arrow refuses for its type of nulls."""
    declared = types.StructType([types.StructField("x", kind, False)])
    assert arrow_schema(declared) == pa.schema([pa.field("x", arrow, nullable=False)])


def test_a_map_without_a_type_for_its_keys_is_named():
    """As map() is, whose keys no null may be."""
    declared = types.StructType([types.StructField("m", types.MapType(VOID, VOID, False))])
    with pytest.raises(SchemaConflict, match=r"the column 'm' .* map<void,void>, .*Arrow"):
        arrow_schema(declared)
