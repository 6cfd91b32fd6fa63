"""A browser that looks at a console; it remembers what no page may do. No test lives here."""

import shutil
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from patience import wait_until

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser")
"""The first one has no windows at all, and needs half of the time."""
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
NEEDS_ONE = pytest.mark.skipif(CHROMIUM is None, reason=f"no browser: apt-get install {NAMES[0]}")
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
ASK_S = 0.1
"""A question is a turn of four processes: asked without a pause, it keeps a core busy."""
NO_LIMIT = 0
"""A page is waited for as long as the test lives: a busy machine is only slow."""


@contextmanager
def browser():
    """Chromium, without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        try:
            yield opened
        finally:
            opened.close()


class Tab:
    """A page of a console, of a browser without cookies."""

    def __init__(self, opened, address, *, width=1280, height=900, scheme="light"):
        self.address = address
        size = {"width": width, "height": height}
        self._context = opened.new_context(viewport=size, color_scheme=scheme)
        self._context.set_default_timeout(NO_LIMIT)
        self.page = self._context.new_page()
        self.complaints = []
        """Errors, what the policy forbade, and whatever was asked of others than the console."""
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("console", self._hear)
        self._context.on("request", self._see)

    def _hear(self, message):
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def _see(self, request):
        where = urlsplit(request.url)
        if where.scheme not in ("data", "blob") and where.netloc != urlsplit(self.address).netloc:
            self.complaints.append(f"asked {request.url}")

    def go(self, path, *, heading):
        """Open a page by its path; returns when its heading is there."""
        self.page.goto(f"{self.address}/#{path}")
        self.until(f"document.querySelector('h1')?.textContent.includes({heading!r})")
        return self

    def until(self, true):
        """Wait for something that is true in the page."""
        # The policy lets no page evaluate text by itself, so it is asked from outside.
        return wait_until(
            lambda: self.page.evaluate(true), f"{self.page.url}: {true}", every_s=ASK_S
        )

    def text(self, selector="main"):
        return self.page.inner_text(selector)

    def lanes(self):
        """{broker: (badge, log end, is old)} from the table, which says what the picture does."""
        rows = self.page.eval_on_selector_all(
            "figure.lanes tbody tr",
            "rows => rows.map(row => [...row.children].map(cell => cell.textContent.trim()))",
        )
        return {
            int(cells[0].rpartition(" ")[2]): (
                cells[1].split()[0],
                int(cells[5].replace(",", "").replace("?", "-1")),
                "does not answer" in cells[1],
            )
            for cells in rows
        }

    def close(self):
        self._context.close()
