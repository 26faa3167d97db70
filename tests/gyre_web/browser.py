"""A real Chromium for tests: signed in, with every complaint of the page noted."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
EXPECTED = ("/live",)
"""A test server without websockets: its refusals are no fault of the page."""


@dataclass(kw_only=True)
class Tab:
    """page: playwright's. complaints: errors on its console, script errors, answers of 400 and above."""

    page: Any
    base: str
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str) -> None:
        self.page.goto(self.base + path)

    def overflow(self) -> int:
        """Pixels by which the document is wider than the window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - innerWidth"))


@contextmanager
def chromium() -> Iterator[Any]:
    """Playwright's browser, started from the machine's own Chromium; ends with the block."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert program, "These tests need Chromium: apt-get install chromium."
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_tab(base: str, session: str, *, theme: Literal["light", "dark"] = "light", width: int = 1440) -> Iterator[Tab]:
    """session: a signed-in session's key."""
    with chromium() as browser:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        context.add_cookies([{"name": "sessionid", "value": session, "url": base}])
        tab = Tab(page=context.new_page(), base=base)

        def note(text: str) -> None:
            if not any(part in text for part in EXPECTED):
                tab.complaints.append(text)

        tab.page.on("console", lambda message: note(message.text) if message.type == "error" else None)
        tab.page.on("pageerror", lambda error: note(str(error)))
        yield tab
