"""`copy` brings a store into PostgreSQL and back: whole, byte for byte, and again."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule import Store
from capsule.engines.files.disk.store_paths import KINDS, LOCAL
from capsule.engines.interface import CONVERSATIONS
from capsule.format.documents.creation import new_capsule
from capsule.format.json import codec
from capsule.ids import new_message_id
from capsule.settings import TEMPLATE
from capsule.store import copying
from capsule.store.copying import copy_store
from tests.postgres.test_opening import run

STAMP = "2026-01-01T10:00:00.000Z"


@pytest.fixture
def stored(database: str) -> Iterator[Store]:
    with Store.open(database) as store:
        yield store


def fill(store: Store) -> None:
    store.agents.register("anna", "web")
    store.agents.register("bob", "web")
    store.messages.send("hello", agent="anna", to="bob")
    id = store.create(
        id="plan", title="Plan", type="group", messages=[{"role": "user", "content": "one"}]
    ).id
    store.append(id, content="two \0 \u2028 fish", metadata={"n": [1, 2.5]})
    store.edits.message(id, str(store.tail(id, 9)[0].id), "uno")
    store.forks.create(id)
    gone = store.create(title="Gone").id
    store.delete(gone)
    store.engine.files.write("attachments", "0a1b", "0a1b", b"\0data")


def files_of(store: Store) -> dict[str, bytes]:
    """Every document and attachment, and what is in the trash."""
    engine = store.engine
    found = {
        f"{kind}/{id}": engine.read(kind, id) for kind in copying.SHARED for id in engine.ids(kind)
    }
    found |= {
        f"attachments/{name}": engine.files.read("attachments", name, name) for name in ["0a1b"]
    }
    for kind in (CONVERSATIONS, "messages"):
        for trashed in engine.trash.entries(kind):
            found[f"{kind}/{trashed.id}/{trashed.deleted_at}"] = engine.trash.read(trashed.token)
    return found


def test_a_copy_there_and_back_has_the_same_bytes(
    store: Store, stored: Store, tmp_path: Path
) -> None:
    fill(store)
    first = copy_store(store, stored)
    assert (
        first.written > 7
        and not first.kept
        and not first.failed
        and files_of(stored) == files_of(store)
    )
    Store.init(tmp_path / "back")
    with Store.open(tmp_path / "back") as back:
        assert copy_store(stored, back).written == first.written
        for kind in (CONVERSATIONS, "agents", "projects"):
            names = sorted(os.listdir(f"{store.root}/{kind}"))
            assert names == sorted(os.listdir(f"{back.root}/{kind}"))
            for name in names:
                assert (
                    Path(back.root, kind, name).read_bytes()
                    == Path(store.root, kind, name).read_bytes()
                )
        assert files_of(back) == files_of(store)
        assert len(back.search("fish").hits) == len(store.search("fish").hits) == 2
    again = copy_store(store, stored)
    assert (again.written, again.same) == (0, first.written)


def test_a_copy_is_made_again_with_what_is_new(store: Store, stored: Store) -> None:
    fill(store)
    copy_store(store, stored)
    store.append("plan", content="three")
    store.rename("plan", "New")
    store.messages.send("more", agent="anna", to="bob")
    new = store.create(title="Another").id
    done = copy_store(store, stored)
    assert (
        not done.kept
        and files_of(stored) == files_of(store)
        and stored.head(new).title == "Another"
    )


def test_what_was_changed_in_the_copy_is_named_and_stays(store: Store, stored: Store) -> None:
    fill(store)
    copy_store(store, stored)
    store.append("plan", content="of files")
    theirs = stored.append("plan", content="of the database").id
    done = copy_store(store, stored)
    assert done.kept == [(CONVERSATIONS, "plan")] and stored.tail("plan", 1)[0].id == theirs
    answer = run("copy", store.root, stored.root, "--json")
    assert answer.returncode == 1 and '"id": "plan"' in answer.stdout, answer


def test_a_damaged_document_is_named_and_the_others_are_copied(
    root: Path, store: Store, stored: Store
) -> None:
    fill(store)
    (root / "conversations" / "plan.json").write_text("{", encoding="utf-8")
    done = copy_store(store, stored)
    assert [(kind, id) for kind, id, _ in done.failed] == [(CONVERSATIONS, "plan")]
    assert len(stored.ids()) == len(store.ids()) - 1


def test_every_kind_of_document_is_copied() -> None:
    assert set(copying.SHARED) == KINDS - LOCAL and set(copying.LOCAL) == LOCAL - {"keys"}


json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
message = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "odd"]), "content": st.text()},
    optional={"x": json, "metadata": st.dictionaries(st.text(), json, max_size=2)},
)
conversation = st.fixed_dictionaries(
    {
        "title": st.text(max_size=20),
        "messages": st.lists(message, max_size=4),
        "more": st.dictionaries(st.text().map("x{}".format), json, max_size=2),
        "context": st.dictionaries(st.text(), json, max_size=2),
    }
)
_numbers = itertools.count()


@given(conversations=st.lists(conversation, max_size=4))
def test_any_conversation_comes_back_with_the_same_bytes(
    postgres: str, conversations: list[Any]
) -> None:
    url = f"{postgres}&schema=c{os.getpid()}_{next(_numbers)}"
    Store.init(url)
    with Store.in_memory() as store, Store.in_memory() as back, Store.open(url) as stored:
        for number, given in enumerate(conversations):
            said = [
                {**message, "timestamp": STAMP, "id": new_message_id()}
                for message in given["messages"]
            ]
            document = new_capsule(f"c{number}", given["title"], STAMP, messages=said)
            document["context"] |= given["context"]
            history = document.pop("history")
            document |= given["more"] | {"history": history}
            store.engine.create(CONVERSATIONS, codec.decode(codec.encode(document), ""))
        copy_store(store, stored)
        copy_store(stored, back)
        for id in store.ids():
            data = store.engine.read(CONVERSATIONS, id)
            assert (
                data == stored.engine.read(CONVERSATIONS, id) == back.engine.read(CONVERSATIONS, id)
            )
            assert stored.engine.head(id)[1] == len(data)
        assert len(stored.ids()) == len(conversations)


text = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20)
lines = st.sampled_from(
    ['rooms = ["x"]\n', "[lock]\r\nttl = '2h'\r\n", "unknown = 1\n", f"{TEMPLATE}", "\n", ""]
)
comment = text.filter(str.isprintable).map("# {}\n".format)


@given(toml=st.builds("{}{}".format, comment, lines))
def test_any_settings_are_copied_there_and_back_with_the_same_bytes(
    postgres: str, toml: str
) -> None:
    url = f"{postgres}&schema=c{os.getpid()}_{next(_numbers)}"
    Store.init(url)
    with Store.in_memory() as store, Store.in_memory() as back, Store.open(url) as stored:
        store.set_settings(toml)
        assert copy_store(store, stored).written == copy_store(stored, back).written == 1
        assert store.engine.toml() == stored.engine.toml() == back.engine.toml() == toml.encode()
        again = copy_store(store, stored)
        assert (again.written, again.same, again.kept) == (0, 1, [])


def test_settings_are_copied_between_files_and_a_database_and_those_that_differ_stay(
    store: Store, stored: Store, tmp_path: Path
) -> None:
    store.set_settings(TEMPLATE)
    assert not copy_store(store, stored).written and stored.read_settings() == TEMPLATE
    toml = "# ours\r\n[limits]\r\nmessage_bytes = 1000"
    Path(store.root, "capsule.toml").write_bytes(toml.encode())
    assert copy_store(store, stored).written == 1
    Store.init(tmp_path / "back")
    with Store.open(tmp_path / "back") as back:
        copy_store(stored, back)
        assert Path(back.root, "capsule.toml").read_bytes() == toml.encode()
    stored.set_settings("# theirs\n")
    done = copy_store(store, stored)
    assert done.kept == [("settings", "capsule.toml")] and stored.read_settings() == "# theirs\n"
