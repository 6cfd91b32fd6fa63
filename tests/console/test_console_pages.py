"""What pages make of what they are told: lists that stay short, times, records that are looked for,
charts.

Method: as `test_console_browser.py`; functions of the pages' modules are asked in the browser.
"""

import shlex

import pytest
from browserkit import ASK_S, NEEDS_ONE
from patience import wait_until
from secure_run import open_only, reaching

from hightide import blocking

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    NEEDS_ONE,
    open_only("who may see what has a test of its own"),
]


def test_times_are_told_by_the_two_units_that_say_most(tab):
    tab.go("/", heading="Cluster")
    told = tab.page.evaluate(
        "import('/static/parts.js').then(parts => "
        "[-1, 0, 59_900, 61_000, 3_600_000, 90_061_000].map(parts.lasting))"
    )
    assert told == ["?", "0.0 s", "59.9 s", "1 min 1 s", "1 h 0 min", "1 d 1 h"]


NAMES = ["orders", "a-1.b_c", "two words", "x; rm -rf ~", "$(id)", "it's", "`id`", "ö", "a\nb"]


def test_a_name_in_a_command_is_one_word_whatever_is_in_it(tab):
    tab.go("/", heading="Cluster")
    told = tab.page.evaluate(
        "names => import('/static/parts.js').then(({ word }) => names.map(word))", NAMES
    )
    assert told[:2] == NAMES[:2]
    assert [shlex.split(each) for each in told] == [[name] for name in NAMES]
    tab.go("/timeline/x;id/0", heading="timeline")
    assert tab.text(".command code") == "hightide trace replay --topic 'x;id'"


GATHERED = """
import('/static/parts.js').then(({ gathered }) => {
  const event = (kind, node, topic, partition, ms) => ({ kind, node, topic, partition, ms });
  const busy = [0, 1, 2].flatMap((n) => [
    event("leads", 1, "t", n, n), event("follows", 2, "t", n, n),
  ]);
  const others = [
    event("leads", 1, "u", 0, 3), event("leads", 2, "t", 3, 3), event("leads", 1, "t", 0, 4),
    event("leads", 1, "t", 9, 5000), event("truncated", 1, "t", 0, 5001),
    event("truncated", 1, "t", 1, 5001), event("quorum_vote", 1, "", -1, 5002),
    event("quorum_vote", 1, "", -1, 5002),
  ];
  return gathered([...busy, ...others]).map(({ first, more }) => [first.kind, first.topic, more]);
})
"""


def test_what_befell_many_partitions_at_once_is_one_line(tab):
    tab.go("/", heading="Cluster")
    assert tab.page.evaluate(GATHERED) == [
        ["leads", "t", 2],
        ["follows", "t", 2],
        ["leads", "u", 0],
        ["leads", "t", 0],
        ["leads", "t", 0],
        ["leads", "t", 0],
        ["truncated", "t", 0],
        ["truncated", "t", 0],
        ["quorum_vote", "", 0],
        ["quorum_vote", "", 0],
    ]


FOLDED = """
import('/static/parts.js').then(({ condensed }) => {
  const row = (kind, node, topic, ms, more) => ({ first: { kind, node, topic, ms }, more });
  const dies = [0, 1, 2, 3, 4].map((n) => row("leads", 1, `t${n}`, n, 2));
  const others = [
    row("node_started", 1, "", 1, 0), row("leads", 2, "t0", 2, 1), row("leads", 2, "t1", 3, 0),
    row("truncated", 1, "t0", 4, 0), row("leads", 1, "t0", 2000, 0),
  ];
  return condensed([...dies, ...others]).map(({ first, more, topics }) => [
    first.kind, first.topic, more, topics ?? 1]);
})
"""


def test_what_befell_many_topics_at_once_is_one_line(tab):
    tab.go("/", heading="Cluster")
    assert tab.page.evaluate(FOLDED) == [
        ["leads", "t0", 14, 5],
        ["node_started", "", 0, 1],
        ["leads", "t0", 1, 1],
        ["leads", "t1", 0, 1],
        ["truncated", "t0", 0, 1],
        ["leads", "t0", 0, 1],
    ]


KEPT = """
import('/static/store.js').then(({ newest }) => {
  const event = (seen, kind, topic) => ({ seen, kind, topic });
  const rare = [event(0, "quorum_vote", ""), event(1, "leads", "mine"), event(2, "leads", "other")];
  const flood = Array.from({ length: 2000 }, (_, n) => event(n + 3, "leads", "flood"));
  return newest([...rare, ...flood], "mine").map((each) => each.seen).slice(0, 3);
})
"""


def test_much_that_happens_elsewhere_pushes_out_nothing_of_quorum_and_open_topic(tab):
    tab.go("/", heading="Cluster")
    assert tab.page.evaluate(KEPT) == [0, 1, 3]


TIMES = """
import('/static/records.js').then(({ timeOf }) => ["2026-01-31 12:00", "2026-01-31T12:00:00.5Z",
  "2026-01-31T12:00+01:00", "2026-01-31", "tomorrow", "-5"].map((text) => {
    try { return timeOf(text); } catch (error) { return error.message; }
  }))
"""


def test_a_time_is_read_in_utc_and_what_is_none_is_refused_in_words(tab):
    tab.go("/", heading="Cluster")
    *times, tomorrow, minus = tab.page.evaluate(TIMES)
    noon = 1_769_860_800_000
    assert times == [noon, noon + 500, noon - 3_600_000, noon - 43_200_000]
    for said, what in ((tomorrow, "tomorrow"), (minus, "-5")):
        assert said.startswith(f"From is {what}, expected newest, oldest, an offset, or a time")


def searched(tab, start, key=""):
    """The offsets that a search finds, and what is said of it."""
    tab.page.get_by_label("From").fill(start)
    tab.page.get_by_label("Key has").fill(key)
    with tab.page.expect_response(lambda answer: "/api/messages" in answer.url):
        tab.page.get_by_role("button", name="Search").click()
    tab.page.wait_for_timeout(100)
    return found_in(tab), tab.text("main")


def found_in(tab):
    return [
        int(cell.replace(",", ""))
        for cell in tab.page.eval_on_selector_all(
            "[aria-label=Records] tbody th", "all => all.map(each => each.textContent)"
        )
    ]


def test_records_are_found_by_offset_time_and_key_and_followed(tab, cluster):
    cluster.run("topics", "create", "found", "--partitions", "1")
    keyed = [b"k-%d:%d\n" % (n % 100, n) for n in range(120)]
    cluster.run("produce", "found", "-K", ":", stdin=b"".join(keyed))
    tab.go("/messages/found/0", heading="messages")
    tab.until("document.querySelectorAll('tbody tr').length === 50")
    assert found_in(tab) == [*range(119, 69, -1)], "the newest, unasked"
    assert searched(tab, "oldest")[0] == [*range(49, -1, -1)]
    tab.page.get_by_role("button", name="Go on from 50").click()
    tab.until("document.querySelector('tbody th').textContent === '99'")
    assert searched(tab, "110")[0] == [*range(119, 109, -1)]
    found, said = searched(tab, "newest", "k-7")
    assert found == [107, *range(79, 69, -1), 7], "wherever they lie"
    assert "120 records looked at" in said
    assert searched(tab, "oldest", "k-7")[0] == found
    tab.page.get_by_label("From").fill("soon")
    tab.page.get_by_role("button", name="Search").click()
    tab.until("document.querySelector('[role=alert]')?.textContent.startsWith('From is soon')")
    tab.page.get_by_label("Key has").fill("")
    tab.page.get_by_label("From").fill("newest")
    tab.page.get_by_role("button", name="Live tail").click()
    tab.until("document.querySelector('tbody th')?.textContent === '119'")
    cluster.run("produce", "found", stdin=b"late\n")
    tab.until("document.querySelector('tbody th').textContent === '120'")
    assert found_in(tab) == [*range(120, 69, -1)]
    when = tab.page.inner_text("tbody td:nth-child(2)")
    assert searched(tab, when)[0] == [120], "by its time, as the page tells it"


def test_a_lesson_is_stepped_by_keyboard_and_nobody_is_behind_who_leads(tab):
    tab.go("/lab/reconciliation", heading="Lab").until("document.querySelector('.player')")
    tab.page.locator("input[type=range]").focus()
    for key in ("Home", *["ArrowRight"] * 9):
        tab.page.keyboard.press(key)
    assert "10 of " in tab.text(".player")
    rows = tab.page.eval_on_selector_all(
        "figure.lanes tbody tr",
        "all => all.map(row => [...row.children].map(cell => cell.textContent.trim()))",
    )
    assert [(row[0], row[-2], row[-1]) for row in rows] == [
        ("broker A", "5", "0"),
        ("♛ broker B", "4", "0"),
    ], "where A's log is longer, it has parted"


SERIES = """import('/static/series.js').then(({ Series, ceiling, KEPT }) => {
  const made = new Series("x");
  for (let at = 0; at < 3 * KEPT; at += 1) made.add(at * 1000, { total: at * 5 }, at);
  made.add(3 * KEPT * 1000 - 900, { total: 1e9 }, "soon");
  const still = new Series("z");
  for (let at = 0; at < 10; at += 1) still.add(at * 1000, { total: 7 }, "the same");
  const again = new Series("y");
  const totals = [[0, 10], [1000, 30], [3000, 5], [4000, 6]];
  for (const [at, total] of totals) again.add(at, { total }, at);
  const rates = again.rates("total").map((each) => each.value);
  return [made.samples.length, made.rates("total").at(-1), rates, again.levels("total").at(-1),
    [0, 3, 10, 11, 4999].map(ceiling), still.samples.map((each) => each.at)];
})"""


def test_numbers_over_time_are_rates_by_the_second_and_no_more_than_are_shown(tab):
    tab.go("/", heading="Cluster")
    length, newest, rates, level, ceilings, still = tab.page.evaluate(SERIES)
    assert length == 120
    assert newest == {"at": 359_000, "value": 5}
    assert rates == [20, 0, 1]
    assert level == {"at": 4000, "value": 6}
    assert ceilings == [1, 5, 10, 20, 5000]
    assert still == [0, 3000, 6000, 9000]


TICKS = """(async () => {
  const { options } = await import('/static/series.js');
  const uPlot = (await import('/static/vendor/uplot.mjs')).default;
  const plot = new uPlot(options(["a"], 1000), [[1, 2, 3, 4], [5, 5, 5, 5]], document.body);
  await new Promise((resume) => setTimeout(resume, 100));
  const told = plot.axes[0]._values;
  plot.destroy();
  return told;
})()"""


def test_a_time_stands_below_a_chart_once_however_wide_it_is(tab):
    tab.go("/", heading="Cluster")
    told = tab.page.evaluate(TICKS)
    assert told[:2] == ["00:00:01", "00:00:02"]
    assert len({*told}) == len(told)


MANY = """(async () => {
  const { Lanes } = await import('/static/lanes.js');
  const { h, render } = await import('/static/vendor/preact.mjs');
  const lane = (broker) => ({ broker, leads: false, badge: "ISR", stale: false, error: "", epoch: 1,
    log_start: 0, high_watermark: 9, log_end: 9, synced: 9, cut: [] });
  const lanes = Array.from({ length: 30 }, (_, at) => lane(at + 1));
  const place = document.body.appendChild(document.createElement("div"));
  render(h(Lanes, { name: "many", partition: { lanes } }), place);
  return [".name", "g.lane rect"].map((kind) => [...place.querySelectorAll(kind)]
    .map((each) => each.getBoundingClientRect()).map(({ top, bottom }) => [top, bottom]));
})()"""


def test_each_of_many_lanes_has_room_for_its_name(tab):
    tab.go("/", heading="Cluster")
    names, lanes = tab.page.evaluate(MANY)
    assert len(names) == len(lanes) == 30
    for (top, bottom), (lane_top, lane_bottom) in zip(names, lanes, strict=True):
        assert bottom - top > 20
        assert top <= lane_top < lane_bottom <= bottom


DRAWN = """(() => {
  const canvas = document.querySelector('.chart canvas');
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const colours = [...document.querySelectorAll('.chart')][0].querySelectorAll('.swatch');
  return [...colours].map((swatch) => {
    const [r, g, b] = getComputedStyle(swatch).backgroundColor.match(/\\d+/g).map(Number);
    for (let at = 0; at < data.length; at += 4) {
      if (data[at] === r && data[at + 1] === g && data[at + 2] === b) return true;
    }
    return false;
  });
})()"""
"""Whether the lines of the first chart are seen, by their colours in its picture."""


def test_what_is_written_and_read_is_drawn_over_time_and_told_as_numbers(tab, cluster):
    tab.go("/topics/orders", heading="orders").until("document.querySelector('.chart canvas')")

    def written():
        producer.send_many("orders", [b"more"] * 50).result()
        return tab.page.evaluate(
            "[...document.querySelectorAll('.legend')].every("
            "each => /now [\\d.,]*[1-9]/.test(each.textContent))"
        )

    with blocking.Producer(**reaching(cluster.address)) as producer:
        wait_until(written, "both lines have risen", every_s=ASK_S)
    tab.page.locator(".chart summary").click()
    rows = tab.page.locator(".chart details tbody tr")
    assert rows.first.inner_text().split()[0] == "0"
    assert tab.page.evaluate(DRAWN) == [True, True], "both lines, each in its colour"
    tab.go("/groups/readers", heading="readers").until("document.querySelectorAll('.chart').length")
    tab.until("document.querySelector('.legend').textContent.includes('records behind: now')")
    tab.until(f"{DRAWN}[0]")
