"""Spark's client under TLS: rows go to a topic and come back; who is turned away hears why.

Method: a broker process whose listeners are both under TLS, with certificates that the test makes;
paths are the only thing that Spark is told of them.
"""

from contextlib import closing

import pytest

pytest.importorskip("pyspark")

from certificates import Authority
from commands import StartedCluster
from patience import PATIENCE_S
from spark_support import Broker, spark  # noqa: F401

from hightide import AuthenticationFailed, blocking, read_client_config
from hightide.net.login import Way
from hightide.net.tls import Tls, TlsFiles
from hightide.spark.client import BlockingClient

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.slow]


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secured(tmp_path_factory, authority):
    node, shown = authority.issue("node-1"), authority.issue("broker")
    keys = {
        "internal.listen.port": "0",
        "internal.security.protocol": "SSL",
        "internal.ssl.ca.location": node.authorities,
        "internal.ssl.certificate.location": node.certificate,
        "internal.ssl.key.location": node.key,
        "security.protocol": "SSL",
        "ssl.client.auth": "required",
        "ssl.ca.location": shown.authorities,
        "ssl.certificate.location": shown.certificate,
        "ssl.key.location": shown.key,
    }
    settings = [f"{name}={value}" for name, value in keys.items()]
    made = Broker(tmp_path_factory.mktemp("broker"), *settings, secure=False)
    made.start()
    yield made
    made.process.kill()
    made.process.wait()


def test_rows_go_to_a_topic_and_come_back(spark, secured, authority):  # noqa: F811
    mine = authority.issue("spark")
    options = {
        "bootstrap.servers": f"127.0.0.1:{secured.port}",
        "kafka.security.protocol": "SSL",
        "ssl.ca.location": mine.authorities,
        "ssl.certificate.location": mine.certificate,
        "ssl.key.location": mine.key,
    }
    with blocking.Admin(
        options["bootstrap.servers"],
        security_protocol="SSL",
        ssl_ca_location=mine.authorities,
        ssl_certificate_location=mine.certificate,
        ssl_key_location=mine.key,
    ) as admin:
        admin.create_topic("t", partitions=2)
    rows = spark.range(5000).selectExpr("cast(id AS string) AS value")
    rows.write.format("hightide").options(**options, topic="t").mode("append").save()
    read = spark.read.format("hightide").options(**options, subscribe="t").load()
    found = read.selectExpr("cast(value AS string) AS value").collect()
    assert sorted(int(row.value) for row in found) == [*range(5000)]


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    """A cluster whose users log in, and the options of its administrator."""
    data = tmp_path_factory.mktemp("closed") / "data"
    made = StartedCluster(data, "--port", "0", "-n", "3", "--secure", "--topic", "t:2:3")
    told = read_client_config(data / "client.toml")
    options = {name.replace("_", "."): value for name, value in told.items()}
    yield options
    made.end()


def test_a_query_reads_and_writes_as_a_user_that_logs_in(spark, closed, tmp_path):  # noqa: F811
    rows = spark.range(3000).selectExpr("cast(id AS string) AS value")
    rows.write.format("hightide").options(**closed, topic="t").mode("append").save()
    read = spark.readStream.format("hightide").options(**closed, startingOffsets="earliest")
    query = (
        read.option("subscribe", "t")
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "found"))
    )
    query.awaitTermination()
    assert query.exception() is None
    assert spark.read.parquet(str(tmp_path / "found")).count() == 3000
    with pytest.raises(Exception, match=r"unknown option|no option|did you mean"):
        spark.read.format("hightide").options(
            **{**closed, "sasl.password": "shown in pages"}, subscribe="t"
        ).load()


@pytest.mark.parametrize(
    ("shows", "said"), [(False, "certificate required"), (True, "is not believed")]
)
def test_who_is_turned_away_hears_why_at_once(secured, authority, tmp_path, shows, said):
    files = Authority(tmp_path).believed if shows else TlsFiles(authorities=authority.file)
    with (
        closing(BlockingClient(f"127.0.0.1:{secured.port}", Way(Tls(files)))) as client,
        pytest.raises(AuthenticationFailed, match=said),
    ):
        client.refresh(None, timeout_s=PATIENCE_S)
