"""Who is let in to the page, and what every answer forbids. Without a browser and without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest

from capsule import Store
from capsule.mcp_server.transport.tokens import Tokens
from capsule.web.server import application
from capsule.web.site import Site

HOST = "127.0.0.1:7450"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str
    cookies: list[str]


class Door:
    """The application, asked as a browser would ask it."""

    def __init__(self, store: Store, tokens: Tokens) -> None:
        self.site = Site(store, tokens, f"http://{HOST}")
        self._app = application(self.site, (HOST,))
        self.cookie = ""

    def enter(self, token: str) -> Answer:
        """Come with a token, and keep the cookie."""
        answer = self.ask(f"/?token={token}")
        if answer.cookies:
            self.cookie = answer.cookies[0].partition(";")[0]
        return answer

    def ask(self, path: str, form: dict[str, str] | None = None, **headers: str) -> Answer:
        given = {"host": HOST, "cookie": self.cookie}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        body = urlencode(form or {}).encode()
        if form is not None:
            given.setdefault("content-type", "application/x-www-form-urlencoded")
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": "GET" if form is None else "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in given.items() if value],
            "scheme": "http",
            "server": ("127.0.0.1", 7450),
        }
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(self._app(scope, receive, send))  # type: ignore[arg-type]
        pairs = [(name.decode(), value.decode()) for name, value in sent[0]["headers"]]
        text = b"".join(message.get("body", b"") for message in sent[1:]).decode()
        return Answer(sent[0]["status"], dict(pairs), text, [value for name, value in pairs if name == "set-cookie"])


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "config", str(tmp_path / "store"))


@pytest.fixture
def door(tmp_path: Path, tokens: Tokens) -> Iterator[Door]:
    Store.init(tmp_path / "store")
    with Store.open(tmp_path / "store") as store:
        yield Door(store, tokens)


def test_nothing_is_shown_without_a_cookie(door: Door) -> None:
    for path in ("/", "/c/x", "/events", "/search?q=x", "/inbox", "/?token=wrong"):
        assert door.ask(path).status == 401, path
    assert door.ask("/c/x/messages", {"content": "hi"}).status == 401


def test_an_address_opens_the_page_once(door: Door) -> None:
    token = door.site.admission.token()
    entered = door.enter(token)
    assert (entered.status, entered.headers["location"]) == (303, "/")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(entered.cookies[0].split("; "))
    assert door.ask("/").status == 200
    door.cookie = ""
    assert door.ask(f"/?token={token}").status == 401


def test_a_cookie_opens_no_other_store_and_can_not_be_made_up(door: Door, tmp_path: Path, tokens: Tokens) -> None:
    door.enter(door.site.admission.token())
    name, _, value = door.cookie.partition("=")
    data, _, mac = value.rpartition(".")
    for other in (f"{data}.{mac[:-1]}{'0' if mac[-1] != '0' else '1'}", f"{data[:-2]}AA.{mac}", "x", "."):
        door.cookie = f"{name}={other}"
        assert door.ask("/").status == 401, other
    Store.init(tmp_path / "other")
    with Store.open(tmp_path / "other") as store:
        second = Door(store, tokens)
        second.cookie = f"{second.site.cookie}={value}"
        assert second.ask("/").status == 401


def test_a_cookie_of_an_agents_server_does_not_open_the_owners(door: Door, tmp_path: Path, tokens: Tokens) -> None:
    with door.site.store.beside(agent="anna") as store:
        annas = Door(store, tokens)
        annas.enter(annas.site.admission.token())
        assert annas.ask("/").status == 200
        door.cookie = annas.cookie
    assert door.ask("/").status == 401


def test_a_revoked_token_ends_its_cookies(door: Door, tokens: Tokens) -> None:
    token = tokens.add("anna")
    assert door.enter(token).status == 303
    assert "as anna" in door.ask("/").text
    tokens.revoke("anna")
    assert door.ask("/").status == 401
    tokens.add("anna")  # The cookie is of the token before.
    assert door.ask("/").status == 401


def test_a_foreign_host_is_refused_also_with_the_cookie(door: Door) -> None:
    door.enter(door.site.admission.token())
    for host in ("evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:7450", ""):
        assert door.ask("/", host=host).status == 403, host


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": f"http://{HOST}.evil.example"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"content_type": "text/plain"},
        {"content_type": "application/json"},
    ],
)
def test_a_form_of_another_site_changes_nothing(door: Door, headers: dict[str, str]) -> None:
    door.enter(door.site.admission.token())
    made = door.site.store.create(title="Plan")
    assert door.ask(f"/c/{made.id}/messages", {"content": "hi"}, **headers).status == 403
    assert door.site.store.tail(made.id, 1) == []


def test_every_answer_forbids_what_comes_from_elsewhere(door: Door) -> None:
    door.enter(door.site.admission.token())
    for path in ("/", "/nothing", "/c/x", f"/static/{door.site.version}/page.css", "/static/x/nothing"):
        headers = door.ask(path).headers
        assert "default-src 'self'" in headers["content-security-policy"], path
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == ("no-store" if "page.css" not in path else headers["cache-control"])


def test_the_way_back_from_a_token_stays_on_this_host(door: Door) -> None:
    entered = door.enter(door.site.admission.token() + "&x=1")
    assert entered.headers["location"] == "/?x=1"
    for path in ("//evil.example/", "/\\evil.example"):
        answer = door.ask(f"{path}?token={door.site.admission.token()}")
        assert not answer.headers["location"].startswith(("//", "/\\")), path
