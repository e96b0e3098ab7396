"""The options of the data source. SP-OPT-1: what is wrong is one sentence, with what is known."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from netchannel import Tls
from netchannel.values import Heads
from spark_bridge import DataLost, OptionError
from spark_bridge.options import OPTIONS, Source, read_options, write_options
from spark_bridge.reading.offsets import initial

HERE = {"endpoint": "10.0.0.5:7000", "channels": "flights"}


def refused(read) -> str:
    with pytest.raises(OptionError) as error:
        read()
    text = str(error.value)
    assert "\n" not in text
    assert not text.endswith(".")
    return text


def test_an_unknown_option_is_named_with_the_nearest_and_the_known_ones():
    """SP-OPT-1."""
    said = refused(lambda: read_options(HERE | {"startingofset": "latest"}, "streaming read"))
    assert "no option 'startingofset' for a streaming read: did you mean startingOffsets?" in said
    known = said.partition("(known: ")[2].rstrip(")").split(", ")
    assert known == [option.name for option in OPTIONS if "streaming read" in option.uses]


def test_an_option_of_another_use_is_named_as_such():
    """SP-OPT-1."""
    said = refused(lambda: write_options(HERE | {"maxRowsPerTrigger": "5"}, "batch write"))
    assert "maxRowsPerTrigger is for a streaming read, but this is a batch write" in said
    assert "did you mean" not in refused(lambda: read_options(HERE | {"xyzzy": "1"}, "batch read"))


@pytest.mark.parametrize(
    ("name", "value", "takes"),
    [
        ("maxRowsPerTrigger", "many", "a whole number, at least 1"),
        ("maxRowsPerTrigger", "0", "a whole number, at least 1"),
        ("maxBytesPerTrigger", "64q", "a number of bytes, such as 1048576 or 64m"),
        ("minPartitions", "-1", "a whole number, at least 1"),
        ("failOnDataLoss", "yes", "true or false"),
        ("includeMetadata", "", "true or false"),
        ("connectTimeout", "soon", "a number of seconds, more than 0"),
        ("connectTimeout", "inf", "a number of seconds, more than 0"),
        ("connectTimeout", "0", "a number of seconds, more than 0"),
        ("columns", " , ", "distinct names, separated by commas"),
        ("startingOffsets", "first", "beginning, earliest, latest, or JSON"),
        ("startingOffsets", '{"flights": true}', "beginning, earliest, latest, or JSON"),
        ("startingOffsets", '{"flights": {"seq": 1}}', "beginning, earliest, latest, or JSON"),
        (
            "startingOffsets",
            '{"flights": {"stream": "s", "seq": true}}',
            "beginning, earliest, latest, or JSON",
        ),
        (
            "startingOffsets",
            '{"flights": {"stream": null, "seq": 4}}',
            "beginning, earliest, latest, or JSON",
        ),
        ("startingOffsets", f'{{"flights": {1 << 63}}}', "beginning, earliest, latest, or JSON"),
        ("startingOffsets", f'{{"flights": {"1" * 5000}}}', "beginning, earliest, latest, or JSON"),
        ("startingOffsets", "[" * 100_000, "beginning, earliest, latest, or JSON"),
        ("startingTimestamp", "yesterday", "a time with its zone"),
        ("startingTimestamp", "2026-01-01T00:00:00", "a time with its zone"),
        ("startingTimestamp", "2999-01-01T00:00:00Z", "a time in the past"),
        ("maxRowsPerTrigger", str(1 << 63), "a whole number, at least 1 and below 2^63"),
        ("maxBytesPerTrigger", "99999999999999g", "a number of bytes, such as 1048576 or 64m"),
        ("consumer", " ", "1 to 255 printable characters"),
        ("consumer", "c" * 256, "1 to 255 printable characters"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_with_what_is_taken(name, value, takes):
    """SP-OPT-1."""
    said = refused(lambda: read_options(HERE | {name.lower(): value}, "streaming read"))
    assert said.startswith(f"the option {name} takes {takes}")
    assert repr(value) in said


@pytest.mark.parametrize(
    ("name", "value", "takes"),
    [
        ("txnAppId", "a\nb", "1 to 4096 printable characters"),
        ("txnAppId", "a" * 4097, "1 to 4096 printable characters"),
        ("txnVersion", str(1 << 63), "a whole number, at least 0 and below 2^63"),
    ],
)
def test_what_cannot_name_a_write_is_refused_before_it_begins(name, value, takes):
    """SP-OPT-1."""
    given = HERE | {"txnAppId": "app", "txnVersion": "1"} | {name: value}
    assert takes in refused(lambda: write_options(given, "batch write"))


def test_a_secret_and_a_single_channel_are_what_was_given():
    """White space is part of them, and an id may look as if it had an endpoint."""
    options = read_options({"endpoint": "h:1", "channel": " a@h:1", "secret": "open\n"})
    assert options.connection.secret == "open\n"
    assert options.connection.sources == (Source(" a@h:1", "h:1", " a@h:1"),)


def test_a_missing_endpoint_or_channel_says_what_to_give():
    """SP-OPT-1."""
    assert "needs the option 'endpoint'" in refused(lambda: read_options({"channels": "a"}))
    assert "needs the option 'channels'" in refused(lambda: read_options({"endpoint": "h:1"}))
    assert "netchannel://host:port/channel1" in refused(lambda: write_options({}, "batch write"))


def test_an_address_that_is_none_is_refused():
    """SP-OPT-1."""
    assert "'nowhere' is not host:port" in refused(lambda: read_options(HERE | {"endpoint": "nowhere"}))
    assert "printable UTF-8" in refused(lambda: read_options({"endpoint": "h:1", "channel": "a\tb"}))


def test_a_secret_is_never_shown():
    said = refused(lambda: read_options(HERE | {"secret": ""}, "batch read"))
    assert said == "the option secret takes a non-empty string, not the given value"
    options = read_options(HERE | {"secret": "open sesame"}, "batch read")
    assert options.connection.secret == "open sesame"
    assert "sesame" not in repr(options)


def test_names_are_read_in_any_case_and_defaults_hold():
    options = read_options({"ENDPOINT": "h:1", "Channels": "a", "maxrowspertrigger": "7"}, "streaming read")
    assert (options.max_rows, options.max_bytes, options.consumer) == (7, None, "spark")
    assert (options.fail_on_data_loss, options.metadata, options.starting) == (True, False, "beginning")
    assert read_options(HERE | {"maxBytesPerTrigger": "64m"}, "streaming read").max_bytes == 64 << 20
    assert read_options(HERE | {"maxBytesPerTrigger": "2GB"}, "streaming read").max_bytes == 2 << 30


def test_the_schema_may_be_asked_for_before_it_is_known_what_for():
    read_options(HERE | {"maxRowsPerTrigger": "1"})
    read_options(HERE | {"endingOffsets": "latest"})
    assert "keyColumns is for a batch write" in refused(lambda: read_options(HERE | {"keyColumns": "a"}))


@pytest.mark.parametrize("slashes", ["//", "/"])
def test_a_url_says_where_and_which(slashes):
    """Spark's path normalisation may have taken one of the slashes."""
    options = read_options({"path": f"netchannel:{slashes}h1:1,[::1]:2/a,rows/0,b%2Cc"}, "batch read")
    assert options.connection.sources == tuple(
        sorted(
            Source(f"{channel}@{endpoint}", endpoint, channel)
            for channel in ("a", "rows/0", "b,c")
            for endpoint in ("h1:1", "[::1]:2")
        )
    )
    assert read_options({"path": f"netchannel:{slashes}h:1/a"}).connection.sources == (
        Source("a", "h:1", "a"),
    )


@pytest.mark.parametrize(
    "path", ["/data/flights", "netchannel://h:1", "netchannel://h:1/", "netchannel:///a"]
)
def test_a_path_that_is_no_url_is_refused(path):
    """SP-OPT-1."""
    assert "is not a URL such as netchannel://host:port/" in refused(lambda: read_options({"path": path}))


def test_url_and_options_do_not_go_together():
    """SP-OPT-1."""
    assert "not both" in refused(lambda: read_options(HERE | {"path": "netchannel://h:1/a"}))
    assert "not both" in refused(lambda: read_options(HERE | {"channel": "b"}))


def test_channels_are_read_at_every_endpoint_or_where_they_say():
    options = read_options({"endpoint": "h:1, h:2", "channels": "rows/0@h:1, rows/1@h:2, who@home"})
    assert options.connection.sources == (
        Source("rows/0", "h:1", "rows/0"),
        Source("rows/1", "h:2", "rows/1"),
        Source("who@home@h:1", "h:1", "who@home"),
        Source("who@home@h:2", "h:2", "who@home"),
    )
    assert "twice" in refused(lambda: read_options({"endpoint": "h:1", "channels": "a, a@h:1"}))


def test_offsets_are_of_channels_that_are_read():
    """SP-OPT-1."""
    given = {"flights": {"stream": "s", "seq": 3}}
    assert read_options(HERE | {"startingOffsets": json.dumps(given)}).starting == given
    assert read_options(HERE | {"startingOffsets": " Latest "}).starting == "latest"
    said = refused(lambda: read_options(HERE | {"startingOffsets": '{"fligths": 3}'}))
    assert "'fligths', which is not one of the channels to read: flights" in said
    assert "not 'earliest'" in refused(lambda: read_options(HERE | {"endingOffsets": "earliest"}))


def test_tls_is_three_files_and_perhaps_a_name():
    files = {"tls.certificate": "c.pem", "TLS.KEY": "k.pem", "tls.authority": "a.pem"}
    assert read_options(HERE | files).connection.tls == Tls("c.pem", "k.pem", "a.pem")
    named = read_options(HERE | files | {"tls.servername": "flights"}).connection.tls
    assert named == Tls("c.pem", "k.pem", "a.pem", "flights")
    assert "together" in refused(lambda: read_options(HERE | {"tls.key": "k.pem"}))


def test_what_spark_adds_is_no_option_of_ours():
    given = HERE | {"checkpointLocation": "/ck", "queryName": "q"}
    written = write_options(given, "streaming write")
    assert (written.checkpoint, written.query_name) == ("/ck", "q")


def test_the_end_of_a_stream_is_asked_for_in_a_batch_write_only():
    assert write_options(HERE, "batch write").end
    assert not write_options(HERE | {"endOfStream": "false"}, "batch write").end
    assert not write_options(HERE, "streaming write").end
    said = refused(lambda: write_options(HERE | {"endOfStream": "true"}, "streaming write"))
    assert "endOfStream is for a batch write" in said


def test_options_that_need_each_other_say_so():
    """SP-OPT-1."""
    assert "txnAppId and txnVersion" in refused(
        lambda: write_options(HERE | {"txnAppId": "a"}, "batch write")
    )
    loose = {"deliveryGuarantee": "At-Least-Once"}
    assert not write_options(HERE | loose, "streaming write").exactly_once
    assert "keyColumns needs" in refused(
        lambda: write_options(HERE | loose | {"keyColumns": "id"}, "streaming write")
    )


def test_a_write_at_least_once_cannot_be_done_once_under_a_version():
    """SP-OPT-1."""
    given = HERE | {"deliveryGuarantee": "at-least-once", "txnAppId": "app"}
    said = refused(lambda: write_options(given | {"txnVersion": "1"}, "batch write"))
    assert "txnAppId and txnVersion need deliveryGuarantee=exactly-once" in said
    assert write_options(given, "streaming write").txn_app_id == "app"


def test_a_start_is_given_once():
    given = HERE | {"startingOffsets": "latest", "startingTimestamp": "2026-01-01T00:00:00Z"}
    assert "startingOffsets or startingTimestamp, not both" in refused(lambda: read_options(given))


def test_what_spark_says_of_a_table_is_no_misspelt_option_and_the_way_out_is_said():
    """As of CREATE TABLE, and as of a table without options that is read later."""
    said = "CREATE TEMPORARY VIEW name USING netchannel OPTIONS"
    assert said in refused(lambda: read_options(HERE | {"provider": "netchannel", "owner": "me"}))
    assert said in refused(lambda: read_options({}))


def test_an_option_that_no_source_can_have_leads_to_what_can_do_it():
    said = refused(lambda: read_options(HERE | {"stopAtEnd": "true"}, "streaming read"))
    assert "spark_bridge.stop_at_end(query)" in said


PLACES = st.one_of(
    st.sampled_from(["beginning", "earliest", "latest", None, True]),
    st.integers(),
    st.floats(),
    st.fixed_dictionaries(
        {},
        optional={
            "stream": st.sampled_from(["s", "other", None, 1]),
            "seq": st.integers(-1, 12) | st.none() | st.booleans(),
            "ended": st.integers(-1, 2) | st.text() | st.none(),
        },
    ),
)
VALUES = st.one_of(
    st.text(st.characters(), max_size=8),
    st.sampled_from(
        ["\0", "\ud800", "1e999", "64m", "true", "2026-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00"]
    ),
    st.dictionaries(st.sampled_from(["flights", "other"]), PLACES, max_size=2).map(json.dumps),
)


@given(st.dictionaries(st.sampled_from([option.name for option in OPTIONS] + ["path"]), VALUES, max_size=3))
@example({"startingOffsets": '{"flights": {"stream": "s", "seq": 1, "ended": "x"}}'})
@example({"tls.certificate": "\0"})
@example({"path": "netchannel://h:1/%00"})
def test_whatever_options_say_it_is_read_or_an_option_error(given):
    """SP-OPT-1: no error of Python's own, also of what an offset stands for."""
    heads = Heads("s", 2, 10, 10, 100, False, None)
    given = ({} if "path" in given else HERE) | given
    for use in ("batch read", "streaming read"):
        with suppress(OptionError):
            found = read_options(given, use)
            for at in (found.starting, found.ending):
                for place in [at] if isinstance(at, str) else at.values():
                    for there in (heads, None):
                        with suppress(DataLost, OptionError):
                            initial("flights", place, there).json()
    for use in ("batch write", "streaming write"):
        with suppress(OptionError):
            write_options(given, use)
