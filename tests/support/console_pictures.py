"""Makes the pictures of CONSOLE.md: a small cluster, a group, an incident, a browser that looks.

No test lives here; `deploy/screenshots.sh` runs it with the folder that they are written to.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from browserkit import Tab, browser
from commands import COMMAND, environment
from console_run import Console
from incident import diverge
from PIL import Image
from three_nodes import Nodes

BYTES_MAX = 120 << 10
WIDTH = 1100
ORDERS = b"".join(b'order-%d:{"item": "lamp", "pieces": %d}\n' % (n, n % 7) for n in range(300))
LATER = b"".join(b'{"order": %d, "item": "chair", "pieces": 1}\n' % n for n in range(300, 360))
PARTED = "9"
"""The step of its lesson at which two logs have parted."""
CUT = "document.querySelector('.event-truncated')"


def main(folder):
    with tempfile.TemporaryDirectory() as data:
        cluster = Nodes(
            Path(data) / "data", "-n", "3", "--topic", "orders:1:3", "--topic", "bills:3:3"
        )
        try:
            look(cluster, Path(folder))
        finally:
            cluster.end()


def look(cluster, folder):
    folder.mkdir(parents=True, exist_ok=True)
    cluster.run("produce", "orders", "-K", ":", stdin=ORDERS)
    cluster.run("consume", "orders", "--group", "billing", "--from", "start", "-c", "200")
    cluster.run("quotas", "set", "--user", "etl", "producer_byte_rate=1MiB")
    cluster.run("quotas", "set", "--client-id", "report", "consumer_byte_rate=5MiB")
    reader = subprocess.Popen(
        [*COMMAND, "consume", "bills", "--group", "billing-live", "--from", "start"],
        env=environment(cluster.address),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    console = Console(cluster.address, "--allow-changes")
    try:
        with browser() as opened:
            tab = Tab(opened, console.address, width=WIDTH, height=760)
            tab.go("/topics/orders", heading="orders").until("document.querySelector('figure')")
            diverge(
                cluster,
                "orders",
                lost=b"lost:nobody else had it\n" * 40,
                kept=LATER,
                meanwhile=lambda leader: while_it_is_dead(tab, leader, folder),
            )
            tab.until(CUT)
            afterwards(tab, folder)
    finally:
        reader.kill()
        reader.wait()
        console.end()


def while_it_is_dead(tab, leader, folder):
    tab.until(
        f"[...document.querySelectorAll('figure tbody tr')].some(row => "
        f"row.textContent.includes('broker {leader}') && row.textContent.includes('not answer'))"
    )
    picture(tab, folder / "topic.png")


def afterwards(tab, folder):
    tab.go("/", heading="Cluster").until("document.querySelectorAll('.events li').length > 5")
    tab.until("!document.querySelector('.cards .bad')")
    picture(tab, folder / "overview.png")
    tab.go("/brokers", heading="Brokers").until(
        "document.querySelectorAll('tbody tr').length === 3"
    )
    picture(tab, folder / "brokers.png")
    tab.go("/topics", heading="Topics").until("document.querySelectorAll('tbody tr').length > 1")
    picture(tab, folder / "topics.png")
    tab.go("/groups", heading="Groups").until("document.querySelectorAll('tbody tr').length > 1")
    picture(tab, folder / "groups.png")
    tab.go("/timeline/orders/0", heading="timeline").until("document.querySelector('.player')")
    frames = tab.page.evaluate(
        "async () => (await (await fetch('/api/timeline?topic=orders&partition=0')).json()).frames"
    )
    *_, cut = (at for at, frame in enumerate(frames) if frame["kind"] == "truncated")
    tab.page.locator("input[type=range]").fill(str(cut - 1))
    picture(tab, folder / "timeline.png")
    tab.go("/messages/orders/0", heading="messages")
    tab.page.get_by_role("button", name="Search").click()
    tab.until("document.querySelectorAll('tbody tr').length > 5")
    picture(tab, folder / "messages.png")
    tab.go("/groups/billing", heading="billing").until("document.querySelector('form')")
    tab.page.get_by_role("button", name="Preview").click()
    tab.until("document.querySelector('button.danger')")
    picture(tab, folder / "group.png")
    tab.go("/quorum", heading="Quorum").until("document.querySelector('figure')")
    picture(tab, folder / "quorum.png")
    tab.go("/access", heading="permissions").until("document.querySelector('table')")
    picture(tab, folder / "access.png")
    tab.go("/lab/reconciliation", heading="Lab").until("document.querySelector('.player')")
    tab.page.locator("input[type=range]").fill(PARTED)
    picture(tab, folder / "lab.png")


def picture(tab, path):
    """What a window shows, down to where the page ends, in 256 colours."""
    tab.page.wait_for_timeout(600)  # lanes glide to where they belong
    seen = tab.page.evaluate("Math.min(innerHeight, document.body.getBoundingClientRect().bottom)")
    tab.page.screenshot(path=path, clip={"x": 0, "y": 0, "width": WIDTH, "height": seen})
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(256)
    small.save(path, optimize=True)
    size = path.stat().st_size
    assert size < BYTES_MAX, f"{path} has {size} bytes"
    sys.stdout.write(f"{path} {size >> 10} KiB\n")


if __name__ == "__main__":
    main(sys.argv[1])
