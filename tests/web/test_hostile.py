"""A store whose every text is hostile: no page runs one, loads anything for one, or shows less of
it than its text.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from benchmarks.fixtures import STAMP
from capsule import Store
from capsule.errors import InvalidInput, Refused
from capsule.format.documents.creation import new_capsule
from capsule.format.json.codec import encode
from tests.processes import until
from tests.web.browser import Guard
from tests.web.hostile import HOSTILE
from tests.web.serving import Served

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow

#: Those that a file can hold: no half characters.
TEXTS = [text for text in HOSTILE if not any("\ud800" <= sign <= "\udfff" for sign in text)]
IDS = [text[:200] for text in TEXTS] + [
    ".",
    "..",
    "../../new",
    "a/edit",
    "a/../../x",
    "%2e%2e",
    "?x",
    "#x",
    "@0",
]


def message(place: int, **fields: Any) -> dict[str, Any]:
    """A message with a hostile text in each of its fields."""
    text, name = TEXTS[place % len(TEXTS)], TEXTS[place % len(TEXTS)][:90]
    call = {
        "id": f"call-{name}",
        "name": name,
        "arguments": {name: text, "file_path": name, "command": text},
    }
    file = {"name": name, "type": name, "path": name, "sha256": "0" * 64}
    said = {
        "reasoning": text,
        "toolCalls": [call],
        "model": name,
        "attachments": [file],
        "topic": name,
    }
    role = "user" if place % 2 else "assistant"
    return (
        {"role": role, "content": text, "id": IDS[place], "from": name, "timestamp": STAMP}
        | said
        | fields
    )


@pytest.fixture
def world(root: Path, tmp_path: Path) -> list[str]:
    """Fills the store. Returns: the addresses of its pages."""
    store = Store.open(root)
    folder = tmp_path / "<img src=x onerror=canary()> & 'web'"
    folder.mkdir()
    for at, agent in enumerate(("anna", "bob", "eve", "zoe")):
        store.agents.register(
            agent, str(folder) if at < 2 else None, name=plain(14 + at), description=TEXTS[13]
        )
        store.agents.set_status(agent, plain(at))
    store.agents.policy("zoe", dm="restricted")
    with pytest.raises(Refused):
        store.messages.send(TEXTS[0], agent="eve", to="zoe")
    direct = store.messages.send(TEXTS[0], agent="bob", to="anna").conversation
    group = store.groups.create(plain(0), agent="anna", with_=["bob", "eve"]).id
    for text in TEXTS[:20]:
        store.messages.send(f"@anna --review {text}", agent="eve", conversation=group)
    channel = store.channels.create(
        "general", agent="anna", scope="global", description=TEXTS[0]
    ).id
    for text in TEXTS[:60]:
        try:
            store.messages.send(text, agent="anna", channel=channel, topic=text[:60])
        except InvalidInput:
            store.messages.send(text, agent="anna", channel=channel, topic="t")
    store.notes.write(TEXTS[0], agent="anna", tags=[plain(1)])
    trashed = store.create(title=plain(3), messages=[{"role": "user", "content": TEXTS[0]}])
    token = store.delete(trashed.id).token
    gap = store.create(
        title=plain(4), messages=[{"role": "user", "content": text} for text in TEXTS[:3]]
    ).id
    store.branches.remove(gap, "@1", keep_children=True)
    store.locks.take(gap, client=TEXTS[0])
    project = str(store.agents.get("anna").project)
    store.close()

    document = new_capsule(
        "hostile",
        TEXTS[0],
        STAMP,
        tags=TEXTS[:20],
        messages=[message(at) for at in range(len(IDS))],
    )
    about: dict[str, Any] = {
        "description": TEXTS[0],
        "participants": [text[:90] for text in TEXTS[:40]],
        "source": plain(0),
    }
    about |= {
        "sourcePath": plain(1),
        "projectPath": plain(2),
        "projectName": plain(5),
        "summaryOf": {"id": plain(0)},
    }
    values: list[Any] = [
        {"value": TEXTS[14], "at": STAMP},
        {"value": TEXTS[15]},
        {"value": {TEXTS[0]: TEXTS[14]}},
    ]
    about["conflicts"] = [
        {"field": "title", "values": values},
        {"field": TEXTS[14], "values": values},
    ]
    about["mcpServers"] = {TEXTS[0]: {"enabled": True}}
    document["metadata"] |= about
    (root / "conversations" / "hostile.json").write_bytes(encode(document))
    for at, text in enumerate(TEXTS):
        titled = new_capsule(f"titled-{at}", text, STAMP, tags=[text], messages=[])
        (root / "conversations" / f"titled-{at}.json").write_bytes(encode(titled))
    (root / "conversations" / "broken.json").write_text('{"<script>canary()</script>')
    said = quote(TEXTS[0], safe="")
    own = [f"/c/{id}" for id in ("hostile", direct, group, channel, gap, "broken")]
    own += [
        f"/c/hostile{page}"
        for page in ("?only=talk", f"?find={said}", "/tree", "/context", "/versions", "/export")
    ]
    own += [f"/c/hostile/m/{quote(id, safe='')}{edit}" for id in IDS[:8] for edit in ("", "/edit")]
    own += [
        "/",
        f"/?tag={said}",
        f"/?title={said}&agent={said}&project={said}&source={said}",
        "/?archived=any&since=x",
    ]
    own += [
        f"/search?q={said}",
        f"/search?q=canary&in_tools=1&from={said}&where={said}",
        "/search?q=script",
        "/inbox",
    ]
    own += [f"/people/{agent}?action=message&other=eve" for agent in ("anna", "zoe")] + [
        f"/projects/{project}"
    ]
    own += [
        "/people",
        "/channels/general",
        "/workers",
        "/repairs",
        "/overview?health=1",
        "/import",
        "/new",
    ]
    own += [f"/trash/{token}"]
    return own + [
        f"{page}/{said}"
        for page in ("/c", "/people", "/projects", "/channels", "/workers", "/trash", "/x")
    ]


def plain(place: int) -> str:
    """A hostile text in one line."""
    return " ".join("".join(sign for sign in TEXTS[place] if sign.isprintable()).split())[:90]


def test_no_page_runs_or_loads_what_a_text_says(
    root: Path, world: list[str], serve: Callable[..., Served], page: Page, guard: Guard
) -> None:
    guard.expect("status of 40[034]|status of 422 .*/c/broken")
    served = serve(root)
    page.context.add_cookies(served.cookies())  # type: ignore[arg-type]
    for me in ("", "anna", "zoe"):
        chosen = served.client.post("/as", data={"agent": me}, headers={"origin": served.base})
        assert chosen.status_code == 303
        page.context.add_cookies(served.cookies())  # type: ignore[arg-type]
        for path in world if me == "" else ["/", "/inbox", "/people/zoe", "/c/hostile"]:
            answer = page.goto(f"{served.base}{path}")
            assert answer is not None and answer.status in (
                200,
                400,
                403,
                404,
                422 * (path == "/c/broken"),
            ), (
                path,
                answer and answer.text(),
            )
            assert "Capsule" in str(page.text_content("nav[aria-label=Pages]")), path
            page.evaluate(
                "() => document.querySelectorAll('details').forEach(each => each.open = true)"
            )
            guard.check()
    page.goto(f"{served.base}/c/hostile")
    shown = page.evaluate("() => document.body.textContent")
    assert TEXTS[0] in shown and all(text.strip() in shown for text in TEXTS[:13])


def test_what_script_draws_runs_no_text_either(
    root: Path, world: list[str], serve: Callable[..., Served], page: Page
) -> None:
    served = serve(root)
    served.open(page, "/c/titled-0")
    with Store.open(root, keep_locks=False) as store:
        for at, text in enumerate(TEXTS):
            id = f"m{at} {text[:90]}"
            store.append_many(
                "titled-0", [{"role": "user", "content": text, "id": id, "topic": plain(at)}]
            )
        last = str(store.append("titled-0", role="user", content="The last").id)
        until(lambda: page.locator("article").last.get_attribute("id") == f"m-{last}")
        assert page.locator("article").count() == len(TEXTS) + 1
        text = "The edited <img src=x onerror=canary()>"
        store.edits.message("titled-0", f"m0 {TEXTS[0][:90]}", text)
        until(lambda: text in str(page.locator("article").first.text_content()))
        store.rename("titled-0", f"{TEXTS[14]} {TEXTS[0]}")
        until(lambda: TEXTS[14] in str(page.locator("h1").text_content()))
        served.open(page, "/")
        store.rename("titled-1", f"Again {TEXTS[0]}")
        until(lambda: f"Again {TEXTS[0]}" in str(page.locator("#list").text_content()))
    served.open(page, "/search")
    for text in ("<script>", "<img src=x", '"><img', "canary"):
        page.locator("#q").fill(text)
        page.locator("#q").press("End")
        until(
            lambda text=text: (
                page.evaluate("() => new URLSearchParams(location.search).get('q')") == text
            )
        )  # type: ignore[misc]
        until(lambda: str(page.text_content("#said")))
    until(lambda: page.locator("#list li").count() > 5)
