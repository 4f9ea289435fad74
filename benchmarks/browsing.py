"""A browser that is measured: what its pages say of what they showed, and when.

What must stay true: a page waits by itself for what is measured in it, as to be asked again and
again would slow it down; what does not come is an error, and no measurement of a benchmark.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.report import Report
from tests.web.browser import ARGUMENTS, program
from tests.web.serving import PATIENCE_S, Served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

__all__ = ["LOADED", "PAINTED", "WATCH_HITS", "WATCH_TEXTS", "evaluated", "launched", "opened"]

#: What is left out where there is no browser.
_SEEN = (
    "all that a first page loads",
    "a search, from the key to the hits",
    "the first paint of a conversation",
    "an append in another process to the text in the page",
    "tabs of one browser, idle",
)
#: Resolves when a text of the writer stands in the page: with when each of them first did, by the
#: system's clock.
WATCH_TEXTS = """() => {
    const seen = {}, waiting = {};
    const look = text => {
        const now = performance.timeOrigin + performance.now();
        for (const [mark] of text.matchAll(/mark-\\d+-/g)) { seen[mark] ??= now; waiting[mark]?.(seen) }
    };
    window.__until = mark => new Promise((resolve, reject) => {
        waiting[mark] = resolve;
        if (seen[mark]) resolve(seen);
        setTimeout(() => reject(Error(`${mark} was waited for in vain`)), PATIENCE);
    });
    new MutationObserver(changes => {
        for (const change of changes) for (const node of change.addedNodes) look(node.textContent ?? "");
    }).observe(document.documentElement, { childList: true, subtree: true });
    look(document.body.textContent);
}"""
#: Resolves with the seconds from a text that is typed until the links to hits are others.
WATCH_HITS = """() => {
    const links = () => [...document.querySelectorAll("main a[href*='/m/']")].map(link => link.href).join();
    let before = links();
    window.__hits = new Promise((resolve, reject) => {
        document.addEventListener("input", () => {
            const typed = performance.now();
            const observer = new MutationObserver(() => {
                const now = links();
                if (!now || now === before) return;
                observer.disconnect();
                resolve((performance.now() - typed) / 1000);
            });
            observer.observe(document.documentElement, { childList: true, subtree: true, attributes: true });
        }, { capture: true, once: true });
        setTimeout(() => reject(Error("hits were waited for in vain")), PATIENCE);
    });
}"""
#: Resolves with the seconds from the beginning of the navigation until something was painted.
PAINTED = """() => new Promise((resolve, reject) => {
    const find = list => list.getEntriesByName("first-contentful-paint").forEach(e => resolve(e.startTime / 1000));
    new PerformanceObserver(find).observe({ type: "paint", buffered: true });
    setTimeout(() => reject(Error("a paint was waited for in vain")), PATIENCE);
})"""
LOADED = """() => [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
    .map(entry => [new URL(entry.name).pathname, entry.transferSize])"""


@contextmanager
def launched(report: Report) -> Iterator[Browser | None]:
    """A browser, or None; then the report says why what needs one was left out."""
    path = program()
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        path = None
    if path is None:
        report.skipped |= dict.fromkeys(
            _SEEN,
            "no browser to drive: pip install playwright; apt install chromium-headless-shell",
        )
        yield None
        return
    with sync_playwright() as playwright:
        # Pages of one site share processes, as they do where memory is short.
        browser = playwright.chromium.launch(
            executable_path=path, args=[*ARGUMENTS, "--renderer-process-limit=4"]
        )
        yield browser
        browser.close()


def opened(context: BrowserContext, served: Served, path: str) -> Page:
    """A page of the store in a new tab, with all that it loads."""
    context.set_default_timeout(PATIENCE_S * 1000)
    page = served.open(context, path)
    page.wait_for_load_state("load")
    return page


def evaluated(page: Page, script: str) -> Any:
    """What a script gives. It waits in the page: to ask again and again would slow down what is
    measured.
    """
    return page.evaluate(script.replace("PATIENCE", str(PATIENCE_S * 1000)))
