"""What the alerts' tests reckon with is reckoned as Prometheus does.

Method: pages made up by hand, and what is worked out by hand from them.
"""

import pytest
from promql import Evaluator, read_page

PAGE = """# TYPE c counter
c_total{{kind="a"}} {a}
c_total{{kind="b"}} {b}
# TYPE h histogram
h_bucket{{le="1.0"}} {low}
h_bucket{{le="2.0"}} {all}
h_bucket{{le="+Inf"}} {all}
"""
PAGES = (
    (0, PAGE.format(a=0, b=50, low=0, all=0)),
    (60, PAGE.format(a=60, b=5, low=50, all=50)),
    (120, PAGE.format(a=120, b=10, low=90, all=100)),
)


def scrapes(*gone):
    """Of one node; `gone`: the numbers of the scrapes that it did not answer."""
    return [
        (at, read_page(None if number in gone else text, "node-1"))
        for number, (at, text) in enumerate(PAGES)
    ]


def worth(expression, *gone):
    """Values alone, by the label `kind` if there is one."""
    value = Evaluator(scrapes(*gone)).value(expression)
    if not isinstance(value, dict):
        return value
    return {dict(labels).get("kind", ""): number for labels, number in value.items()}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("c_total", {"a": 120, "b": 10}),
        ('c_total{kind="a"}', {"a": 120}),
        ('c_total{kind!="a"}', {"b": 10}),
        ('c_total{kind=~"a|z"}', {"a": 120}),
        ("c_total > 100", {"a": 120}),
        ("c_total > 1000", {}),
        ("sum(c_total)", {"": 130}),
        ("min(c_total) + 1", {"": 11}),
        ("max by (kind) (c_total)", {"a": 120, "b": 10}),
        ("rate(c_total[2m])", {"a": 1.0, "b": 10 / 120}),
        ("rate(c_total[1m])", {"a": 1.0, "b": 5 / 60}),
        ("rate(c_total[10s])", {}),
        ("increase(c_total[2m])", {"a": 120, "b": 10}),
        ('predict_linear(c_total{kind="a"}[2m], 4 * 60)', {"a": 360}),
        ("time()", 120),
        ("c_total - time()", {"a": 0, "b": -110}),
        ("histogram_quantile(0.99, rate(h_bucket[2m]))", {"": 1.9}),
        ("histogram_quantile(0.5, sum by (instance, le) (rate(h_bucket[2m])))", {"": 50 / 90}),
        ("histogram_quantile(0.5, rate(nothing_bucket[2m]))", {}),
        ("c_total > 100 and on () (min(c_total) == 10)", {"a": 120}),
        ("c_total > 100 and on () (min(c_total) == 11)", {}),
        ('c_total{kind="a"} / ignoring (kind) c_total{kind="b"}', {"": 12}),
        ('c_total{kind="a"} / ignoring (kind) c_total{kind="z"}', {}),
        ('c_total{kind="a"} / c_total{kind="b"}', {}),
        ("c_total / c_total", {"a": 1, "b": 1}),
        ('c_total and on (kind) (c_total{kind="b"} == 10)', {"b": 10}),
        ('c_total{kind="a"} and ignoring (kind) c_total{kind="b"}', {"a": 120}),
        ('up{job="hightide"} == 1', {"": 1}),
        ('up{job="other"} == 1', {}),
    ],
)
def test_an_expression_is_worth_what_prometheus_says(expression, value):
    assert worth(expression) == pytest.approx(value)


def test_of_who_does_not_answer_nothing_is_left_but_that():
    assert worth("up", 2) == {"": 0}
    assert worth("c_total", 2) == {}
    assert worth("sum(c_total) != 1", 2) == {}, "nothing, and not 0"
    assert worth("rate(c_total[2m])", 2) == {"a": 1.0, "b": pytest.approx(5 / 60)}


def test_a_histogram_in_which_nothing_happened_has_no_quantile():
    still = [(at, read_page(PAGES[0][1], "node-1")) for at in (0, 60)]
    assert Evaluator(still).value("histogram_quantile(0.99, rate(h_bucket[2m])) > 0") == {}
