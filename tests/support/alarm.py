"""Nodes that are scraped, and the alerts of `deploy/alerts.yml` as they judge that.

No test lives here. Each look scrapes all nodes, a stated time after the last one by the clock that
the rules see, however long it really took.
"""

import http.client
import json
import math
import os
import re
import signal
import time
from contextlib import closing
from pathlib import Path

import yaml
from commands import hightide
from promql import Evaluator, read_page
from secure_run import reaching
from three_nodes import until

from hightide import Quota, blocking

ALERTS = Path(__file__).parents[2] / "deploy" / "alerts.yml"
RULES = {rule["alert"]: rule for rule in yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]}
MINUTE_S = 60.0
SCRAPE_S = 2.0
"""A node that says nothing for so long does not answer."""


_NAME = re.compile(r"(?:# (?:HELP|TYPE|UNIT) )?([a-zA-Z_:]\w*)")
_PART = re.compile(r"_(?:bucket|sum|count)$")
NAMED = {
    _PART.sub("", name) for rule in RULES.values() for name in re.findall(r"\w+_\w+", rule["expr"])
}
"""The families that rules are about, and words that are none."""


def of_rules(page):
    """The lines of a page that rules are about: to read the others takes most of a look."""
    lines = ((line, _NAME.match(line)) for line in page.splitlines(keepends=True))
    return "".join(line for line, name in lines if name and _PART.sub("", name[1]) in NAMED)


def for_s(rule):
    """How long its expression must be true."""
    return float(re.fullmatch(r"(\d+)m", rule["for"])[1]) * MINUTE_S


class Watch:
    """Scrapes the nodes of clusters; what fires."""

    def __init__(self, *clusters, step_s=MINUTE_S):
        self.step_s = step_s
        self.now = time.time()
        self._clusters = clusters
        self._scrapes = []
        self._pending = {}
        """Alert → since when its expression has been true."""

    def look(self, meanwhile=lambda: None):
        """Scrape, once `meanwhile` is done, and judge; what is pending, or fires."""
        meanwhile()
        self.now += self.step_s
        samples = {}
        for number, cluster in enumerate(self._clusters):
            for node, address in cluster.scraped().items():
                page = page_of(address)
                read = None if page is None else of_rules(page)
                samples |= read_page(read, f"node-{node}-of-{number}")
        self._scrapes.append((self.now, samples))
        evaluator = Evaluator(self._scrapes)
        true = [name for name, rule in RULES.items() if evaluator.value(rule["expr"])]
        self._pending = {name: self._pending.get(name, self.now) for name in true}
        return set(true)

    @property
    def firing(self):
        """The alerts of which somebody is told."""
        return {
            name for name, since in self._pending.items() if self.now - since >= for_s(RULES[name])
        }

    def sum(self, name):
        """Of all series of a name, in the last scrape."""
        return Evaluator(self._scrapes).value(f"sum({name})").get(frozenset(), math.nan)


def page_of(address):
    """A node's page; None if it does not answer."""
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=SCRAPE_S)
    try:
        with closing(connection):
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()
    except (OSError, http.client.HTTPException):
        return None


def alerted(watch, name, meanwhile=lambda: None):
    """What makes an alert has happened, or happens with each look: its expression becomes true,
    and once that has lasted, it fires; not before."""
    until(lambda: name in watch.look(meanwhile), what=f"{name} is pending")
    while for_s(RULES[name]) and name not in watch.firing:
        assert name in watch.look(meanwhile), f"{name} was true, and is not any more"
    assert name in watch.firing


class Faults:
    """Files that say what goes wrong on the machine of the nodes; see `fault_hook`."""

    def __init__(self, directory):
        self._directory = directory

    def begin(self, name, value):
        (self._directory / name).write_text(str(value))

    def end(self, *names):
        for name in names:
            (self._directory / name).unlink(missing_ok=True)


class Watched:
    """What a script needs of a cluster."""

    def __init__(self, cluster, faults):
        self.cluster = cluster
        self.faults = faults
        self._known = {}
        self.scraped()

    def scraped(self):
        """{node: address}, as long as it is known; one that is gone is not forgotten."""
        rows = self.cluster.ps()
        told = {row["node"]: row["metrics"] for row in rows if row.get("metrics")}
        self._known = self._known | told
        return self._known

    def run(self, *words, **how):
        return self.cluster.run(*words, **how)

    def topic(self, name, partitions=1, replicas=1, **configs):
        """Its first partition, as it is described once somebody leads it."""
        words = [f"--config={key.replace('_', '.')}={value}" for key, value in configs.items()]
        self.run("topics", "create", name, "-p", partitions, "-r", replicas, *words)
        until(lambda: self.partition(name)["leader"] >= 0, what=f"somebody leads {name}")
        return self.partition(name)

    def partition(self, name):
        return self.cluster.describe(name)["partitions"][0]

    def damage(self, name, broker):
        """Bytes of its first records are others than they were."""
        (path,) = (self.cluster.data / f"broker-{broker}" / f"{name}-0").glob("*.log")
        with path.open("r+b") as file:
            file.seek(70)
            file.write(b"\xff" * 8)

    def frozen(self, node):
        """A node stands still until nobody hears it any more, and goes on."""
        self.cluster.send(node, signal.SIGSTOP)
        try:
            until(lambda: node not in self.serving(), what=f"broker {node} is not heard")
        finally:
            self.cluster.send(node, signal.SIGCONT)
        until(lambda: node in self.serving(), what=f"broker {node} is heard again")

    def serving(self):
        """The brokers that are not fenced, as soon as somebody says so."""
        return until(self._serving, what="somebody says which brokers serve")

    def _serving(self):
        ended = hightide(
            *("brokers", "list", "-o", "json", "--timeout", "2"),
            address=self.cluster.address,
            code=None,
        )
        rows = json.loads(ended.out) if ended.code == 0 else []
        return {row["id"] for row in rows if not row["fenced"]}

    def quotas(self, count, *, at):
        """As many records of metadata, by a node that answers."""
        with blocking.Admin(**reaching(self.cluster.address_of(at))) as admin:
            wishes = [Quota("producer_byte_rate", 1 << 40, user=f"u{n}") for n in range(count)]
            admin.alter_quotas(wishes)

    def heal(self):
        """Everything is as it was."""
        self.faults.end("slow-sync", "fail-sync", "unheard")
        for pid in self.cluster.pids().values():
            os.kill(pid, signal.SIGCONT)
        self.cluster.up_again()
