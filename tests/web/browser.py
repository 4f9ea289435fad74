"""A browser that is watched, as the tests of the page have it.

What must stay true: a browser reaches nothing but what the test serves; whatever a page asks for
elsewhere, throws or says on its console as an error is a problem of the test, and so is a script in
a stored text that gets to run.

The policy of the page holds for playwright too, which refuses `page.wait_for_function`: wait with
`expect(locator)`, or with `until(lambda: page.evaluate(...))` of tests/processes.py.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.web.serving import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import (
        Browser,
        BrowserContext,
        ConsoleMessage,
        Page,
        Playwright,
        Request,
        WebError,
    )

ROOT = Path(__file__).resolve().parents[2]
#: Where screenshots go, below the repository; empty: none are made. Read before the environment of
#: a test is made.
PICTURES = os.environ.get("CAPSULE_PICTURES", "")
#: By these names systems have a browser that playwright can drive.
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
#: Where playwright keeps those that it installs, and their programs. Read before the environment of
#: a test is made.
_KEPT = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright")
_KEPT_PROGRAMS = ("chrome-headless-shell", "headless_shell", "chrome")
#: The last one keeps whatever a page tries to load from elsewhere on this machine.
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
    ("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost, EXCLUDE "
    "*.localhost, EXCLUDE [::1]"),
)  # fmt: skip
_WCAG = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa")
#: Whoever reads or sets `canary` in a page was let run.
_CANARY = """
Object.defineProperty(window, "canary", {
    get() { sing(); return () => 0; },
    set() { sing(); },
});
"""


def program() -> str | None:
    """The path of a browser: of the system, else the newest one that playwright installed. None:
    there is none.
    """
    kept = [path for path in _KEPT.glob("chromium*-*/chrome*/*") if path.name in _KEPT_PROGRAMS]
    kept.sort(key=lambda path: int(path.parts[-3].rpartition("-")[2]), reverse=True)
    return next(filter(None, map(shutil.which, (*PROGRAMS, *map(str, kept)))), None)


def launch(playwright: Playwright, home: Path, *more: str) -> Browser:
    """Start a browser that keeps its files in `home`. Skips the test if there is none."""
    path = program()
    if path is None:
        pytest.skip("no browser: apt install chromium-headless-shell")
    env: dict[str, str | float | bool] = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "TZ": "UTC",
    }
    return playwright.chromium.launch(executable_path=path, args=[*ARGUMENTS, *more], env=env)


class Guard:
    """What the pages of a test may not do, and what they did.

    Attributes:
        bases: The beginnings of addresses that pages may load from.
        problems: What they did, in words.
    """

    def __init__(self) -> None:
        self.bases: list[str] = []
        self.problems: list[str] = []
        self._contexts: list[BrowserContext] = []
        self._expected: list[re.Pattern[str]] = []

    def expect(self, pattern: str) -> None:
        """Let errors pass that fit a pattern: `ERR_CONNECTION_REFUSED`, for example, when the
        server is killed.
        """
        self._expected.append(re.compile(pattern))

    def watch(self, context: BrowserContext) -> BrowserContext:
        """Watch the pages of a context, those that are opened later too."""
        context.set_default_timeout(PATIENCE_S * 1000)
        context.expose_binding("sing", self._sang)
        context.add_init_script(_CANARY)
        context.on("request", self._requested)
        context.on("console", self._said)
        context.on("weberror", self._threw)
        self._contexts.append(context)
        return context

    def check(self) -> None:
        """Fail if a page did what it may not do. It waits until the pages have said what they have
        to say.
        """
        from playwright.sync_api import Error

        for page in (page for context in self._contexts for page in context.pages):
            with suppress(Error):  # It is closed.
                page.evaluate("() => 0")
        problems = [
            text for text in self.problems if not any(each.search(text) for each in self._expected)
        ]
        assert not problems, "\n".join(problems)

    def _sang(self, source: Any) -> None:
        self.problems.append(f"a stored text ran in {source['frame'].url}")

    def _requested(self, request: Request) -> None:
        is_local = request.url.startswith(("data:", "blob:", "about:"))
        if not is_local and not any(request.url.startswith(base) for base in self.bases):
            self.problems.append(f"{request.frame.url} asked for {request.url}")

    def _said(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.problems.append(f"console: {message.text} ({message.location.get('url')})")

    def _threw(self, error: WebError) -> None:
        self.problems.append(f"uncaught: {error.error}")


class Elsewhere:
    """An address of this machine that no page may connect to, for stored texts that name it."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def is_untouched(self) -> bool:
        """Whether nobody has connected since the last look."""
        try:
            self._socket.accept()[0].close()
        except BlockingIOError:
            return True
        return False

    def close(self) -> None:
        """Let go of the address."""
        self._socket.close()


def check_axe(page: Page, *, without: Sequence[str] = ()) -> None:
    """Fail if a page breaks WCAG 2.2 AA, as far as axe can tell: by rule, with the elements and the
    remedy.

    Args:
        page: The page, as it stands.
        without: Names of rules that do not count here.
    """
    from axe_playwright_python.sync_playwright import Axe

    options = {
        "runOnly": {"type": "tag", "values": _WCAG},
        "resultTypes": ["violations"],
        "rules": {name: {"enabled": False} for name in without},
    }
    found: list[str] = []
    for violation in Axe().run(page, options=options).response["violations"]:
        found.append(
            f"{violation['id']} ({violation['impact']}): {violation['help']}; "
            f"{violation['helpUrl']}"
        )
        for node in violation["nodes"]:
            found.append(f"    {' '.join(map(str, node['target']))}: {node['html'][:200]}")
            found += [f"        {line}" for line in node.get("failureSummary", "").splitlines()]
    assert not found, "\n".join([page.url, *found])


def screenshot(page: Page, name: str, **options: Any) -> None:
    """Keep a picture of a page as `NAME.png` in the folder that CAPSULE_PICTURES names; without it
    nothing happens.
    """
    if PICTURES:
        path = ROOT / PICTURES / f"{name}.png"
        page.screenshot(path=path, animations="disabled", caret="hide", scale="css", **options)
