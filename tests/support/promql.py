"""The part of PromQL that the alerts use, over pages that were scraped one after the other.

No test lives here. A scrape is what was seen at one time. Rates are taken between the first and the
last sample of a range, without Prometheus's guesses about its edges; a counter that fell began
again.
"""

import math
import re
from collections import defaultdict
from datetime import timedelta
from itertools import pairwise
from operator import add, eq, ge, gt, le, lt, mul, ne, sub, truediv

import promql_parser as p
from prometheus_client.parser import text_string_to_metric_families

COMPARED = {"==": eq, "!=": ne, ">": gt, "<": lt, ">=": ge, "<=": le}
RECKONED = {"+": add, "-": sub, "*": mul, "/": truediv}


def read_page(text, instance):
    """{name and labels: value} of a page, as Prometheus has it of an instance."""
    place = {"instance": instance, "job": "hightide"}
    if text is None:
        return {_key("up", place): 0.0}
    return {_key("up", place): 1.0} | {
        _key(sample.name, place | sample.labels): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _key(name, labels):
    return name, frozenset(labels.items())


class Evaluator:
    """What expressions are worth at the time of the last scrape."""

    def __init__(self, scrapes):
        """`scrapes`: [(seconds, {name and labels: value})], the oldest first."""
        self._scrapes = scrapes
        self._now = scrapes[-1][0]

    def value(self, expression):
        """A number, or {labels: value}; an alert is wanted where the latter is not empty."""
        return self._value(p.parse(expression))

    def _value(self, node):
        match node:
            case p.NumberLiteral():
                return node.val
            case p.ParenExpr():
                return self._value(node.expr)
            case p.VectorSelector():
                return self._newest(node)
            case p.Call():
                return getattr(self, f"_{node.func.name}")(*node.args)
            case p.AggregateExpr():
                return self._aggregate(node)
            case p.BinaryExpr():
                return self._binary(node)
        raise NotImplementedError(type(node).__name__)

    # -- what was seen ---------------------------------------------------------------------------

    def _range(self, selector, seconds):
        """{labels: [(time, value)]} of what a selector means."""
        found = defaultdict(list)
        for at, samples in self._scrapes:
            if at < self._now - seconds:
                continue
            for (name, labels), value in samples.items():
                if name == selector.name and _matches(dict(labels), selector.matchers.matchers):
                    found[labels].append((at, value))
        return found

    def _newest(self, selector):
        """What the last scrape has; of who did not answer, nothing is left."""
        return {labels: seen[-1][1] for labels, seen in self._range(selector, 0).items()}

    def _ranges(self, matrix):
        assert isinstance(matrix.range, timedelta)
        seconds = matrix.range.total_seconds()
        found = self._range(matrix.vector_selector, seconds)
        return {labels: seen for labels, seen in found.items() if len(seen) > 1}

    # -- functions -------------------------------------------------------------------------------

    def _increase(self, matrix):
        return {labels: _risen(seen) for labels, seen in self._ranges(matrix).items()}

    def _rate(self, matrix):
        return {
            labels: _risen(seen) / (seen[-1][0] - seen[0][0])
            for labels, seen in self._ranges(matrix).items()
        }

    def _predict_linear(self, matrix, ahead):
        ahead_s = self._value(ahead)
        return {
            labels: _line(seen, self._now + ahead_s)
            for labels, seen in self._ranges(matrix).items()
        }

    def _time(self):
        return self._now

    def _histogram_quantile(self, share, buckets):
        steps = defaultdict(list)
        for labels, count in self._value(buckets).items():
            others = frozenset(each for each in labels if each[0] != "le")
            steps[others].append((float(dict(labels)["le"]), count))
        found = {labels: _quantile(self._value(share), each) for labels, each in steps.items()}
        return {labels: value for labels, value in found.items() if not math.isnan(value)}

    # -- operators -------------------------------------------------------------------------------

    def _aggregate(self, node):
        kept = node.modifier.labels if node.modifier else []
        assert node.modifier is None or node.modifier.type == p.AggModifierType.By
        groups = defaultdict(list)
        for labels, value in self._value(node.expr).items():
            groups[frozenset(each for each in labels if each[0] in kept)].append(value)
        reckon = {"sum": sum, "min": min, "max": max}[str(node.op)]
        return {labels: reckon(values) for labels, values in groups.items()}

    def _binary(self, node):
        name, left, right = str(node.op), self._value(node.lhs), self._value(node.rhs)
        if name == "and":
            kept = {_matched(labels, node.modifier) for labels in right}
            return {at: left[at] for at in left if _matched(at, node.modifier) in kept}
        if isinstance(left, dict) and isinstance(right, dict):
            assert name in RECKONED, "series are compared with numbers alone"
            others = {_matched(at, node.modifier): value for at, value in right.items()}
            pairs = {_matched(at, node.modifier): value for at, value in left.items()}
            both = [at for at in pairs if at in others]
            return {at: RECKONED[name](pairs[at], others[at]) for at in both}
        if isinstance(left, dict):
            if name in COMPARED:
                return {at: value for at, value in left.items() if COMPARED[name](value, right)}
            return {at: RECKONED[name](value, right) for at, value in left.items()}
        return RECKONED[name](left, right)


def _matched(labels, modifier):
    """Those of a series that another one must have, too."""
    if modifier is None or modifier.matching is None:
        return labels
    names, is_without = modifier.matching.labels, modifier.matching.type
    left_out = is_without == p.LabelModifierType.Exclude
    return frozenset(each for each in labels if (each[0] in names) is not left_out)


def _matches(labels, matchers):
    return all(_fits(labels.get(each.name, ""), each) for each in matchers)


def _fits(value, matcher):
    if matcher.op in (p.MatchOp.Equal, p.MatchOp.NotEqual):
        return (value == matcher.value) is (matcher.op == p.MatchOp.Equal)
    is_met = re.fullmatch(matcher.value, value) is not None
    return is_met is (matcher.op == p.MatchOp.Re)


def _risen(seen):
    values = [value for _, value in seen]
    steps = pairwise(values)
    return sum(after - before if after >= before else after for before, after in steps)


def _line(seen, at):
    """Where the straight line through all samples is then."""
    count = len(seen)
    mean_t, mean_v = (sum(each) / count for each in zip(*seen, strict=True))
    spread = sum((t - mean_t) ** 2 for t, _ in seen)
    slope = sum((t - mean_t) * (v - mean_v) for t, v in seen) / spread
    return mean_v + slope * (at - mean_t)


def _quantile(share, steps):
    steps = sorted(steps)
    total = steps[-1][1]
    if not total:
        return math.nan
    below, before = 0.0, 0.0
    for bound, count in steps:
        if count >= share * total:
            if bound == math.inf:
                return below
            return below + (bound - below) * (share * total - before) / (count - before)
        below, before = bound, count
    return below
