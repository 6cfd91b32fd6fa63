"""The console's pages in a real browser, beside real clusters.

Goal: who looks sees what is, also while brokers die and logs are cut, by mouse, by keyboard, on a
phone and by ear; no page asks anybody else for anything. Method: Chromium without a window.
"""

import json
from pathlib import Path

import pytest
from browserkit import NEEDS_ONE, Tab
from commands import StartedCluster, hightide
from console_run import Visitor
from consolekit import broker, made
from incident import diverge
from patience import wait_until
from secure_run import open_only, reaching
from tries import few

from hightide import ClusterDescription, blocking, read_client_config
from hightide_console.views import open_view

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    NEEDS_ONE,
    open_only("who may see what has its own test here"),
]
PAGES = {
    "/": "Cluster",
    "/topics": "Topics",
    "/topics/orders": "orders",
    "/brokers": "Brokers",
    "/groups": "Groups",
    "/groups/readers": "readers",
    "/quorum": "Quorum",
    "/access": "Users and permissions",
    "/messages/orders/0": "messages",
    "/timeline/orders/0": "timeline",
    "/lab": "Lab",
    "/lab/one-after-the-other": "follower, then leader, go down",
}
DARK = ("/", "/topics/orders", "/access", "/lab/one-after-the-other")
"""Those that together have all kinds of parts."""
EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def ends_of(cluster):
    with blocking.Admin(**reaching(cluster.address)) as admin:
        return {
            directory.broker: replica.log_end_offset
            for directory in admin.describe_log_dirs(["orders"])
            for replica in directory.replicas
        }


def lag_of(cluster, group):
    with blocking.Admin(**reaching(cluster.address)) as admin:
        return sum(each.lag for each in admin.group_lag(group))


def test_lanes_are_what_the_brokers_say(tab, cluster):
    tab.go("/topics/orders", heading="orders").until("document.querySelector('figure')")
    wait_until(
        lambda: (
            tab.page.wait_for_timeout(100)
            or {broker: end for broker, (_, end, _) in tab.lanes().items()} == ends_of(cluster)
        ),
        "lanes are as brokers say",
    )
    assert [badge for badge, _, _ in tab.lanes().values()] == ["ISR"] * 3
    beside = tab.page.eval_on_selector_all(
        "figure.lanes .name", "all => all.map(each => each.textContent.match(/broker (\\d+)/)[1])"
    )
    assert [int(broker) for broker in beside] == [*tab.lanes()]
    drawn = tab.page.eval_on_selector_all(
        "g.lane", "lanes => lanes.map(lane => [lane.dataset.broker, lane.dataset.end])"
    )
    assert {int(broker): int(end) for broker, end in drawn} == ends_of(cluster)


@pytest.mark.parametrize(
    ("path", "scheme"),
    few([*((path, "light") for path in PAGES), *((path, "dark") for path in DARK)], 5),
)
def test_every_page_can_be_heard_and_fits_a_phone(chromium, console, path, scheme):
    from axe_playwright_python.sync_playwright import Axe

    tab = Tab(chromium, console.address, width=360, height=700, scheme=scheme)
    tab.go(path, heading=PAGES[path])
    tab.until("!document.body.textContent.includes('looking')")
    found = Axe().run(tab.page).response["violations"]
    assert "asks nobody there who they are" in tab.text("footer")
    serious = [
        (each["id"], each["nodes"][0]["html"])
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
    headings = tab.page.eval_on_selector_all("h1", "all => all.length")
    sideways = tab.page.evaluate("document.documentElement.scrollWidth")
    tab.close()
    assert serious == []
    assert headings == 1
    assert sideways <= 360
    assert tab.complaints == []


def test_the_keyboard_reaches_the_pages_and_skips_to_the_content(tab):
    tab.go("/", heading="Cluster")
    tab.page.keyboard.press("Tab")
    assert tab.page.evaluate("document.activeElement.textContent") == "To the content"
    tab.page.keyboard.press("Enter")
    assert tab.page.evaluate("document.activeElement.id") == "content"
    reached = []
    tab.page.evaluate("document.activeElement.blur()")
    tab.go("/quorum", heading="Quorum")
    tab.page.reload()
    tab.until("document.querySelector('nav')")
    for _ in range(8):
        tab.page.keyboard.press("Tab")
        reached.append(tab.page.evaluate("document.activeElement.textContent"))
    assert [each for each in reached if each in ("Overview", "Topics", "Groups")] == [
        "Overview",
        "Topics",
        "Groups",
    ]
    assert tab.page.get_attribute("nav [aria-current=page]", "href") == "#/quorum"


def test_where_others_reach_a_cluster_that_asks_nobody_every_page_warns(tab, console):
    """What the stream says of a cluster of another machine, over what this one says."""
    told = open_view(made(ClusterDescription, brokers=[broker(1, host="10.0.0.7")]))
    visitor = Visitor(console)
    state = visitor.watch().until(lambda seen: seen.get("cluster"), "what a page is told")
    state["cluster"]["open"] = told
    news = f"event: state\ndata: {json.dumps(state)}\n\n"
    stream = {"content_type": "text/event-stream", "body": news}
    tab.page.route("**/api/stream*", lambda route: route.fulfill(**stream))
    for path in ("/", "/topics", "/lab"):
        tab.go(path, heading="")
        tab.until("document.querySelector('main [role=note]')")
        said = tab.text("main [role=note]")
        assert "Whoever reaches 10.0.0.7 needs no password" in said
        assert said.endswith("hightide up --secure.")
        assert tab.page.query_selector("footer") is None


def test_records_with_markup_are_text(tab, cluster):
    cluster.run("topics", "create", "evil", "-p", "1", "-r", "1")
    long_number = '{"id": 12345678901234567890}'
    cluster.run("produce", "evil", stdin=f"{EVIL}\n{long_number}\n".encode())
    tab.go("/messages/evil/0", heading="messages")
    tab.page.get_by_role("button", name="Search").click()
    tab.until("document.querySelectorAll('tbody tr').length === 2")
    command = tab.page.inner_text(".command code").split()
    said = cluster.run(*command[1:]).out.decode()
    assert [*said.splitlines()] == [EVIL, long_number], "the command beside says the same"
    assert EVIL in tab.text()
    assert long_number in tab.text(), "no digit is changed"
    assert tab.page.locator("main img, main script").count() == 0
    tab.page.get_by_role("button", name="Live tail").click()
    cluster.run("produce", "evil", stdin=b"a new one\n")
    tab.until("document.querySelector('main').textContent.includes('a new one')")
    tab.page.get_by_role("button", name="Stop the tail").click()


def test_a_group_is_moved_after_a_look_at_what_would_change(tab, cluster):
    tab.go("/groups/readers", heading="readers").until("document.querySelector('form')")
    tab.page.get_by_role("button", name="Preview").click()
    tab.until("document.querySelector('button.danger')")
    assert "What would change" in tab.text()
    assert lag_of(cluster, "readers") == 0
    tab.page.get_by_role("button", name="Move the group").click()
    tab.until("document.body.textContent.includes('It is done')")
    assert lag_of(cluster, "readers") == 40
    tab.until("document.body.textContent.includes('40 records behind, the oldest of them')")
    age = "document.querySelector('meter').parentElement.nextElementSibling.textContent"
    tab.until(f"/^\\d+\\.\\d s$|min|h/.test({age})")


def test_a_console_that_changes_nothing_has_no_button_for_it(chromium, cluster, a_console):
    console = a_console(cluster.address)
    tab = Tab(chromium, console.address)
    tab.go("/groups/readers", heading="readers").until("document.querySelectorAll('table').length")
    assert tab.page.get_by_role("button").count() == 0
    tab.close()
    console.end()


def test_a_page_finds_a_console_again_that_was_restarted(chromium, cluster, a_console):
    first = a_console(cluster.address)
    tab = Tab(chromium, first.address)
    tab.go("/", heading="Cluster").until("document.querySelector('.link-live')")
    first.end()
    tab.until("document.querySelector('.link-lost')")
    second = a_console(cluster.address, "--listen", f"127.0.0.1:{first.port}")
    tab.until("document.querySelector('.link-live')")
    tab.close()
    second.end()


def test_the_quorums_lanes_are_what_each_node_says_of_its_own_log(tab, cluster):
    tab.go("/quorum", heading="Quorum").until("document.querySelectorAll('g.lane').length === 3")
    tab.until("document.querySelectorAll('g.lane rect[data-epoch]').length >= 3")
    heads = tab.page.eval_on_selector_all(
        "figure.lanes thead th", "all => all.map(each => each.textContent)"
    )
    places = ["log start", "watermark", "log end", "synced"]
    assert heads == ["node", "is", "epoch", *places, "behind"]
    with blocking.Admin(**reaching(cluster.address)) as admin:
        ends = {node: admin.describe_metadata_log(node).log_end_offset for node in (1, 2, 3)}
    wait_until(
        lambda: (
            tab.page.wait_for_timeout(100)
            or {node: end for node, (_, end, _) in tab.lanes().items()} == ends
        ),
        "the lanes are as long as the logs",
    )
    assert "Why is the watermark here? everything is committed" in tab.text("figure.lanes")


def test_a_name_typed_by_hand_that_is_none_breaks_no_page(tab):
    tab.go("/topics/%", heading="Topic").until("document.body.textContent.includes('no such')")


def test_a_leader_that_dies_with_records_of_its_own_is_cut_when_it_returns(tab, cluster):
    """Two of three stand still, the leader takes records alone and dies; the others go on."""
    tab.go("/topics/orders", heading="orders").until("document.querySelector('figure')")

    def is_seen(leader):
        wait_until(lambda: tab.lanes()[leader][2], "the lane of the dead is old")
        wait_until(lambda: tab.lanes()[leader][0] == "out", "the dead is in sync no more")

    leader = diverge(cluster, "orders", lost=b"lost\n" * 7, kept=b"kept\n" * 5, meanwhile=is_seen)
    tab.until("document.querySelectorAll('.badge-ISR').length === 3")
    tab.until("document.querySelector('.event-truncated')")
    wait_until(
        lambda: (
            tab.page.wait_for_timeout(100) or len({end for _, end, _ in tab.lanes().values()}) == 1
        ),
        "the lanes are as long again",
    )
    colours = tab.page.eval_on_selector_all(
        "g.lane",
        "lanes => lanes.map(lane => [...lane.children].map(each => each.dataset.epoch))",
    )
    assert all(len(set(each) - {None}) >= 2 for each in colours), (
        "each lane has the colours of two epochs"
    )
    notch = tab.page.locator(f"g.lane[data-broker='{leader}'] .notch")
    was, now = (int(notch.get_attribute(f"data-{end}")) for end in ("from", "to"))
    assert was > now
    sides = tab.page.eval_on_selector_all(
        f"g.lane[data-broker='{leader}'] rect[data-epoch]",
        "all => all.map(each => [each.dataset.epoch, each.getAttribute('x')])",
    )
    assert len({epoch for epoch, _ in sides}) >= 2, "the colours of two epochs beside it"
    assert f"cut from {was} to {now}" in tab.text("figure.lanes table")
    replays(tab, leader)


def replays(tab, leader):
    """The timeline shows the cut of the leader of before where it happened, and plays."""
    tab.go("/timeline/orders/0", heading="timeline").until("document.querySelector('.player')")
    cut = tab.page.locator("input[type=range]").evaluate("range => Number(range.max)")
    texts = []
    for at in range(cut + 1):
        tab.page.locator("input[type=range]").fill(str(at))
        texts.append((tab.text(".now"), tab.lanes()))
    # A follower may have been cut before: it had the record that was under way, and nobody else.
    where = next(at for at, (text, _) in enumerate(texts) if f"broker {leader} cut" in text)
    longest = max(end for _, end, _ in texts[where - 1][1].values())
    after = max(end for _, end, _ in texts[where][1].values())
    assert longest > after, "the tail is there before the cut, and gone after it"
    tab.page.locator("input[type=range]").fill(str(where))
    assert tab.page.locator(f"g.lane[data-broker='{leader}'] .notch").count() == 1
    tab.page.locator("input[type=range]").fill(str(where - 1))
    tails = tab.page.eval_on_selector_all(
        "g.lane",
        "lanes => lanes.map(lane => [...lane.querySelectorAll('rect')].pop().dataset.epoch)",
    )
    assert len(set(tails)) == 2, "the tail that will be cut has another colour than the others'"
    tab.page.locator("input[type=range]").fill(str(max(cut - 2, 0)))
    tab.page.get_by_role("button", name="Play").click()
    tab.until(f"document.querySelector('input[type=range]').value === '{cut}'")
    with tab.page.expect_download() as saved:
        tab.page.get_by_role("button", name="Save as JSON").click()
    assert len(json.loads(saved.value.path().read_bytes())) == cut + 1
    with tab.page.expect_download() as saved:
        tab.page.get_by_role("button", name="Save as SVG").click()
    assert b"<svg" in saved.value.path().read_bytes()


def test_who_signs_in_sees_what_the_cluster_lets_it_see(chromium, tmp_path, a_console):
    made = StartedCluster(tmp_path / "data", "--port", "0", "--secure", "--topic", "a-one")
    try:
        told = {"config": tmp_path / "data" / "client.toml"}
        hightide("topics", "create", "b-two", "-p", "1", "-r", "1", **told)
        hightide("users", "create", "ann", "--password-file", "-", stdin=b"hers", **told)
        hightide("acls", "allow", "ann", "read", "topic:a-*", **told)
        console = a_console(made.address, **told)
        tab = Tab(chromium, console.address)
        tab.page.goto(console.address)
        tab.page.get_by_label("User").fill("ann")
        tab.page.get_by_label("Password").fill("wrong")
        tab.page.get_by_role("button", name="Sign in").click()
        tab.until("document.querySelector('[role=alert]')")
        assert "does not know this name and password" in tab.text()
        tab.complaints.clear()  # a browser notes that it was turned away
        tab.page.get_by_label("Password").fill("hers")
        tab.page.get_by_role("button", name="Sign in").click()
        tab.until("document.querySelector('nav')")
        tab.go("/topics", heading="Topics").until("document.querySelector('tbody tr')")
        assert tab.page.query_selector("[role=note]") is None, "who comes in has proven who he is"
        tab.go("/", heading="Cluster").until("document.body.textContent.includes('may not DESC')")
        assert "does not answer" not in tab.text(), "brokers do, only not to her"
        tab.go("/topics/a-one", heading="a-one").until("document.querySelector('.why')")
        assert "tell those who may DESCRIBE the cluster" in tab.text(".why")
        assert "does not answer" not in tab.text()
        tab.go("/topics", heading="Topics").until("document.querySelector('tbody tr')")
        tab.page.get_by_role("checkbox").check()
        names = tab.page.eval_on_selector_all("tbody th", "all => all.map(e => e.textContent)")
        assert names == ["a-one"]
        tab.go("/topics/b-two", heading="b-two")
        assert "no such topic, or you may not see it" in tab.text()
        assert tab.complaints == []
        tab.page.get_by_role("button", name="Sign out").click()
        tab.until("document.querySelector('form.door, .door form')")
        tab.close()
        console.end()
    finally:
        made.end()


def test_an_administrator_makes_a_user_and_rules_and_takes_them_back(chromium, tmp_path, a_console):
    made = StartedCluster(tmp_path / "data", "--port", "0", "--secure", "--topic", "a-one")
    secret = "made-in-a-page-Ty5"
    try:
        told = {"config": tmp_path / "data" / "client.toml"}
        known = read_client_config(told["config"])
        console = a_console(made.address, "--allow-changes", **told)
        tab = Tab(chromium, console.address)
        tab.page.goto(console.address)
        tab.page.get_by_label("User").fill(known["sasl_username"])
        password = Path(known["sasl_password_location"]).read_text().strip()
        tab.page.get_by_label("Password").fill(password)
        tab.page.get_by_role("button", name="Sign in").click()
        tab.until("document.querySelector('nav')")
        tab.go("/access", heading="Users and permissions")
        tab.page.get_by_label("New user").fill("ann")
        tab.page.get_by_label("New user").press("Enter")
        tab.until("document.querySelector('input[type=password]')")
        assert "ann may log in from now on" in tab.text()
        tab.page.get_by_label("New password").fill(secret)
        tab.page.get_by_role("button", name="Do it").click()
        tab.until("document.querySelector('[aria-label=\"Delete ann\"]')")
        assert secret not in tab.page.content()
        rule = tab.page.locator("form", has=tab.page.locator("[name=pattern]"))
        rule.get_by_label("User").fill("ann")
        rule.locator("[name=operation]").select_option("READ")
        assert rule.get_by_label("Called").input_value() == "*"
        rule.get_by_label("Called").fill("a-")
        tab.page.evaluate("import('/static/store.js').then(({ ui }) => ui({}))")  # drawn again
        tab.page.wait_for_timeout(100)
        assert rule.get_by_label("Called").input_value() == "a-"
        rule.locator("[name=pattern]").select_option("PREFIXED")
        rule.get_by_role("button").click()
        tab.until("document.body.textContent.includes('User:ann may READ topic whose name')")
        tab.page.get_by_role("button", name="Do it").click()
        tab.until("document.body.textContent.includes('a-… (all that begin so)')")
        asks = tab.page.locator("form", has=tab.page.get_by_role("button", name="Ask"))
        asks.get_by_label("May").fill("ann")
        asks.locator("[name=operation]").select_option("READ")
        asks.get_by_label("called").fill("a-one")
        asks.get_by_role("button").click()
        tab.until("document.querySelector('p[role=status] strong')?.textContent === 'Yes'")
        listed = hightide("topics", "list", "-o", "quiet", config=as_ann(told, made.data, secret))
        assert listed.lines == [b"a-one"]
        for name in ("Remove: User:ann", "Delete ann"):
            tab.page.get_by_role("button", name=name).click()
            tab.page.get_by_role("button", name="Do it").click()
            tab.until("document.querySelector('h2')?.textContent === 'It is done'")
        tab.until("!document.querySelector('[aria-label=\"Delete ann\"]')")
        assert tab.complaints == []
        tab.close()
        assert secret not in console.end()[1]
        logs = "".join(path.read_text() for path in (made.data / "logs").iterdir())
        assert secret not in logs
    finally:
        made.end()


def as_ann(told, place, secret):
    """A client.toml of hers."""
    lines = [
        line
        for line in told["config"].read_text().splitlines()
        if not line.startswith(('"sasl.password', "sasl.password", '"sasl.username', "sasl.us"))
    ]
    path = place / "ann.toml"
    path.touch(mode=0o600)
    path.write_text("\n".join([*lines, 'sasl.username = "ann"', f'sasl.password = "{secret}"']))
    return path
