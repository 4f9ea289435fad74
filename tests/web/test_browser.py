"""What watches the pages of the other tests sees what it has to see."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.processes import until
from tests.web import browser
from tests.web.browser import Elsewhere, Guard, check_axe

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (
            "() => { document.body.innerHTML = '<img src=x: onerror=\"canary()\">' }",
            "a stored text ran",
        ),
        ("() => { window.canary = 1 }", "a stored text ran"),
        ("() => { console.error('no script') }", "console: no script"),
        ("() => { setTimeout(() => { throw Error('oh') }) }", "uncaught: "),
        (
            "() => { new Image().src = 'http://example.org/x.png' }",
            "asked for http://example.org/x.png",
        ),
    ],
)
def test_a_page_that_does_what_it_may_not_do_is_a_problem(
    page: Page, guard: Guard, script: str, problem: str
) -> None:
    page.evaluate(script)
    until(lambda: page.evaluate("() => 1") and problem in str(guard.problems))
    with pytest.raises(AssertionError, match=re.escape(problem)):
        guard.check()
    guard.expect(".")


def test_a_connection_to_elsewhere_is_seen(page: Page, guard: Guard) -> None:
    elsewhere = Elsewhere()
    assert elsewhere.is_untouched()
    page.evaluate(f"() => {{ fetch({elsewhere.address!r}).catch(() => 0); }}")
    until(lambda: not elsewhere.is_untouched())
    elsewhere.close()
    guard.expect("asked for|console")


def test_what_axe_finds_is_named_with_its_elements(page: Page) -> None:
    page.set_content(
        "<!doctype html><html lang=en><title>t</title><main><h1>Fine</h1></main></html>"
    )
    check_axe(page)
    page.set_content(
        "<!doctype html><html lang=en><title>t</title><main><img src='data:,'></main></html>"
    )
    with pytest.raises(AssertionError, match="image-alt"):
        check_axe(page)
    check_axe(page, without=["image-alt"])


def test_where_the_system_has_no_browser_the_newest_of_playwright_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browser, "PROGRAMS", ())
    monkeypatch.setattr(browser, "_KEPT", tmp_path)
    assert browser.program() is None
    for at in (
        "chromium-999/chrome-linux/chrome",
        "chromium_headless_shell-1255/chrome-linux64/chrome-headless-shell",
    ):
        path = tmp_path / at
        path.parent.mkdir(parents=True)
        for name in (path.name, "libEGL.so", "LICENSE"):
            path.with_name(name).touch(0o755)
    assert browser.program() == str(path)
