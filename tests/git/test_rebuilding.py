"""A file that an editor emptied or a disk cut is rebuilt from what is left of it, the log, the
index and the commit.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from capsule import Store
from capsule.engines.files import external_edits
from capsule.maintenance.doctor import DoctorFinding, examine
from tests.core.store.files import by_hand, contents, file_of, quarantined, text_of
from tests.git.repositories import Clone, new
from tests.processes import PATIENCE_S

#: Where each place keeps what it knows.
PLACES = {
    "log": (".capsule/logs", ".capsule/mutex"),
    "index": (".capsule/index.sqlite3",),
    "commit": (".git",),
}
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda data: b"",
    "only white space": lambda data: b" \n\n",
    "zeros": lambda data: bytes(len(data)),
    "head cut": lambda data: data[200:],
    "cut in the middle of the head": lambda data: data[:80] + data[300:],
    "cut from one message to another": lambda data: (
        data[: data.index(b"he firs")] + data[data.index(b"one") + 5 :]
    ),
    "head cut, and the halves of two messages joined": lambda data: (
        data[200 : data.index(b"he firs")] + data[data.index(b"d one") :]
    ),
}


def overwritten(at: bytes, new: bytes) -> Callable[[bytes], bytes]:
    """Return what overwrites as many bytes from a place on."""

    def damage(data: bytes) -> bytes:
        place = data.index(at)
        return data[:place] + new + data[place + len(new) :]

    return damage


DAMAGES |= {
    "a byte in a text that is not valid UTF-8": overwritten(b"second one", b"\xff"),
    "a zero in a text": overwritten(b"second one", b"\0"),
    "a control character in a text": overwritten(b"second one", b"\x07"),
    "a control character in the head": overwritten(b"New plan", b"\x07"),
    "a control character before the history": overwritten(b'"history"', b"\x07"),
    "a block of ordinary characters": overwritten(b"second one", b"x = y[0] + y[1];" * 4),
}


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    """A conversation that was changed after the last commit; the log does not reach back to its
    first message.
    """
    monkeypatch.setattr(external_edits, "_GIT_TIMEOUT_S", PATIENCE_S)
    clone = new(tmp_path / "repo")
    with clone.store() as store:
        call = {"id": "c", "name": "look", "arguments": {}}
        store.create(
            id="plan",
            title="Plan",
            type="group",
            messages=[{"role": "user", "content": "the first"}],
        )
        store.append("plan", role="assistant", content="the second one", tool_calls=[call])
        store.append("plan", content="removed later")
        store.context.set("plan", {"fullContext": "the project"})
        clone.commit("plan")
        store.branches.remove("plan", "@2")
        store.edits.message("plan", "@0", "the first, edited")
        store.rename("plan", "New plan")
        store.append("plan", content="the third", model="m")
        list(store.heads())
    return clone


def lose(clone: Clone, *places: str) -> None:
    for path in (clone.root / path for place in places for path in PLACES[place]):
        shutil.rmtree(path) if path.is_dir() else [
            each.unlink() for each in path.parent.glob(f"{path.name}*")
        ]


def damaged(clone: Clone, data: bytes) -> Path:
    path = file_of(clone.root, "plan")
    path.write_bytes(data)
    return path


def finding(store: Store, *, repair: bool = False) -> DoctorFinding:
    (found,) = examine(store, repair=repair)
    return found


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_rebuilt_whole_and_kept(clone: Clone, damage: str) -> None:
    before = file_of(clone.root, "plan").read_bytes()
    path = damaged(clone, data := DAMAGES[damage](before))
    with clone.store() as store:
        advice = finding(store)
        assert advice.repairable and "--repair" in advice.what and path.read_bytes() == data
        repaired = finding(store, repair=True).repaired
        assert repaired is not None and "3 messages" in repaired and "missing" not in repaired
        assert (path.read_bytes(), list(examine(store))) == (before, [])
    assert data in quarantined(clone.root)


@pytest.mark.parametrize(
    ("lost", "texts", "missing"),
    [
        (("index", "commit"), ["the first, edited", "the second one", "the third"], "context"),
        (("log", "commit"), ["the first, edited", "the second one", "the third"], "tool calls"),
        (("log", "index"), ["the first", "the second one", "removed later"], ""),
        (("log",), ["the first, edited", "the second one", "the third"], ""),
    ],
)
def test_what_one_place_knows_comes_back_and_what_is_missing_is_named(
    clone: Clone, lost: tuple[str, ...], texts: list[str], missing: str
) -> None:
    lose(clone, *lost)
    damaged(clone, b"")
    with clone.store() as store:
        repaired = finding(store, repair=True).repaired
        assert (
            repaired is not None
            and missing in repaired
            and ("missing" in repaired) == bool(missing)
        )
        assert contents(store) == texts and store.head("plan").title in ("Plan", "New plan")
        assert list(examine(store)) == []


def test_messages_that_nothing_knows_any_more_are_counted(tmp_path: Path) -> None:
    clone = new(tmp_path / "repo")
    with clone.store() as store:
        store.create(
            id="plan",
            title="Plan",
            messages=[{"role": "user", "content": str(n)} for n in range(7)],
        )
        store.append("plan", content="late")
    lose(clone, "index", "commit")
    path = file_of(clone.root, "plan")
    entries = path.read_bytes()
    damaged(clone, entries[entries.index(b'"content": "2"') :])
    with clone.store() as store:
        repaired = finding(store, repair=True).repaired
        assert (
            repaired is not None and "5 messages (5 from the file); missing: 3 messages" in repaired
        )
        assert contents(store) == ["3", "4", "5", "6", "late"]


def test_a_message_without_an_id_in_a_damaged_file_is_the_one_that_the_index_has(
    tmp_path: Path,
) -> None:
    clone = new(tmp_path / "repo")
    texts = ["one", "two", "two", "three"]
    document = {
        "id": "plan",
        "title": "Plan",
        "history": [{"role": "user", "content": text} for text in texts],
    }
    path = file_of(clone.root, "plan")
    path.write_bytes(text_of(document))
    with clone.store() as store:
        list(store.heads())
        damaged(clone, overwritten(b"three", b"\xff")(path.read_bytes()))
        assert finding(store, repair=True).repaired is not None
        assert contents(store) == texts and list(examine(store)) == []


def test_a_message_without_an_id_that_nothing_else_knows_is_kept(tmp_path: Path) -> None:
    clone = new(tmp_path / "repo")
    with clone.store() as store:
        store.create(id="plan", title="Plan", messages=[{"role": "user", "content": "one"}])
        by_hand(
            clone.root,
            "plan",
            lambda document: document["history"].append({"role": "user", "content": "two"}),
        )
        path = file_of(clone.root, "plan")
        damaged(clone, path.read_bytes()[100:])
        assert finding(store, repair=True).repaired is not None
        assert contents(store) == ["one", "two"]


@pytest.mark.parametrize(
    "typed",
    [
        lambda data: data.replace(b"second one", b'second "one'),
        lambda data: data.replace(b"second one", "second ön".encode("latin-1")),
        lambda data: data.replace(b'"the third"', b"'the third'"),
        lambda data: data.replace(b'"title": "New plan",', b'"title": oops'),
        lambda data: data.replace(b'    },\n    {\n', b"    }\n    {\n"),
        lambda data: data.replace(b'"version": "2.1"', b'"version": "3.0"'),
        lambda data: b'{"version": "3.0"}',
    ],
)  # fmt: skip
def test_what_a_person_can_correct_is_left_to_them(
    clone: Clone, typed: Callable[[bytes], bytes]
) -> None:
    path = file_of(clone.root, "plan")
    path.write_bytes(data := typed(path.read_bytes()))
    with clone.store() as store:
        for repair in (True, False):
            found = list(examine(store, repair=repair))
            assert not any(
                each.repairable or each.repaired or "--repair" in each.what for each in found
            )
    assert path.read_bytes() == data
