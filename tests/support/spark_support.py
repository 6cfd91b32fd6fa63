"""What the Spark tests share: a broker in its own process, one Spark session, and a sink.

No test lives here. The broker is a real one on 127.0.0.1, its data is in a temporary directory; it
is stopped by its process id. A `Sink` keeps what each micro-batch brought, by batch id: a batch
that Spark runs again takes the place of its first run, as an idempotent sink would have it.
"""

import json
import os
import sys
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from patience import PATIENCE_MS, PATIENCE_S, size_of, wait_until
from pyspark.errors import StreamingQueryException
from secure_run import IS_ON, blocking_cluster, direct, introduce, reaching, spark_options
from warm_python import keep_spark_warm

from hightide.blocking import Admin, Producer
from hightide.net.ports import system_random
from hightide.spark import session, started
from hightide.spark.client import client_for
from hightide_broker.config import make_config, read_assignments
from hightide_broker.formatting import format_node
from hightide_broker.runtime.base.disk import RealDisk
from hightide_broker.secure_local import first_users, make_secrets
from hightide_cli import processes
from hightide_cli.secure_cluster import CERTIFICATES, keys_of

IDLE_S = 2.0
FROM_START = {"startingOffsets": "earliest"}
SAID_OF_EVERY_QUERY = (
    "incubator modules",
    "default log4j profile",
    "Setting default log level",
    "To adjust logging level",
    "NativeCodeLoader",
    "does not yet fully support pandas",
    "spark.sql.adaptive.enabled is not supported",
    "Failed to cancel job group",
    # Of one that is stopped within a batch:
    "BrokenPipeError",
    "Aborting",
    "aborting",
    "TaskKilled",
    "Incomplete task",
)


def noise_in(said):
    """What a session begins with, and a query ends with, although all is well."""
    return [words for words in SAID_OF_EVERY_QUERY if words in said]


def until(condition, what, query=None, progress=lambda: None):
    """Poll until the condition holds and return what it gave; fails with the query's own error. A
    query that goes from batch to batch is waited for as long as it does."""

    def look():
        found = condition()
        if not found and query is not None and (error := query.exception()) is not None:
            raise error
        return found

    return wait_until(look, what, progress=lambda: (progress(), query and progress_of(query)))


def progress_of(query):
    """What changes as long as a query does something."""
    last = query.lastProgress
    return query.status["message"], last and last["batchId"]


def until_ended(query):
    """Wait for the end of a query; fails with its own error."""
    until(lambda: not query.isActive, "the query ends", query)
    if (error := query.exception()) is not None:
        raise error


class Served:
    """Brokers at an address, and what a test does with their topics."""

    def __init__(self, address: str = "") -> None:
        self.address = address
        self._topics = 0

    def topic(self, partitions=1, name=None, **configs):
        """A new topic; its name."""
        self._topics += 1
        name = name or f"topic-{self._topics}"
        with Admin(**reaching(self.address), default_api_timeout_ms=PATIENCE_MS) as admin:
            told = {key.replace("_", "."): value for key, value in configs.items()}
            admin.create_topic(name, partitions=partitions, configs=told)
        return name

    def delete_topic(self, name):
        with Admin(**reaching(self.address)) as admin:
            admin.delete_topic(name)

    def topic_id(self, name):
        with Admin(**reaching(self.address)) as admin:
            return admin.describe_topic(name).topic_id

    def grow(self, name, partitions):
        with Admin(**reaching(self.address)) as admin:
            admin.create_partitions(name, partitions)

    def delete_records(self, name, before, partition=0):
        with Admin(**reaching(self.address)) as admin:
            admin.delete_records({(name, partition): before})

    def fill(self, name, values, partition=0, **options):
        """Acknowledged records of one partition; where they are."""
        with Producer(**reaching(self.address), **options) as producer:
            deliveries = [producer.send(name, value, partition=partition) for value in values]
            return [delivery.result(PATIENCE_S).offset for delivery in deliveries]


class Broker(Served):
    """A broker process; it keeps its port and its data when it is started again."""

    def __init__(self, directory: Path, *settings: str, secure: bool = IS_ON) -> None:
        super().__init__()
        self.directory = directory
        self._settings = settings
        self._certificates = directory / CERTIFICATES if secure else None
        self.port = 0
        self.process = None

    def start(self):
        ready = self.directory / "ready.json"
        ready.unlink(missing_ok=True)
        keys = [f"listen.port={self.port}", f"log.dirs={self.directory / 'data'}", *self._settings]
        users = []
        if self._certificates is not None:
            make_secrets(self._certificates, [1])
            users = first_users(self._certificates)
            keys += keys_of(self.directory, 1, 0)
        config = make_config(read_assignments(tuple(keys)))
        format_node(config, RealDisk(), system_random(), users=users)
        command = [sys.executable, "-m", "hightide_cli.main", "server", "start"]
        command += [word for key in keys for word in ("--set", key)]
        with (self.directory / "log").open("ab") as log:
            self.process = processes.spawn([*command, "--ready-file", str(ready)], log)
        log = self.directory / "log"
        until(
            lambda: ready.exists() or self.process.poll() is not None,
            "the broker serves",
            progress=lambda: size_of(log),
        )
        assert ready.exists(), (self.directory / "log").read_text()
        self.port = json.loads(ready.read_text())["port"]
        self.address = f"127.0.0.1:{self.port}"
        if self._certificates is not None:
            introduce(self.address, self.directory)

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE_S)
            finally:
                self.process.kill()


@contextmanager
def running(broker):
    """A broker that serves; its process is ended however the block ends, or if it never serves."""
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


class Sink:
    """(topic, partition, offset, value) of each row, by batch; `gate` shut: a batch waits."""

    def __init__(self) -> None:
        self.batches = {}
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()

    def __call__(self, frame, batch):
        rows = frame.select("topic", "partition", "offset", "value").collect()
        self.batches[batch] = [(r[0], r[1], r[2], bytes(r[3])) for r in rows]
        self.waiting.set()
        assert self.gate.wait(PATIENCE_S), "the test never opened the gate"

    @property
    def rows(self):
        return sorted(row for rows in self.batches.values() for row in rows)

    @property
    def values(self):
        return [row[3] for row in self.rows]

    @property
    def sizes(self):
        """Rows of each batch that had any, in order."""
        return [len(rows) for _, rows in sorted(self.batches.items()) if rows]


def warnings_in(caplog):
    """What the source said of losses, in the log of this process."""
    return [record.getMessage() for record in caplog.records if record.name == "hightide.spark"]


def numbered(start, stop):
    return [b"%06d" % number for number in range(start, stop)]


def batch_query(spark, broker, *topics, **options):
    reader = spark.read.format("hightide").options(**spark_options(broker.address))
    return reader.option("subscribe", ",".join(topics)).options(**options).load()


class Stream:
    """Streaming queries of one broker with one checkpoint, one after the other. Their options are
    the source's, `startingOffsets` is earliest unless said otherwise."""

    def __init__(self, spark, broker, checkpoint) -> None:
        self.checkpoint = checkpoint
        self._spark = spark
        self._broker = broker
        self._queries = []

    def start(self, sink, *, available_now=False, schema=None, **options):
        """A query that runs until `close`, at the latest."""
        reader = self._spark.readStream.format("hightide").options(**FROM_START | options)
        reader = reader if schema is None else reader.schema(schema)
        frame = reader.options(**spark_options(self._broker.address)).load()
        writer = frame.writeStream.foreachBatch(sink)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        query = started(writer.trigger(availableNow=True) if available_now else writer)
        self._queries.append(query)
        return query

    def hold(self, **options):
        """A query, and its sink, which keeps it in its first batch until the gate opens."""
        sink = Sink()
        sink.gate.clear()
        query = self.start(sink, **options)
        until(sink.waiting.is_set, "the first batch", query)
        return query, sink

    def run(self, sink=None, **options):
        """The sink of a query that ended where the topics end now."""
        sink = sink or Sink()
        query = self.start(sink, available_now=True, **options)
        until_ended(query)
        return sink

    def logged(self, kind):
        """The batches in the checkpoint's `offsets` or `commits`."""
        return logged(self.checkpoint, kind)

    def await_commits(self, query, count=1):
        until(lambda: len(self.logged("commits")) >= count, f"{count} commits", query)

    def position(self):
        """The source's own JSON of the last batch that was committed."""
        batch = self.logged("commits")[-1]
        return json.loads((self.checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1])

    def close(self):
        for query in self._queries:
            query.stop()


def failure_of(query):
    """The text of what ended a query."""
    until(lambda: not query.isActive, "the query's end")
    error = query.exception()
    assert isinstance(error, StreamingQueryException)
    return str(error)


def pause(query):
    """Long enough that an idle query looks for news."""
    since = time.monotonic()
    until(lambda: time.monotonic() > since + IDLE_S, "a pause", query)


def logged(checkpoint, kind):
    """The batches in a checkpoint's `offsets` or `commits`."""
    directory = Path(checkpoint) / kind
    names = os.listdir(directory) if directory.exists() else []
    return sorted(int(name) for name in names if name.isdigit())


@pytest.fixture(scope="session")
def spark():
    keep_spark_warm()
    made = session("hightide-tests", "local[2]")
    try:
        made.sparkContext.setLogLevel("OFF")
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def cluster():
    """Three brokers in this process."""
    with blocking_cluster(3) as made:
        yield made
        client_for(*direct(made.bootstrap)).close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with running(Broker(tmp_path_factory.mktemp("broker"))) as made:
        yield made


@pytest.fixture
def own_broker(tmp_path):
    """A broker that the test may stop and start."""
    directory = tmp_path / "broker"
    directory.mkdir()
    with running(Broker(directory)) as made:
        yield made


@pytest.fixture
def stream(spark, broker, tmp_path):
    with closing(Stream(spark, broker, tmp_path / "checkpoint")) as made:
        yield made
