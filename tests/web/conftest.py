"""Browsers, pages and servers for the tests of the page."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from capsule import Store
from capsule.store.copying import copy_store
from tests.postgres.stores import IS_POSTGRES
from tests.web import stores
from tests.web.browser import Elsewhere, Guard, launch
from tests.web.serving import PATIENCE_S, Served
from tests.web.stores import Talk

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page
    from starlette.testclient import TestClient


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Talk]]:
    """Where the store of `talk` is made by whoever asks first, and what is in it then."""
    return tmp_path_factory.mktemp("talk") / "store", []


@pytest.fixture
def talk(root: Path, initialised: Path, made: tuple[Path, list[Talk]]) -> Talk:
    """Fills the store in `root` with something of everything: what is in it."""
    original, done = made
    if not done:
        shutil.copytree(initialised, original)
        done.append(stores.talk(original))
    if IS_POSTGRES:
        with Store.open(original) as source, Store.open(root) as target:
            assert not copy_store(source, target).failed
    else:
        shutil.copytree(original, root, dirs_exist_ok=True)
    return done[0]


@pytest.fixture
def guard() -> Guard:
    """What the pages of this test did that they may not do; the test fails for it at its end."""
    return Guard()


@pytest.fixture
def serve(tmp_path: Path, guard: Guard) -> Iterator[Callable[..., Served]]:
    """Starts `capsule web` over a store, with further words; it has ended when the test ends."""
    numbers, started = count(), list[Served]()

    def start(root: Path, *words: str, env: dict[str, str] | None = None) -> Served:
        started.append(Served(root, words, tmp_path / f"web-{next(numbers)}.txt", guard.bases, env))
        return started[-1]

    yield start
    for each in started:
        each.stop()


@pytest.fixture
def client(store: Store, tmp_path: Path) -> Iterator[TestClient]:
    """The pages of `store` in this process, without a browser, asked as its owner; redirects are
    not followed.

    `/events` ends there only if it is asked with `wait=0`.
    """
    from starlette.testclient import TestClient

    from capsule.mcp_server.access import Tokens
    from capsule.web.server import application
    from capsule.web.site import WebSite

    site = WebSite(store, Tokens(tmp_path / "config", store.root))
    headers = {"origin": "http://testserver"}
    with TestClient(
        application(site, ("testserver",)), headers=headers, follow_redirects=False
    ) as client:
        assert client.get(site.opening("http://testserver")).status_code == 303
        yield client


# Not for the session: where playwright runs, `asyncio.run` of other tests in this process is
# refused.
@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser. Without one, the test is skipped."""
    pytest.importorskip("playwright", reason="no playwright: make test-all installs it")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE_S * 1000)
    with sync_playwright() as playwright:
        browser = launch(playwright, tmp_path_factory.mktemp("browser"))
        yield browser
        browser.close()


@pytest.fixture
def contexts(
    browser: Browser, guard: Guard, serve: object
) -> Iterator[Callable[..., BrowserContext]]:
    """Makes contexts, each with cookies of its own, with options as `browser.new_context` takes
    them.
    """
    # It needs `serve`, so that pages are closed before the server ends.
    usual = {
        "locale": "en-GB",
        "timezone_id": "Europe/Berlin",
        "viewport": {"width": 1280, "height": 800},
    }
    made: list[BrowserContext] = []

    def new(**options: Any) -> BrowserContext:
        made.append(
            guard.watch(browser.new_context(**usual | {"reduced_motion": "reduce"} | options))
        )
        return made[-1]

    yield new
    try:
        guard.check()
    finally:
        for context in made:
            context.close()


@pytest.fixture
def context(contexts: Callable[..., BrowserContext]) -> BrowserContext:
    """The browser of a person at a desk."""
    return contexts()


@pytest.fixture
def page(context: BrowserContext) -> Page:
    """An empty page, watched."""
    return context.new_page()


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    """An address of this machine that no page may connect to."""
    elsewhere = Elsewhere()
    yield elsewhere
    is_untouched = elsewhere.is_untouched()
    elsewhere.close()
    assert is_untouched, "somebody connected to an address that only stored texts name"
