"""Each method of a store in everyday use, without other writers."""

from __future__ import annotations

import time
from pathlib import Path

import orjson
import pytest

from capsule import Store, timestamps
from capsule.errors import InvalidInput, NotFound, Refused
from capsule.store.objects.edits import author_relation
from tests.core.store.files import is_canonical

PLAIN = {"role": "user", "content": "hello"}


def test_a_conversation_is_read_as_it_was_written(store: Store) -> None:
    head = store.create(
        title="Plan", mode="toolbox", tags=["work", "home", "work"], messages=[PLAIN]
    )
    assert (head.title, head.mode, head.tags, head.title_set_by) == (
        "Plan",
        "toolbox",
        ("work", "home"),
        "user",
    )
    message = store.append(head.id, role="assistant", content="hi", from_="helper", model="m-1")
    assert message.at == 1 and message.from_ == "helper"
    capsule = store.load(head.id)
    entries = [(entry.at, entry.role, entry.content) for entry in capsule.history]
    assert entries == [(0, "user", "hello"), (1, "assistant", "hi")]
    assert capsule.history[1].id == message.id and capsule.version == "2.1"
    assert is_canonical(store, head.id)


def test_messages_are_appended_in_one_write_and_the_tail_has_the_last_with_their_positions(
    store: Store,
) -> None:
    id = store.create().id
    written = store.append_many(id, (PLAIN | {"content": str(n)} for n in range(5)))
    assert [(message.at, message.content) for message in written] == [(n, str(n)) for n in range(5)]
    assert store.append_many(id, []) == []
    for count in (0, 1, 2, 7):
        tail, wanted = store.tail(id, count), written[-count:] if count else []
        assert [(found.id, found.at) for found in tail] == [
            (message.id, message.at) for message in wanted
        ]


def test_head_changes_keep_every_message_and_set_updated_at(store: Store) -> None:
    id = store.create(messages=[PLAIN]).id
    history = store.document(id)["history"]
    assert store.rename(id, "  New  ").title == "New"
    assert store.tag(id, "a", "b", "a").tags == ("a", "b")
    assert store.tag(id, "b", "c").tags == ("a", "b", "c")
    assert store.untag(id, "a", "z").tags == ("b", "c")
    assert store.pin(id).pinned and not store.pin(id, False).pinned
    assert store.archive(id).archived and not store.archive(id, False).archived
    assert store.document(id)["history"] == history
    assert is_canonical(store, id)


def test_an_edited_message_keeps_its_id_and_gets_edited_at(store: Store) -> None:
    id = store.create(messages=[PLAIN, PLAIN]).id
    first = store.load(id).history[0]
    assert first.id is not None
    edited = store.edits.message(id, first.id, "changed")
    assert (edited.id, edited.content, edited.at) == (first.id, "changed", 0)
    assert edited.edited_at is not None
    assert [message.content for message in store.load(id).history] == ["changed", "hello"]


def test_a_message_is_found_by_position(store: Store) -> None:
    id = store.create(messages=[PLAIN | {"content": str(n)} for n in range(3)]).id
    for wanted, at in (("@0", 0), ("@2", 2), ("@last", 2)):
        found = store.find_message(id, wanted)
        assert (found.content, found.at) == (str(at), at)
        assert found.id is not None and store.find_message(id, found.id).at == at
    for wanted in ("@3", "@-1", "@x", "@", "nope", "", "@" + "9" * 5000):
        with pytest.raises((NotFound, InvalidInput)):
            store.find_message(id, wanted)


def test_resolve_accepts_a_prefix_of_four_and_latest(store: Store) -> None:
    one = store.create(id="abcd-one").id
    two = store.create(id="abcd-two").id
    store.append(one, content="later")
    assert (
        store.resolve("abcd-o") == one
        and store.resolve(two) == two
        and store.resolve("@last") == one
    )
    for wrong in ("abcd", "abc", "@las", ""):
        with pytest.raises(InvalidInput):
            store.resolve(wrong)
    with pytest.raises(NotFound):
        store.resolve("zzzz")
    assert (
        store.resolve(store.create(id="abcd").id) == "abcd"
    )  # A full id wins over a longer one that begins with it.


def test_of_deleted_conversations_of_one_id_the_latest_is_restored_unchanged(store: Store) -> None:
    for title in ("one", "two"):
        store.create(id="plan-1", title=title, messages=[PLAIN])
        history = store.document("plan-1")["history"]
        trashed = store.delete("plan-1")
        assert trashed.id == "plan-1" and trashed.token in [
            entry.token for entry in store.trash.list()
        ]
        assert store.trash.head(trashed).title == title
    with pytest.raises(NotFound):
        store.load("plan-1")
    assert store.ids() == [] and store.trash.restore("plan").title == "two"
    assert store.document("plan-1")["history"] == history
    with pytest.raises(Refused):
        store.trash.restore("plan-1")
    store.delete("plan-1")
    assert len(store.trash.list()) == 2


def test_a_hand_edit_is_merged_with_messages_appended_meanwhile(store: Store) -> None:
    id = store.create(type="group", messages=[PLAIN, PLAIN | {"content": "bye"}]).id
    read = store.read(id)
    store.append(id, content="meanwhile")
    edited = orjson.loads(read)
    edited["title"] = "Edited"
    del edited["history"][0]
    head = store.edits.rewrite(id, orjson.dumps(edited), read)
    assert (head.title, head.title_set_by) == ("Edited", "user")
    assert [message.content for message in store.load(id).history] == ["bye", "meanwhile"]


def test_times_never_go_back_with_the_clock(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    id = store.create(type="group").id
    store.append(id, content="now")
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - 3_600_000_000_000)
    store.append(id, content="an hour ago")
    store.rename(id, "Renamed")
    store.edits.message(id, "@0", "edited")
    document = store.document(id)
    times = [entry["timestamp"] for entry in document["history"]] + [document["updatedAt"]]
    assert times == sorted(times)
    assert all(timestamps.is_canonical(stamp) for stamp in times)


def test_unknown_fields_survive_every_kind_of_write(root: Path, store: Store) -> None:
    id = store.create(messages=[PLAIN]).id
    path = root / "conversations" / f"{id}.json"
    text = path.read_text()
    text = text.replace('"role": "user",', '"role": "user",\n      "weight": 2.50,', 1)
    text = text.replace(
        '"mode": "api",', '"mode": "api",\n    "serial": 12345678901234567890123,', 1
    )
    path.write_text(text)
    store.append(id, content="one")
    store.append(id, content="two")
    store.rename(id, "Renamed")
    store.edits.message(id, "@1", "edited")
    store.delete(id)
    store.trash.restore(id)
    written = path.read_text()
    assert '"weight": 2.50' in written and '"serial": 12345678901234567890123' in written
    assert len(store.load(id).history) == 3


def test_init_overwrites_nothing_and_can_be_repeated(root: Path) -> None:
    (root / "capsule.toml").write_text("# mine\n")
    assert Store.init(root) == []
    assert (root / "capsule.toml").read_text() == "# mine\n"


def test_new_files_are_private_to_their_owner(root: Path, store: Store) -> None:
    id = store.create().id
    store.append(id, content="x")
    for path in (
        root / "conversations" / f"{id}.json",
        root / ".capsule" / "mutex" / f"conversations-{id}",
    ):
        assert path.stat().st_mode & 0o777 == 0o600
    assert (root / "conversations").stat().st_mode & 0o777 == 0o700


def test_a_shared_store_leaves_permissions_to_the_umask(root: Path, child) -> None:  # type: ignore[no-untyped-def]
    (root / "capsule.toml").write_text("shared = true\n")
    process = child(
        """
        os.umask(0o027)
        with Store.open(sys.argv[1]) as store:
            id = store.create(type="group").id
            store.append(id, content="x")
            store.rename(id, "y")
        say(oct(os.stat(f"{sys.argv[1]}/conversations/{id}.json").st_mode & 0o777))
        """,
        root,
    )
    assert process.hear() == "0o640"


@pytest.mark.parametrize("append", ["splice", "replace"])
def test_an_append_does_not_change_a_second_hard_link(root: Path, append: str) -> None:
    (root / "capsule.toml").write_text(f'[storage]\nappend = "{append}"\n')
    with Store.open(root) as store:
        id = store.create().id
        store.append(id, content="one")
        backup = root / "backup.json"
        backup.hardlink_to(root / "conversations" / f"{id}.json")
        had = backup.read_bytes()
        store.append(id, content="two")
        store.append(id, content="three")
        assert backup.read_bytes() == had
        assert [message.content for message in store.load(id).history] == ["one", "two", "three"]


def test_role_and_sender_decide_the_author_of_a_message() -> None:
    for message, named, unnamed in [
        ({"role": "user"}, "person", "person"),
        ({"role": "user", "from": "anna"}, "person", "person"),
        ({"role": "user", "from": "bot"}, "own", "person"),
        ({"role": "assistant", "from": "bot"}, "own", "own"),
        ({"role": "assistant", "from": "other"}, "agent", "own"),
        ({"role": "assistant"}, "person", "own"),
    ]:
        assert (author_relation(message, "bot"), author_relation(message, None)) == (named, unnamed)
