"""Who is let in to the page, and what every answer forbids. Without a browser and without
a socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest

from capsule import Store
from capsule.errors import Refused
from capsule.mcp_server.access import Tokens
from capsule.mcp_server.transport import process
from capsule.web.names import address_for_browser, own_name
from capsule.web.server import application
from capsule.web.site import WebSite

HOST = "127.0.0.1:7450"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str
    cookies: list[str]


class Door:
    """The application, asked as a browser would ask it."""

    def __init__(self, store: Store, tokens: Tokens) -> None:
        self.site = WebSite(store, tokens)
        self._app = application(self.site, (HOST,))
        self.cookie = ""

    def enter(self, token: str) -> Answer:
        """Come with a token, and keep the cookie."""
        answer = self.ask(f"/?token={token}")
        if answer.cookies:
            self.cookie = answer.cookies[0].partition(";")[0]
        return answer

    def enter_token(self, token: str, to: str = "/") -> Answer:
        """Enter a token in the form, and keep the cookie."""
        answer = self.ask("/enter", {"token": token, "to": to})
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
        return Answer(
            sent[0]["status"],
            dict(pairs),
            text,
            [value for name, value in pairs if name == "set-cookie"],
        )


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


def test_a_cookie_opens_no_other_store_and_can_not_be_made_up(
    door: Door, tmp_path: Path, tokens: Tokens
) -> None:
    door.enter(door.site.admission.token())
    name, _, value = door.cookie.partition("=")
    data, _, mac = value.rpartition(".")
    for other in (
        f"{data}.{mac[:-1]}{'0' if mac[-1] != '0' else '1'}",
        f"{data[:-2]}AA.{mac}",
        "x",
        ".",
    ):
        door.cookie = f"{name}={other}"
        assert door.ask("/").status == 401, other
    Store.init(tmp_path / "other")
    with Store.open(tmp_path / "other") as store:
        second = Door(store, tokens)
        second.cookie = f"{second.site.cookie}={value}"
        assert second.ask("/").status == 401


def test_a_cookie_of_an_agents_server_does_not_open_the_owners(
    door: Door, tmp_path: Path, tokens: Tokens
) -> None:
    with door.site.store.beside(agent="anna") as store:
        annas = Door(store, tokens)
        annas.enter(annas.site.admission.token())
        assert annas.ask("/").status == 200
        door.cookie = annas.cookie
    assert door.ask("/").status == 401


def test_a_revoked_token_ends_its_cookies(door: Door, tokens: Tokens) -> None:
    token = tokens.add("anna")
    assert door.enter_token(token).status == 303
    assert "as anna" in door.ask("/").text
    tokens.revoke("anna")
    assert door.ask("/").status == 401
    tokens.add("anna")  # The cookie is of the token before.
    assert door.ask("/").status == 401


def test_a_token_of_an_agent_is_entered_in_a_form_and_opens_nothing_in_an_address(
    door: Door, tokens: Tokens
) -> None:
    token = tokens.add("anna")
    assert (door.enter(token).status, door.cookie) == (401, "")
    wrong = door.enter_token("capsule_wrong")
    assert (wrong.status, wrong.cookies) == (401, [])
    entered = door.enter_token(token, to="/people?after=b")
    assert (entered.status, entered.headers["location"]) == (303, "/people?after=b")
    assert "as anna" in door.ask("/").text
    again = door.enter(token)
    assert (again.status, again.headers["location"], again.cookies) == (303, "/", [])


def test_what_is_entered_is_sent_by_a_form_of_ours_is_small_and_leads_nowhere_else(
    door: Door, tokens: Tokens
) -> None:
    token = tokens.add("anna")
    for headers in (
        {"origin": "http://evil.example"},
        {"sec_fetch_site": "cross-site"},
        {"content_type": "text/plain"},
    ):
        refused = door.ask("/enter", {"token": token}, **headers)
        assert (refused.status, refused.cookies) == (403, []), headers
    assert door.ask("/enter", {"token": "x" * 10_000}).status == 400
    for to in ("//evil.example", "/\\evil.example", "https://evil.example"):
        location = door.enter_token(token, to).headers["location"]
        assert location.startswith("/") and not location.startswith(("//", "/\\")), to


def test_an_address_asks_before_it_makes_a_browser_somebody_else(
    door: Door, tokens: Tokens
) -> None:
    door.enter(door.site.admission.token())
    with door.site.store.beside(agent="anna") as store:
        annas = Door(store, tokens)
        annas.cookie, token = door.cookie, annas.site.admission.token()
        asked = annas.ask(f"/people?after=b&token={token}", accept="text/html")
        assert (asked.status, asked.cookies) == (409, [])
        assert "as anna?" in asked.text and "open as the owner" in asked.text
        assert annas.ask(f"/?token={token}").status == 409  # It is not used up by the question.
        assert door.ask("/").status == 200
        assert annas.enter_token(token).status == 303
        assert "as anna" in annas.ask("/").text
        assert annas.enter(annas.site.admission.token()).status == 303  # Nobody is replaced.


def test_who_signs_out_is_out_in_this_browser_or_in_all_of_them_at_every_server(
    door: Door, tokens: Tokens
) -> None:
    door.enter(door.site.admission.token())
    first = door.cookie
    with door.site.store.beside() as store:
        other = Door(store, tokens)
        other.enter(other.site.admission.token())
        out = door.ask("/sign-out", {"where": "here"})
        assert (
            out.status == 303
            and all("Max-Age=0" in cookie for cookie in out.cookies)
            and len(out.cookies) == 2
        )
        assert (
            door.ask("/").status == other.ask("/").status == 200
        )  # Only the browser has forgotten it.
        door.ask("/sign-out", {"where": "everywhere"})
        door.cookie = first
        assert door.ask("/").status == other.ask("/").status == 401
        door.enter(door.site.admission.token())
        assert door.ask("/").status == 200


def test_an_agent_with_a_token_ends_only_the_pages_of_its_own_browser(
    door: Door, tokens: Tokens
) -> None:
    door.enter_token(tokens.add("anna", scope="read"))
    assert "in every browser" not in door.ask("/people").text
    assert door.ask("/sign-out", {"where": "everywhere"}).status == 403
    assert door.ask("/").status == 200
    assert door.ask("/sign-out", {"where": "here"}).status == 303


def test_a_store_that_can_not_be_written_keeps_its_cookies(
    door: Door, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise Refused("read-only", path="")

    monkeypatch.setattr(door.site.store.inner.whole_engine.local, "_edit", refuse)
    (Path(door.site.store.root) / ".capsule" / "local" / "keys" / "web.json").unlink(
        missing_ok=True
    )
    other = Door(door.site.store, tokens)
    other.enter(other.site.admission.token())
    assert other.ask("/").status == other.ask("/").status == 200


def test_a_text_for_the_store_that_had_the_address_before_is_refused(door: Door) -> None:
    door.enter(door.site.admission.token())
    id = door.site.store.create(title="Plan").id
    sent = door.ask(
        f"/c/{id}/messages", {"content": "for the other"}, capsule_store="capsule-000000000000"
    )
    assert (sent.status, door.site.store.tail(id, 1)) == (403, [])
    assert (
        door.ask(
            f"/c/{id}/messages", {"content": "for this"}, capsule_store=door.site.cookie
        ).status
        == 303
    )


def test_no_stranger_is_told_the_name_of_the_server(door: Door) -> None:
    name = own_name(door.site.store.inner.whole_engine.local)
    asked = [
        door.ask(path, accept=kind)
        for path in ("/", "/?token=x", "/enter")
        for kind in ("text/html", "*/*")
    ]
    asked += [door.ask("/", host="evil.example"), door.ask("/c/x/messages", {"content": "x"})]
    for answer in asked:
        assert name.partition(".")[0] not in answer.text + str(answer.headers)
    assert (
        name.partition(".")[0] != door.site.cookie
    )  # Browsers send it to every port of 127.0.0.1.


def test_a_browser_gets_the_name_where_it_can_be_reached_by_it() -> None:
    with process.listen("127.0.0.1", 0).socket as listening:
        port = listening.getsockname()[1]
        here = process.ListeningSocket(listening, "127.0.0.1", port, True)
        assert (
            address_for_browser("capsule-1.localhost", here, "linux")
            == f"http://capsule-1.localhost:{port}"
        )
        # Safari asks the system, which knows no such name.
        assert (
            address_for_browser("capsule-1.invalid", here, "darwin") == f"http://127.0.0.1:{port}"
        )
        assert address_for_browser("localhost", here, "darwin") == f"http://localhost:{port}"
        other = process.ListeningSocket(listening, "127.0.0.2", port, True)
        assert (
            address_for_browser("capsule-1.localhost", other, "linux") == f"http://127.0.0.2:{port}"
        )


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
    for path in (
        "/",
        "/nothing",
        "/c/x",
        f"/static/{door.site.version}/page.css",
        "/static/x/nothing",
    ):
        headers = door.ask(path).headers
        assert "default-src 'self'" in headers["content-security-policy"], path
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == (
            "no-store" if "page.css" not in path else headers["cache-control"]
        )


def test_the_way_back_from_a_token_stays_on_this_host(door: Door) -> None:
    entered = door.enter(door.site.admission.token() + "&x=1")
    assert entered.headers["location"] == "/?x=1"
    for path in ("//evil.example/", "/\\evil.example"):
        answer = door.ask(f"{path}?token={door.site.admission.token()}")
        assert not answer.headers["location"].startswith(("//", "/\\")), path
