"""Documents of agents, projects and channels that a person changes in an editor, while a store is
open.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capsule import Store
from capsule.errors import CapsuleError

API, WEB = "/src/api", "/src/web"
OPEN, CLOSED = "channel_global_lobby", "channel_global_core"

Change = Callable[[dict[str, Any]], object]


def member(id: str, **fields: Any) -> Change:
    """Change what a channel says of one of its members."""

    def change(document: dict[str, Any]) -> None:
        people = document["metadata"]["participants"]
        people[:] = [{**each, **fields} if each["id"] == id else each for each in people]

    return change


def without(id: str) -> Change:
    """Take a member out of the list."""

    def change(document: dict[str, Any]) -> None:
        about = document["metadata"]
        about["participants"] = [each for each in about["participants"] if each["id"] != id]

    return change


def field(*path: str, to: Any) -> Change:
    """Give a field another value."""

    def change(document: dict[str, Any]) -> None:
        for name in path[:-1]:
            document = document.setdefault(name, {})
        document[path[-1]] = to

    return change


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """A store with anna and carl of two linked projects, bob of none, and two channels of anna."""
    Store.init(tmp_path)
    with Store.open(tmp_path) as store:
        store.agents.register("anna", API)
        store.agents.register("carl", WEB)
        store.agents.register("bob")
        store.agents.policy("carl", discoverable="project")
        store.projects.link("api", "web")
        store.channels.create("lobby", agent="anna", scope="global")
        store.channels.create(
            "core", agent="anna", scope="global", access="members", members=["carl"]
        )
        for channel in (OPEN, CLOSED):
            store.append(channel, content="canary")
        yield store


def edited(store: Store, file: str, change: Change) -> tuple[Path, dict[str, Any]]:
    """Change a file as an editor does; the file, and what it says now."""
    (path,) = Path(store.root).glob(f"{file}*.json")
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return path, document


def sends(store: Store) -> Any:
    return store.beside(agent="anna").messages.send("hello", to="carl")


def finds(store: Store) -> Any:
    assert "carl" in [
        found.agent.id for found in store.beside(agent="anna").agents.discover()
    ] or _no("hidden")


def reads(channel: str, agent: str = "carl") -> Callable[[Store], Any]:
    def ask(store: Store) -> Any:
        there = store.beside(agent=agent)
        assert (there.search("canary", ids=[channel]).hits and channel in there.ids()) or _no(
            "hidden"
        )
        return there.document(channel)

    return ask


def writes(store: Store) -> Any:
    return store.beside(agent="carl").append(CLOSED, content="hello")


def invites(store: Store) -> Any:
    return store.beside(agent="anna").channels.invite(CLOSED, ["bob", "carl"])


def manages(store: Store) -> Any:
    description = f"was {store.head(CLOSED).description}"
    return store.beside(agent="anna").channels.update(CLOSED, description=description)


def _no(why: str) -> Any:
    raise CapsuleError(why)


GONE = {"leftAt": "2999-01-01T00:00:00.000Z"}


@pytest.mark.parametrize(
    ("file", "change", "ask"),
    [
        ("agents/carl", field("dmPolicy", to="closed"), sends),
        ("agents/carl", field("dmPolicy", to="restricted"), sends),
        ("agents/carl", field("dmPolicy", to="secret"), sends),
        ("agents/carl", field("dm", "anna", to={"permission": "block"}), sends),
        ("agents/carl", field("dm", "anna", to={"permission": "perhaps"}), sends),
        ("agents/carl", field("dm", "anna", to="allow"), sends),
        ("agents/carl", field("dm", to=3), sends),
        ("agents/carl", field("discoverable", to="private"), finds),
        ("agents/carl", field("project", to="other-123456"), finds),
        ("projects/web", field("links", to={}), finds),
        ("projects/api", field("links", to={}), finds),
        ("projects/api", field("links", to=[]), finds),
        (
            f"conversations/{OPEN}",
            field("metadata", "channel", "access", to="private"),
            reads(OPEN),
        ),
        (f"conversations/{OPEN}", field("metadata", "channel", "access", to="oepn"), reads(OPEN)),
        (f"conversations/{OPEN}", field("metadata", "channel", to="open"), reads(OPEN)),
        (
            f"conversations/{OPEN}",
            field("metadata", "channel", "scope", to="other-123456"),
            reads(OPEN),
        ),
        (f"conversations/{CLOSED}", without("carl"), reads(CLOSED)),
        (f"conversations/{CLOSED}", member("carl", **GONE), reads(CLOSED)),
        (f"conversations/{CLOSED}", member("carl", canSend=False), writes),
        (f"conversations/{CLOSED}", member("carl", canSend="no"), writes),
        (f"conversations/{CLOSED}", member("anna", canManage=False), manages),
        (f"conversations/{CLOSED}", member("carl", **GONE, optedOutAt=GONE["leftAt"]), invites),
    ],
)
def test_what_a_person_takes_away_in_a_file_is_refused_at_once_until_it_is_given_back(
    store: Store, file: str, change: Change, ask: Callable[[Store], Any]
) -> None:
    if ask is not invites:  # So that what is kept of the file is out of date.
        ask(store)
    before = {path: path.read_bytes() for path in Path(store.root).glob(f"{file}*.json")}
    path, document = edited(store, file, change)
    with pytest.raises(CapsuleError) as raised:
        ask(store)
    assert "canary" not in str(raised.value)
    assert json.loads(path.read_text(encoding="utf-8")) == document
    path.write_bytes(before[path])
    ask(store)


def test_a_slip_in_the_type_of_a_channel_opens_it_to_nobody(store: Store) -> None:
    edited(store, f"conversations/{CLOSED}", field("metadata", "type", to="chanel"))
    with pytest.raises(CapsuleError):
        reads(CLOSED, "bob")(store)
