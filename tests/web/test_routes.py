"""Every address of the page, by its routes: who is refused, what no agent is shown, and that
nothing breaks it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from html import unescape
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urljoin, urlsplit

import pytest

from capsule import Store
from capsule.mcp_server.access import Tokens
from capsule.web import events, pages
from capsule.web.server import ROUTES
from tests.web import stores
from tests.web.stores import Talk
from tests.web.test_admission import HOST, Answer, Door

if TYPE_CHECKING:
    from starlette.testclient import TestClient

FORM = "application/x-www-form-urlencoded"
#: The way in and the way out are for everybody, from a form of the page.
FOR_ALL = {"/enter", "/sign-out"}
CANARY = "zzcanary"
HOSTILE = [
    "\0", "../../../../etc/passwd", "..", "9" * 5000, "-1", "1e999", "\u0663", '{"$where": 1}', "[" * 3000, "[1]",
    "a\r\nset-cookie: a=b", '"never closed', "NEAR( AND", "*", "//evil.example/", "\\evil.example",
    "\u202e\ufeff", "https://evil.example", "</textarea><script>canary()</script>", "\U0001f600" * 2000,
    "direct_anna_bob", "notes_anna", "0001-01-01", "-99999999d", "null",
]  # fmt: skip


def routes(method: str) -> list[str]:
    return [route.path for route in ROUTES if method in (route.methods or ())]


def filled(path: str, /, **values: str) -> str:
    """The address of a route; what no value is given for is an id that nothing has."""
    return re.sub(
        r"{(\w+)(:path)?}", lambda found: quote(values.get(found[1], "nothing"), safe=""), path
    )


def module_of(path: str, method: str) -> ModuleType | None:
    """The module of a route."""
    for module in (events, *(each for each in vars(pages).values() if inspect.ismodule(each))):
        if any(
            route.path == path and method in (route.methods or ())
            for route in getattr(module, "ROUTES", ())
        ):
            return module
    return None


@pytest.fixture
def tokens(store: Store, tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "config", store.root)


@pytest.fixture
def door(store: Store, tokens: Tokens) -> Door:
    door = Door(store, tokens)
    door.enter(door.site.admission.token())
    return door


@pytest.mark.parametrize("path", routes("POST"))
def test_no_form_is_taken_from_another_site_or_from_nobody_or_from_who_only_reads(
    door: Door, tokens: Tokens, store: Store, path: str
) -> None:
    store.agents.register("anna")
    id = store.create(title="Plan").id
    before, address = store.changes().cursor, filled(path, id=id, agent="anna", message="@0")
    fields = {
        "content": "x",
        "title": "x",
        "text": "x",
        "do": "status",
        "how": "place",
        "on": "yes",
        "agent": "anna",
    }
    for headers in (
        {"origin": "null"},
        {"origin": f"http://{HOST}.evil.example"},
        {"origin": f"ftp://{HOST}"},
        {"sec_fetch_site": "cross-site", "origin": f"http://{HOST}"},
        {"sec_fetch_site": "same-site"},
        {"content_type": "text/plain"},
        {"content_type": "application/json"},
        {"content_type": f"text/plain; {FORM}"},
        {"host": "evil.example"},
        {"host": HOST.upper() + "."},
    ):
        assert door.ask(address, fields, **headers).status == 403, headers
    assert door.ask(address, fields, cookie="x=y").status == 401
    door.enter_token(tokens.add("anna", scope="read"))
    assert path in FOR_ALL or door.ask(address, fields).status == 403
    assert list(store.changes(before).changes) == []


def test_every_answer_forbids_what_comes_from_elsewhere_and_is_kept_nowhere(door: Door) -> None:
    for path in routes("GET"):
        headers = door.ask(filled(path) + "?wait=0").headers
        assert headers["content-security-policy"].startswith("default-src 'self'; "), path
        assert (headers["x-content-type-options"], headers["cache-control"]) == (
            "nosniff",
            "no-store",
        ), path
        assert headers["cross-origin-resource-policy"] == "same-origin", path


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(set(routes("GET"))))
def test_no_hostile_address_breaks_a_page_or_leads_away(
    client: TestClient, talk: Talk, path: str
) -> None:
    source = inspect.getsource(module) if (module := module_of(path, "GET")) else ""
    asked = (
        {"cursor", "part", *re.findall(r'(?:asked|every)\("(\w+)"\)', source)} - {"wait"}
        if module
        else set()
    )
    known = filled(
        path, id=talk.plan, message="@0", agent="anna", project=talk.projects[0], channel="general"
    )
    addresses = [
        filled(path, **dict.fromkeys(re.findall(r"{(\w+)", path), text))
        for text in HOSTILE
        if "{" in path
    ]
    addresses += [f"{known}?wait=0&{name}={quote(text)}" for name in asked for text in HOSTILE]
    for address in addresses:
        answer = client.get(address if "?" in address else f"{address}?wait=0")
        assert answer.status_code < 500, f"{address[:200]}: {answer.text}"
        assert "set-cookie" not in answer.headers and "root:" not in answer.text
        assert "<script>canary" not in answer.text or answer.headers["content-type"].startswith(
            "text/plain"
        )
        to = urljoin("http://testserver", answer.headers.get("location", ""))
        assert urlsplit(to).netloc == "testserver", address


@pytest.mark.slow
@pytest.mark.parametrize("path", routes("POST"))
def test_no_hostile_form_breaks_a_page_or_leads_away(
    client: TestClient, talk: Talk, path: str
) -> None:
    module = module_of(path, "POST")
    assert module is not None
    source = inspect.getsource(module)
    names = {
        *re.findall(r'(?:sent|said\.get)\("(\w+)"', source),
        "id",
        "parent",
        "message",
        "value",
    }
    does = {*re.findall(r'do == "(\w+)"|"(\w+)": lambda', source), ("", "")} | {
        ("retry", ""),
        ("cancel", ""),
    }
    known = filled(
        path, id=talk.plan, message="@0", agent="anna", project=talk.projects[0], channel="general"
    )
    for text in HOSTILE:
        for address in (known, filled(path, **dict.fromkeys(re.findall(r"{(\w+)", path), text))):
            for do in map("".join, does if ": lambda" in source else [("", "")]):
                answer = client.post(
                    address, data=dict.fromkeys(names, text) | {"do": do or text, "how": "place"}
                )
                assert answer.status_code < 500, (
                    f"{address[:200]} {do} {text[:40]!r}: {answer.text}"
                )
                assert "<script>canary" not in answer.text
                to = urljoin("http://testserver", answer.headers.get("location", ""))
                assert urlsplit(to).netloc == "testserver", (address, do, text)


def links(door: Door, begin: Iterable[str]) -> Iterator[tuple[str, Answer]]:
    """All pages that links and forms of pages lead to, from some addresses on, each with its
    answer.
    """
    waiting, seen = list(begin), set(begin)
    while waiting:
        answer = door.ask(waiting[0])
        yield waiting.pop(0), answer
        for found in re.findall(r'(?:href|src|action)="([^"]*)"', answer.text):
            parts = urlsplit(urljoin(f"http://{HOST}", unescape(found)))
            address = unquote(parts.path) + (f"?{parts.query}" if parts.query else "")
            if parts.netloc == HOST and address not in seen and not address.startswith("/static/"):
                seen.add(address)
                waiting.append(address)


@pytest.fixture
def secrets(store: Store, root: Path, tmp_path: Path) -> set[str]:
    """Something of everything that is not for carl, with the canary in its texts. Returns: the ids
    of it.
    """
    for folder in (f"{CANARY}/api", "web"):
        (tmp_path / folder).mkdir(parents=True)
    for agent in ("anna", "bob"):
        store.agents.register(
            agent, str(tmp_path / CANARY / "api"), name=f"{CANARY}-{agent}", description=CANARY
        )
    store.agents.register("carl", str(tmp_path / "web"))
    store.agents.set_status("anna", CANARY)
    group = store.groups.create(f"Group {CANARY}", agent="anna", with_=["bob"]).id
    store.update(group, tagged=[CANARY])
    messages = store.messages
    sent = [
        messages.send(f"@bob --review {CANARY}", agent="anna", conversation=group).message
        for _ in range(4)
    ]
    messages.send(f"It is {CANARY}", agent="anna", to="bob")
    direct = messages.send(f"I know {CANARY}", agent="bob", to="anna").conversation
    plans = store.channels.create("plans", agent="anna", description=CANARY).id
    messages.send(CANARY, agent="anna", channel=plans, topic=CANARY)
    store.notes.write(f"A note of {CANARY}", agent="anna", tags=[CANARY])
    store.branches.remove(group, str(sent[1]))
    gone = store.groups.create(f"Gone {CANARY}", agent="anna", with_=["bob"]).id
    store.delete(gone)
    store.summaries.add(group, f"A summary of {CANARY}")
    store.locks.take(direct, client=CANARY, agent="anna")
    store.create(title="For everybody", messages=[{"role": "user", "content": "hello"}])
    for agent in ("anna", "bob"):
        store.agents.policy(agent, discoverable="private")
    store.flush()
    stores.dispute(root, group)
    return {group, direct, plans, gone, *map(str, sent)}


@pytest.mark.slow
def test_no_page_and_no_event_says_what_an_agent_may_not_read(
    door: Door, store: Store, tokens: Tokens, secrets: set[str]
) -> None:
    owners = dict(links(door, ["/", "/overview?health=1", f"/search?q={CANARY}", "/?archived=any"]))
    assert sum(CANARY in answer.text for answer in owners.values()) > 20
    agents = Door(store, tokens)
    agents.enter_token(tokens.add("carl", scope="admin"))
    walked = dict(links(agents, [*owners, f"/search?q={CANARY}", "/events?wait=0&since="]))
    for path in routes("POST"):
        for id in secrets:
            for do in ("done", "read", "allow", "join", "cancel"):
                address = filled(
                    path, id=id, channel=id, agent="anna", message="@0", token=id, session=id
                )
                fields = {
                    "do": do,
                    "id": id,
                    "content": "x",
                    "title": "x",
                    "how": "place",
                    "emoji": "x",
                }
                walked[f"{address} {do} {id}"] = agents.ask(address, fields)
    for address, answer in walked.items():
        for word in {CANARY, *secrets}:
            assert word in unquote(address) or word not in answer.text, f"{address}: {answer.text}"
