"""Which committed version a conflict copy and its conversation began from."""

from __future__ import annotations

import json

from capsule import git
from capsule.format.json import codec
from capsule.format.merge.clean_form import clean
from tests.git.repositories import Clone
from tests.git.talking import say

ID = "plan-1"


def made(repo: Clone) -> bytes:
    """A committed conversation of two messages, as it lies there."""
    with repo.store() as store:
        said = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
        store.create(id=ID, title="Plan", messages=said)
    repo.commit()
    return version(repo)


def version(repo: Clone) -> bytes:
    return clean(repo.file(ID).read_bytes(), ID, "conversations")


def after(repo: Clone, before: bytes, content: str) -> bytes:
    """What becomes of a version when a message is appended to it somewhere."""
    put(repo, before)
    say(repo, ID, content)
    return version(repo)


def put(repo: Clone, data: bytes) -> None:
    """Put a version there as it comes from another computer, where nobody knows what was written
    here.
    """
    repo.file(ID).write_bytes(data)
    (repo.root / ".capsule" / "mutex" / f"conversations-{ID}").write_bytes(b"")
    (repo.root / ".capsule" / "logs" / f"conversations-{ID}").unlink(missing_ok=True)


def found(repo: Clone, ours: bytes, theirs: bytes) -> bytes | None:
    with repo.store() as store:
        return git.open(store).ancestor(ID, ours, theirs)


def test_the_commit_that_both_went_on_from_is_the_ancestor(repo: Clone) -> None:
    base = made(repo)
    ours, theirs = after(repo, base, "here"), after(repo, base, "there")
    assert found(repo, ours, theirs) == base and found(repo, base, theirs) == base


def test_the_ancestor_is_an_earlier_commit_when_one_side_has_not_read_the_last(repo: Clone) -> None:
    base = made(repo)
    theirs = after(repo, base, "there")
    put(repo, base)
    later = after(repo, base, "committed here")
    repo.commit()
    assert found(repo, later, theirs) == base


def test_a_commit_whose_edit_one_side_lacks_is_no_ancestor(repo: Clone) -> None:
    base = made(repo)
    with repo.store() as store:
        store.edits.message(ID, "@0", content="one, said better")
    repo.commit()
    edited = version(repo)
    theirs = json.loads(base)
    theirs["updatedAt"] = "2099-01-01T00:00:00.000Z"
    assert found(repo, edited, codec.encode(theirs)) == base


def test_a_message_merged_in_later_does_not_count_as_deleted(repo: Clone) -> None:
    base = made(repo)
    merged = json.loads(base)
    merged["history"].insert(1, merged["history"][0] | {"id": "in-between"})
    merged["updatedAt"] = "2098-01-01T00:00:00.000Z"
    put(repo, codec.encode(merged))
    repo.commit()
    theirs = json.loads(base)
    theirs["history"].append(theirs["history"][0] | {"id": "elsewhere"})
    theirs["updatedAt"] = "2099-01-01T00:00:00.000Z"
    assert found(repo, codec.encode(merged), codec.encode(theirs)) == base


def test_without_a_version_that_both_show_there_is_none(repo: Clone) -> None:
    base = made(repo)
    other = json.loads(base)
    other["history"] = [
        message | {"id": f"other-{at}"} for at, message in enumerate(other["history"])
    ]
    assert found(repo, base, codec.encode(other)) is None


def test_the_doctor_uses_it(repo: Clone) -> None:
    base = made(repo)
    with repo.store() as store:
        store.branches.remove(ID, "@0", keep_children=True)
    without = version(repo)
    theirs = after(repo, base, "there")
    put(repo, without)
    repo.file(f"{ID}.sync-conflict-20250112-103000-ABCDEFG").write_bytes(theirs)
    said = repo.capsule("doctor", "--repair", expect=0).out
    assert "copy" in said and "merged into the conversation" in said
    with repo.store() as store:
        assert [message["content"] for message in store.document(ID)["history"]] == ["two", "there"]
