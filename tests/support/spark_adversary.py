"""One query, run again and again under other circumstances, and killed at named points in between.

A round is drawn from a seed: rows, topics, the kind of query, and attempts at it. Between attempts
the number of cores, AQE, shuffle partitions, `minPartitions`, the plan, retention and the number of
partitions change; in an attempt, at some request of some process, an executor, the driver or a
broker is killed (`adversary_hook`). The last attempt meets nothing. Then what the sinks hold is
what the source held, each row as often; or a typed error says why not, where the circumstances
allow one. What is never allowed: a row that is lost or there twice without a word.
"""

import json
import os
import queue
import random
import shutil
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from patience import PATIENCE_S, Patience
from secure_run import reaching, spark_options
from test_spark_sink_queries import records_of

from hightide.blocking import Admin, Producer

HERE = Path(__file__).parent
KINDS = ("copy", "copy", "copy", "files", "fan-out", "topics", "restored", "retention")
REQUESTS = {
    "Produce": 6,
    "Fetch": 2,
    "ListOffsets": 2,
    "OffsetCommit": 2,
    "OffsetFetch": 2,
    "Metadata": 1,
    "DescribeProducers": 1,
}
"""Where somebody is killed, and how often it is there."""
SHAPES = ("plain", "round robin", "by value", "by value, counted", "coalesced")
"""How rows are shared out: see `adversary_driver`."""
ALLOWED = {"restored": "SinkClash", "retention": "DataLoss"}
"""The typed error that a kind of round may end with."""


@dataclass
class Command:
    """A query: what `adversary_driver` is told."""

    master: str
    conf: dict[str, str]
    checkpoint: str
    sinks: list[dict[str, str]]
    source: dict[str, str] = field(default_factory=dict)
    files: str = ""
    shape: tuple[str, int] = ("plain", 1)
    fans_out: bool = False
    by_topic: list[str] = field(default_factory=list)


class Driver:
    """A driver process that is started again when it was killed."""

    def __init__(self, address, place):
        self._way = json.dumps(spark_options(address))
        self.place = Path(place)
        self._process = None
        self._said = queue.SimpleQueue()

    @property
    def pid(self):
        self._start()
        return self._process.pid

    def _start(self):
        if self._process is not None and self._process.poll() is None:
            return
        self._bury()
        self._said = queue.SimpleQueue()
        environment = {
            **os.environ,
            "HIGHTIDE_ADVERSARY": str(self.place),
            "PYTHONPATH": os.pathsep.join(
                [str(HERE / "adversary_hook"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
            ).rstrip(os.pathsep),
        }
        with (self.place / "driver.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "adversary_driver.py"), self._way],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._listen, args=(self._process, self._said))
        self._reader.start()

    @staticmethod
    def _listen(process, said):
        with process.stdout as lines:
            for line in lines:
                if line.startswith("ANSWER "):
                    said.put(json.loads(line.removeprefix("ANSWER ")))
        said.put(None)

    def _bury(self):
        """What is left of a process that ends by itself, or was killed."""
        if self._process is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
            self._process.wait(PATIENCE_S)
            self._reader.join()

    def run(self, command, meanwhile):
        """The error of a query, "" if it has none, None if the driver was killed."""
        self._start()
        try:
            self._process.stdin.write(json.dumps(asdict(command)) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        patience = Patience(f"the end of {command}")
        while True:
            try:
                return self._said.get(timeout=0.05)
            except queue.Empty:
                meanwhile()
                patience.check()

    def close(self):
        """End it; what Spark started ends with it."""
        self._bury()


class Round:
    """One query from its first attempt to its last."""

    def __init__(self, seed, cluster, driver):
        self.seed = seed
        self.chance = random.Random(f"spark-{seed}")
        self.kind = self.chance.choice(KINDS)
        self.story = []
        self.struck = Counter()
        """Who was killed."""
        self.errors = Counter()
        """How attempts ended."""
        self._cluster = cluster
        self._driver = driver
        self._place = driver.place / f"round-{seed}"
        self._place.mkdir()
        self._rows = Counter()
        self._filled = 0
        self._sources = {}
        self._targets = {}
        self._padding = b"." * self.chance.choice([0, 0, 0, 3_000])

    # -- topics ----------------------------------------------------------------------------------

    def _prepare(self):
        name, count = f"r{self.seed}", self.chance.choice([1, 1, 2])
        if self.kind in ("fan-out", "topics"):
            count = 2
        self._targets = {f"{name}-to-{n}": self.chance.randrange(1, 5) for n in range(count)}
        if self.kind in ("copy", "restored", "retention"):
            self._targets = dict(list(self._targets.items())[:1])
        if self.kind != "files":
            self._sources = {f"{name}-from": self.chance.randrange(1, 4)}
        with Admin(**reaching(self._cluster.address)) as admin:
            for topic, partitions in {**self._sources, **self._targets}.items():
                admin.create_topic(topic, partitions=partitions, replication_factor=3)
        self._fill(self.chance.choice([50, 300, 1_000]))

    def _fill(self, count):
        """More rows; some of them are equal."""
        numbers = range(self._filled, self._filled + count)
        self._filled += count
        values = [b"%07d" % (n - n % self.chance.choice([1, 1, 7])) for n in numbers]
        values = [value + self._padding for value in values]
        if self.kind == "files":
            directory = self._place / "in"
            directory.mkdir(exist_ok=True)
            for part in range(files := self.chance.randrange(1, 6)):
                hidden = directory / f".{self._filled}-{part}"
                hidden.write_bytes(b"".join(value + b"\n" for value in values[part::files]))
                hidden.rename(directory / f"{self._filled}-{part}.txt")
            self._rows.update((None, value) for value in values)
            return
        (source,) = self._sources
        keys = [self.chance.choice([None, value[:3], value]) for value in values]
        with Producer(
            **reaching(self._cluster.address), batch_size=self.chance.choice([500, 1 << 16])
        ) as out:
            out.send_many(source, values, keys=keys).result()
        self._rows.update(zip(keys, values, strict=True))

    def _between(self):
        """What happens to topics between two attempts."""
        match self.chance.choice(["nothing", "fill", "grow source", "grow target"]):
            case "fill":
                self._fill(self.chance.choice([10, 300]))
            case "grow source" if self._sources:
                self._grow(self._sources)
                self._fill(100)
            case "grow target":
                self._grow(self._targets)
        if self.kind == "retention":
            self._cut()

    def _grow(self, topics):
        topic = self.chance.choice(sorted(topics))
        topics[topic] += self.chance.randrange(1, 3)
        self.story.append(f"{topic} has {topics[topic]} partitions")
        with Admin(**reaching(self._cluster.address)) as admin:
            admin.create_partitions(topic, topics[topic])

    def _cut(self):
        """Retention takes records of the source, read or not."""
        ((topic, count),) = self._sources.items()
        partition = self.chance.randrange(count)
        with Admin(**reaching(self._cluster.address)) as admin:
            end = admin.offsets([(topic, partition)], -1)[topic, partition].offset
            before = self.chance.randrange(end + 1)
            if not (self._place / "checkpoint" / "offsets" / "0").exists():
                # No batch was planned: where the query begins is decided by the next attempt.
                there = [r for r in records_of(self._cluster, topic) if r.partition == partition]
                self._rows -= Counter((r.key, r.value) for r in there if r.offset < before)
            admin.delete_records({(topic, partition): before})
        self.story.append(f"records of {topic}-{partition} before {before} of {end} are deleted")

    # -- attempts --------------------------------------------------------------------------------

    def _command(self):
        chance, sinks = self.chance, []
        for topic in self._targets if self.kind != "topics" else [""]:
            sink = {"topic": topic} if topic else {}
            if self.kind == "fan-out":
                sink["sinkId"] = f"{topic}-sink"
            if chance.random() < 0.2:
                sink["sortRows"] = "true"
            sinks.append(sink)
        source = {}
        if self._sources:
            source = {"subscribe": ",".join(self._sources), "startingOffsets": "earliest"}
            if chance.random() < 0.5:
                source["maxOffsetsPerTrigger"] = str(chance.choice([200, 500]))
            if chance.random() < 0.3:
                source["minPartitions"] = str(chance.choice([2, 5]))
        return Command(
            master=f"local[{chance.choice([1, 2, 2, 4, 6])},{chance.choice([1, 1, 3])}]",
            conf={
                "spark.sql.adaptive.enabled": chance.choice(["true", "false"]),
                "spark.sql.shuffle.partitions": str(chance.choice([1, 2, 5])),
            },
            checkpoint=str(self._place / "checkpoint"),
            sinks=sinks[:1] if self.kind != "fan-out" else sinks,
            source=source,
            files=str(self._place / "in") if self.kind == "files" else "",
            shape=(chance.choice(SHAPES), chance.randrange(1, 5)),
            fans_out=self.kind == "fan-out",
            by_topic=sorted(self._targets) if self.kind == "topics" else [],
        )

    def _attempt(self, number, *, is_last):
        command = self._command()
        plan = None if is_last else self._plan(number)
        self.story.append(f"{command} {plan}")
        error = self._driver.run(command, self._revive)
        self._revive()
        (self._driver.place / "plan").unlink(missing_ok=True)
        struck = plan and (self._driver.place / f"{plan['name']}-struck").exists()
        if struck:
            self.struck[plan["whom"]] += 1
        self.story.append(f"{'struck, ' if struck else ''}{error and error[-1_500:]!r}")
        kind = typed(error)
        self.errors[kind] += 1
        allowed = ("", ALLOWED.get(self.kind), *(("killed", "other") if struck else ()))
        assert kind in allowed, f"{kind} is not to be expected\n{self}"
        return kind

    def _plan(self, number):
        """Who is to be killed where; None: nobody."""
        if self.chance.random() < 0.1:
            return None
        names, weights = zip(*REQUESTS.items(), strict=True)
        whom = self.chance.choice(["executor"] * 6 + ["driver"] * 2 + ["broker"] * 2)
        brokers = [process.pid() for process in self._cluster.nodes]
        plan = {
            "name": f"plan-{self.seed}-{number}",
            "request": self.chance.choices(names, weights)[0],
            "when": self.chance.choice(["before", "sent", "answered"]),
            "nth": self.chance.choice([1, 1, 2, 3, 5, 8]),
            "whom": whom,
            "pid": self.chance.choice(brokers) if whom == "broker" else self._driver.pid,
        }
        hidden = self._driver.place / "plan-hidden"
        hidden.write_text(json.dumps(plan))
        hidden.rename(self._driver.place / "plan")
        return plan

    def _revive(self):
        """Start brokers that were killed."""
        dead = [process.node for process in self._cluster.nodes if process.pid() is None]
        for node in dead:
            self._cluster.stop(node, kill=True)
        if dead:
            self._cluster.start(*dead)

    def run(self):
        """Raises `AssertionError` with the story if the round breaks a promise."""
        self._prepare()
        ended = ""
        attempts = self.chance.randrange(2, 5)
        for number in range(attempts):
            if number:
                self._between()
            if self.kind == "restored":
                self._keep_or_restore(number)
            ended = self._attempt(number, is_last=number == attempts - 1)
        self._checker(ended)
        shutil.rmtree(self._place)

    def _keep_or_restore(self, number):
        """An operator brings an older checkpoint back."""
        checkpoint, copy = self._place / "checkpoint", self._place / "copy"
        if copy.exists() and self.chance.random() < 0.7:
            shutil.rmtree(checkpoint)
            shutil.copytree(copy, checkpoint)
            self.story.append("the checkpoint is an older one")
        elif checkpoint.exists() and not copy.exists():
            shutil.copytree(checkpoint, copy)

    def _checker(self, ended):
        stored = {
            topic: Counter((r.key, r.value) for r in records_of(self._cluster, topic))
            for topic in self._targets
        }
        if self.kind != "fan-out":
            stored = {"all": sum(stored.values(), Counter())}
        for topic, found in stored.items():
            lost, more = self._rows - found, found - self._rows
            told = f"{topic}: {lost.total()} lost, {more.total()} too many"
            assert not more, f"{told}\n{self}"
            assert not lost or ended, f"{told}\n{self}"

    def __str__(self):
        return "\n".join([f"round {self.seed}, {self.kind}", *self.story])


def typed(error):
    """What kind of error a query ended with; "" is none."""
    if error is None:
        return "killed"
    if not error:
        return ""
    kinds = ("LayoutChanged", "SinkClash", "Superseded", "DataLoss")
    return next((kind for kind in kinds if f"{kind}:" in error), "other")
