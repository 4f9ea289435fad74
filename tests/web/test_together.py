"""Tabs, a command, an editor and agents at once on one conversation, large ones, and a server that
many tabs hold.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from capsule import Store
from tests.processes import Child, until
from tests.web import stores
from tests.web.browser import Guard
from tests.web.serving import Served

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

pytestmark = pytest.mark.slow

_TEXTS = """() => [...document.querySelectorAll("#messages article .text")].map((each) => each.textContent.trim())"""
_AS_SAVED = """
import json, os
path = sys.argv[1]
document = json.loads(open(path).read())
document["title"] = "Typed title"
document["history"].append({"role": "user", "content": "typed in an editor"})
with open(path + "~", "w") as file:
    json.dump(document, file, indent=2)
os.replace(path + "~", path)
say(len(document["history"]))
"""
_APPENDING = """
with Store.open(sys.argv[1]) as store:
    for number in range(int(sys.argv[3])):
        say(store.append(sys.argv[2], role="user", content=f"by a program {number}").id)
"""


def texts(page: Page) -> list[str]:
    return page.evaluate(_TEXTS)


def write(page: Page, text: str) -> None:
    """Write in the page, also when it says that somebody wrote meanwhile."""
    page.locator("#content").fill(text)
    page.locator("#compose button").click()
    until(lambda: page.locator("#compose .said").text_content() == "Sent" or again(page))


def again(page: Page) -> bool:
    """Send anyway, if the page says that somebody wrote meanwhile."""
    button = page.locator("#compose button")
    if button.is_enabled() and button.text_content() == "Send anyway":
        button.click()
    return False


def test_two_browsers_a_command_and_an_editor_see_everything_once(
    root: Path, serve: Callable[..., Served], contexts: Callable[..., BrowserContext], child: Callable[..., Child],
    guard: Guard,
) -> None:  # fmt: skip
    guard.expect("status of 409")  # Somebody wrote meanwhile.
    with Store.open(root, keep_locks=False) as store:
        store.agents.register("bob")
        id = store.create(title="Plan", messages=[{"role": "user", "content": "the first"}]).id
        owners, bobs = serve(root), serve(root, "--as", "bob")
        anna, bob = owners.open(contexts(), f"/c/{id}"), bobs.open(contexts(), f"/c/{id}")
        written = ["the first"]
        for round in range(3):
            for page, name in ((anna, "anna"), (bob, "bob")):
                write(page, f"by {name} {round}")
            command = ("append", id, f"by a command {round}", "--store", str(root))
            subprocess.run(
                [sys.executable, "-m", "capsule_cli", *command], check=True, capture_output=True
            )
            written += [f"by {name} {round}" for name in ("anna", "bob", "a command")]
        child(_AS_SAVED, str(root / "conversations" / f"{id}.json")).hear()
        written += ["typed in an editor"]
        write(anna, "after the editor")
        written += ["after the editor"]
        for page in (anna, bob):
            until(lambda page=page: sorted(texts(page)) == sorted(written))  # type: ignore[misc]
            until(lambda page=page: page.locator("h1").text_content() == "Typed title")  # type: ignore[misc]
        assert [entry.content for entry in store.tail(id, 100)] == texts(anna) == texts(bob)
    document = json.loads((root / "conversations" / f"{id}.json").read_bytes())
    assert [entry["content"] for entry in document["history"]] == texts(anna)


def test_a_server_that_is_killed_while_tabs_write_and_sleep_loses_and_doubles_nothing(
    root: Path, serve: Callable[..., Served], contexts: Callable[..., BrowserContext], child: Callable[..., Child],
    guard: Guard,
) -> None:  # fmt: skip
    guard.expect("ERR_|Failed to load|net::")
    with Store.open(root, keep_locks=False) as store:
        id = store.create(title="Plan", messages=[{"role": "user", "content": "the first"}]).id
        served = serve(root)
        awake, asleep = (served.open(contexts(), f"/c/{id}") for _ in range(2))
        write(awake, "before")
        until(lambda: len(texts(asleep)) == 2)
        asleep.context.set_offline(True)
        served.kill()
        awake.locator("#content").fill("while it was away")
        awake.locator("#compose button").click()
        until(lambda: "Not sent yet" in str(awake.locator("#compose .said").text_content()))
        program = child(_APPENDING, str(root), id, "150")
        written = [program.hear() for _ in range(150)]
        served.restart()
        until(
            lambda: awake.locator("#compose .said").text_content() == "Sent" or again(awake)
        )  # 150 came meanwhile.
        assert len(texts(asleep)) == 2
        asleep.context.set_offline(False)
        expected = [each.content for each in store.tail(id, 400)]
        assert len(expected) == len(written) + 3
        for page in (awake, asleep):
            until(lambda page=page: texts(page) == expected)  # type: ignore[misc]


def test_a_hundred_thousand_messages_are_read_searched_and_followed_in_windows(
    root: Path, serve: Callable[..., Served], page: Page
) -> None:
    id, count = stores.large(root), "() => document.querySelectorAll('article').length"
    with Store.open(root, keep_locks=False) as store:
        served = serve(root)
        served.open(page, f"/c/{id}")
        until(lambda: page.locator("#messages > .window:last-child [data-at='99999']").count())
        for number in range(5):
            last = store.append(id, role="user", content=f"needle {number}").id
            until(lambda last=last: page.locator(f"#m-{last}").count())  # type: ignore[misc]
        assert page.evaluate(count) < 400
        middle = str(store.page(id, 1, around="@50000").entries[0][1]["id"])
        served.open(page, f"/c/{id}/m/{middle}")
        assert page.locator("[data-chosen]").get_attribute("data-at") == "50000"
        for _ in range(6):
            before = page.locator("article").last.get_attribute("data-at")
            page.locator(".later > a").last.scroll_into_view_if_needed()
            until(
                lambda before=before: (
                    page.locator("article").last.get_attribute("data-at") != before
                )
            )  # type: ignore[misc]
            assert page.evaluate(count) < 400
        page.locator("#find").fill("needle 3")
        page.locator("#find").press("Enter")
        page.locator(".hits a").first.click()
        until(lambda: "needle 3" in str(page.locator("[data-chosen] .text").text_content()))
        assert page.evaluate(count) < 400


def descriptors(served: Served) -> int:
    return len(os.listdir(f"/proc/{served.process.pid}/fd"))


def threads(served: Served) -> int:
    return len(os.listdir(f"/proc/{served.process.pid}/task"))


def raw(served: Served, head: str, body: bytes = b"") -> socket.socket:
    """A connection over which a request, or the beginning of one, was sent."""
    cookie = "; ".join(f"{each.name}={each.value}" for each in served.client.cookies.jar)
    opened = socket.create_connection(("127.0.0.1", served.port or 0))
    opened.sendall(
        f"{head} HTTP/1.1\r\nhost: 127.0.0.1:{served.port}\r\ncookie: {cookie}\r\n".encode() + body
    )
    return opened


def test_many_streams_and_slow_forms_delay_nobody_and_the_server_ends_with_them(
    root: Path, serve: Callable[..., Served]
) -> None:
    with Store.open(root, keep_locks=False) as store:
        id = store.create(title="Plan").id
        served = serve(root)
        with ExitStack() as stack:
            streams = [stack.enter_context(raw(served, "GET /events", b"\r\n")) for _ in range(50)]
            form = (
                b"content-type: application/x-www-form-urlencoded\r\ncontent-length: "
                b"900\r\n\r\ncontent="
            )
            for _ in range(50):
                stack.enter_context(raw(served, f"POST /c/{id}/messages", form))
            for stream in streams:
                assert b"200 OK" in stream.recv(65536)
            assert served.client.get(f"/c/{id}").status_code == 200
            store.append(id, role="user", content="to all")
            for stream in streams:
                said = b""
                while b"appended" not in said:
                    said += stream.recv(65536)
            assert served.stop() == 0


def test_two_hundred_loads_leave_no_thread_and_no_descriptor(
    root: Path, serve: Callable[..., Served]
) -> None:
    with Store.open(root, keep_locks=False) as store:
        id = store.create(title="Plan", messages=[{"role": "user", "content": "hello"}]).id
    served = serve(root)
    assert served.client.get("/new").status_code == 200
    paths = [
        "/",
        f"/c/{id}",
        f"/c/{id}/tree",
        "/search?q=hello",
        "/people",
        "/overview",
        "/events?wait=0",
        "/nothing",
    ]

    def load(path: str) -> None:
        assert served.client.get(path).status_code in (200, 404)

    with ThreadPoolExecutor(8) as threads_:
        list(threads_.map(load, paths * 5))
        known = descriptors(served), threads(served)
        list(threads_.map(load, paths * 25))
    assert descriptors(served) <= known[0] + 4
    assert threads(served) <= known[1] + 4


@pytest.mark.parametrize("kind", ["urlencoded", "field", "file"])
def test_a_form_that_is_far_too_large_is_refused_and_changes_nothing(
    root: Path, serve: Callable[..., Served], kind: str
) -> None:
    with Store.open(root, keep_locks=False) as store:
        id = store.create(title="Plan").id
        served, large = serve(root), b"x" * 50_000_000
        forms = {
            "urlencoded": {"data": {"content": large.decode()}},
            "field": {"data": {"content": large.decode()}, "files": {"other": b"x"}},
            "file": {"data": {}, "files": {"content": large}},
        }
        headers = {"origin": served.base}
        answer = served.client.post(f"/c/{id}/messages", headers=headers, **forms[kind])  # type: ignore[arg-type]
        assert answer.status_code in (400, 413)
        assert served.client.get(f"/c/{id}").status_code == 200
        assert store.tail(id, 1) == []
