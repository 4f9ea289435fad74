"""Conversations as static pages: what is written, what is not, and what is in the search."""

from __future__ import annotations

import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from capsule import Store
from capsule.errors import NotFound, Refused
from capsule.transfer import site

SECRET = "ghp_" + "a1B2" * 9


def files(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def index_of(folder: Path) -> dict[str, Any]:
    script = (folder / "search.js").read_text("ascii")
    assert script.startswith("var capsuleIndex={") and script.count("\n") == 1
    made: dict[str, Any] = json.loads(script.removeprefix("var capsuleIndex=").rstrip(";\n"))
    return made


def chat(store: Store, title: str, *texts: str, **more: Any) -> str:
    return store.create(
        title=title, messages=[{"role": "user", "content": text} for text in texts], **more
    ).id


def test_a_site_written_again_changes_only_what_changed_and_removes_only_its_own(
    store: Store, tmp_path: Path
) -> None:
    one, two = (chat(store, title, "Hello") for title in ("One", "Two"))
    folder, other = tmp_path / "site", tmp_path / "other"
    first = store.export.site([one, two], str(folder))
    store.export.site([two, one], str(other))
    before = files(folder)
    assert before == files(other)
    assert {"index.html", "style.css", "script.js", "search.js", f"c/{one}.html"} < {*before}
    assert (first.conversations, first.messages, first.written, first.removed) == (
        2,
        2,
        len(before) - 1,
        0,
    )

    stamps = {name: (folder / name).stat().st_mtime_ns for name in before}
    assert store.export.site([one, two], str(folder)).written == 0
    assert {name: (folder / name).stat().st_mtime_ns for name in before} == stamps
    (folder / "c" / "mine.html").write_text("mine")
    again = store.export.site([two], str(folder))
    assert (again.written, again.removed) == (2, 1)
    assert {*files(folder)} == {*before, "c/mine.html"} - {f"c/{one}.html"}


def test_a_folder_with_files_of_others_is_refused_and_nothing_of_it_is_touched(
    store: Store, tmp_path: Path
) -> None:
    id = chat(store, "One", "Hello")
    folder, outside = tmp_path / "site", tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "file").write_text("")
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    for place in (folder, tmp_path / "file"):
        with pytest.raises(Refused):
            store.export.site([id], str(place))
    assert files(folder) == {"notes.txt": b"mine"}

    (folder / "notes.txt").unlink()
    (folder / "c").symlink_to(outside)
    (folder / site._LIST).write_text('{"files": []}')
    with pytest.raises(Refused):
        store.export.site([id], str(folder))
    (folder / "c").unlink()
    (folder / "index.html").write_text("mine")
    with pytest.raises(Refused):
        store.export.site([id], str(folder))
    assert not files(outside) and (folder / "index.html").read_text() == "mine"


def test_a_list_that_names_files_outside_of_the_site_removes_none(
    store: Store, tmp_path: Path
) -> None:
    folder, victim = tmp_path / "site", tmp_path / "victim"
    victim.write_text("mine")
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "config").write_text("mine")
    names = ["../victim", str(victim), "c/../../victim", ".git/config", 7, "c", ""]
    (folder / site._LIST).write_text(json.dumps({"files": names}))

    store.export.site([chat(store, "One", "Hello")], str(folder))
    assert victim.read_text() == "mine" and (folder / ".git" / "config").read_text() == "mine"


def test_names_of_pages_are_apart_where_case_does_not_count_and_none_is_reserved() -> None:
    ids = ["Anna", "anna", "con", "CON", "a@b", "a-b", "a.b", "a.", "x" * 128, "X" * 128]
    names = [site._name(id) for id in ids]
    assert len({name.lower() for name in names}) == len(ids)
    assert all(site._SITE_FILE.fullmatch(f"c/{name}") and len(name) < 70 for name in names)
    assert not {"con.html", "nul.html"} & {*names}


def test_what_an_agent_may_not_read_is_in_no_site_of_its(tmp_path: Path, store: Store) -> None:
    for agent in ("anna", "bob", "eve"):
        store.agents.register(agent)
    direct = store.messages.send("Only for bob", agent="anna", to="bob").conversation
    eve = store.beside(agent="eve")
    with pytest.raises(NotFound):
        eve.export.site([direct], str(tmp_path / "site"))
    eve.export.site([head.id for head in eve.list().heads], str(tmp_path / "site"))
    assert not [
        name
        for name, data in files(tmp_path / "site").items()
        if b"Only for bob" in data or direct in name
    ]
    assert "bob" not in index_of(tmp_path / "site")["words"].split()


def test_a_redacted_site_has_no_secret_in_any_file(store: Store, tmp_path: Path) -> None:
    data = f"key {SECRET}".encode()
    kept = []
    for content in (data, b"<script>1</script>"):
        digest = sha256(content).hexdigest()
        store.inner.whole_engine.files.write("attachments", digest, digest, content)
        kept.append(
            {
                "name": "x.html",
                "type": "text/html",
                "sha256": digest,
                "path": f"attachments/{digest}",
            }
        )
    message = {"role": "user", "content": f"In /home/jo is {SECRET}", "attachments": kept}
    id = store.create(title=f"About {SECRET}", messages=[message]).id

    store.export.site([id], str(tmp_path / "whole"))
    store.export.site([id], str(tmp_path / "redacted"), is_redacted=True)
    whole, redacted = files(tmp_path / "whole"), files(tmp_path / "redacted")
    assert any(SECRET.encode() in data for data in whole.values())
    assert not [
        name
        for name, data in redacted.items()
        if SECRET.lower().encode() in data.lower() or b"/home/jo" in data
    ]
    assert {f"attachments/{each['sha256']}.bin" for each in kept} < {*whole}
    assert {*whole} - {*redacted} == {f"attachments/{kept[0]['sha256']}.bin"}


def test_the_search_has_the_words_of_all_messages_and_says_what_it_leaves_out(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = {"id": "c", "name": "Bash", "arguments": {"command": "ls\nkiwi"}}
    said = {
        "role": "assistant",
        "content": "Äpfel </script>\u2028 snake_case",
        "reasoning": "pears",
        "toolCalls": [call],
    }
    id = store.create(
        title="Fruit", tags=["garden"], messages=[{"role": "user", "content": "plums"}, said]
    ).id
    made = store.export.site([id], str(tmp_path / "site"))
    words = index_of(tmp_path / "site")["words"].split(" ")

    assert {
        "apfel",
        "script",
        "snake",
        "case",
        "pears",
        "bash",
        "kiwi",
        "plums",
        "fruit",
        "garden",
    } < {*words}
    assert words == sorted(words) and made.left == 0
    script = (tmp_path / "site" / "search.js").read_text("ascii")
    assert "<" not in script and index_of(tmp_path / "site")["starts"] == [0, 3]
    places = dict(zip(words, index_of(tmp_path / "site")["places"].split(" "), strict=True))
    assert (places["fruit"], places["plums"], places["kiwi"]) == ("A", "B", "C")
    assert "".join(site._encoded([5, 5 + 32, 5 + 32 + 1025])) == "F" + "gB" + "hgB"

    monkeypatch.setattr(site, "_MAX_POSITIONS", 1)
    older = chat(store, "Old", "forgotten")
    assert store.export.site([id, older], str(tmp_path / "site")).left == 2
    assert "forgotten" not in index_of(tmp_path / "site")["words"].split(" ")
    assert {"fruit", "old"} < {*index_of(tmp_path / "site")["words"].split(" ")}
    assert "Of 2 of the 2 conversations" in (tmp_path / "site" / "index.html").read_text()


def test_a_site_that_was_interrupted_is_written_to_its_end_by_the_next_export(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [chat(store, title, "Hello") for title in ("One", "Two", "Three")]
    replaced, real = [], site.replace_file

    def interrupted(path: str, *rest: Any, **more: Any) -> None:
        replaced.append(os.path.basename(path))
        if len(replaced) == 3:
            raise KeyboardInterrupt
        real(path, *rest, **more)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(site, "replace_file", interrupted)
        store.export.site(ids, str(tmp_path / "site"))
    assert replaced[0] == site._LIST
    store.export.site(ids[:1], str(tmp_path / "site"))
    store.export.site(ids[:1], str(tmp_path / "other"))
    assert files(tmp_path / "site") == files(tmp_path / "other")
