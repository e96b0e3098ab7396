"""What a checkpoint is called. What is expected is what Hadoop's Path makes of the same text, with the host."""

from __future__ import annotations

import pytest

from spark_bridge.writing.checkpoints import Place, checkpoint_uri

APP = Place("one", "/srv/app", "ann")
HDFS = Place("one", "/srv/app", "ann", "hdfs://nn:8020")


@pytest.mark.parametrize("location", ["ck", "./ck", "ck/", "x/../ck", "/srv/app/ck", "/srv//app/./ck"])
def test_a_local_checkpoint_has_one_name_however_it_is_written(location):
    """SP-WR-4."""
    assert checkpoint_uri(location, APP) == "file://one/srv/app/ck"


@pytest.mark.parametrize("location", ["file:/srv/app/ck", "file:///srv/app/ck", "FILE:/srv/app/ck/"])
def test_a_local_checkpoint_may_be_written_as_uri(location):
    assert checkpoint_uri(location, APP) == "file://one/srv/app/ck"
    assert checkpoint_uri(location, HDFS) == "file://one/srv/app/ck"


@pytest.mark.parametrize("other", [Place("one", "/srv/other", "ann"), Place("two", "/srv/app", "ann")])
def test_one_relative_path_of_two_applications_or_hosts_is_two_checkpoints(other):
    assert checkpoint_uri("ck", other) != checkpoint_uri("ck", APP)


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("ck", "hdfs://nn:8020/user/ann/ck"),
        ("/data/./ck/", "hdfs://nn:8020/data/ck"),
        ("hdfs:///data/ck", "hdfs://nn:8020/data/ck"),
        ("hdfs://other/data/ck", "hdfs://other/data/ck"),
        ("s3a://bucket/a b/ck%20", "s3a://bucket/a b/ck%20"),
        ("abfss://box@account.dfs.core.windows.net/ck", "abfss://box@account.dfs.core.windows.net/ck"),
        ("dbfs:/data/ck", "dbfs:///data/ck"),
    ],
)
def test_checkpoints_of_other_file_systems_are_of_no_host(location, expected):
    assert checkpoint_uri(location, HDFS) == expected


def test_a_link_is_the_directory_that_it_leads_to(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    place = Place("one", str(tmp_path), "ann")
    assert checkpoint_uri("link/ck", place) == checkpoint_uri("real/ck", place)


def test_the_default_file_system_is_that_of_hadoops_configuration(tmp_path, monkeypatch):
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("HADOOP_USER_NAME", "ann")
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    assert Place.here().file_system == "file:///"
    (tmp_path / "core-site.xml").write_text(
        "<configuration><property><name>fs.defaultFS</name><value>hdfs://nn:8020</value></property></configuration>",
        "utf-8",
    )
    assert checkpoint_uri("ck", Place.here()) == "hdfs://nn:8020/user/ann/ck"
    assert checkpoint_uri("ck", Place.here("s3a://bucket")) == "s3a://bucket/user/ann/ck"
