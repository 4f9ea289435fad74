"""The notes of an agent: writing and finding them, and who else may look."""

from __future__ import annotations

import pytest

from capsule import Store
from capsule.errors import CapsuleError, NotFound, Refused


@pytest.fixture
def store(each_store: Store) -> Store:
    """A store with three agents, and notes of anna."""
    for agent in ("anna", "bob", "carl"):
        each_store.agents.register(agent)
    anna = each_store.beside(agent="anna")
    anna.notes.write("The canary sings in the cache", tags=["cache", "bug"], session="s1")
    anna.notes.write("Locks are taken in order", tags=["locks"], session="s1")
    anna.notes.write("The cache is cold at start", tags=["cache", "idea"], session="s2")
    return each_store


@pytest.mark.parametrize(
    ("asked", "first_words"),
    [
        ({}, {"The canary", "Locks are", "The cache"}),
        ({"text": "cache"}, {"The canary", "The cache"}),
        ({"tags": ["cache"]}, {"The canary", "The cache"}),
        ({"tags": ["cache", "bug"]}, {"The canary"}),
        ({"tags": ["locks", "bug"]}, set()),
        ({"tags": ["locks", "bug"], "any_tag": True}, {"The canary", "Locks are"}),
        ({"session": "s1"}, {"The canary", "Locks are"}),
        ({"session": "s1", "tags": ["cache"], "text": "sings"}, {"The canary"}),
        ({"session": "s1", "tags": ["bug", "idea"], "any_tag": True}, {"The canary"}),
        ({"tags": ["cac"]}, set()),
        ({"limit": 1, "text": "canary OR locks OR cold"}, None),
    ],
)
def test_notes_are_found_by_words_by_all_or_any_of_their_tags_and_by_session(
    store: Store, asked: dict[str, object], first_words: set[str] | None
) -> None:
    found = store.beside(agent="anna").notes.search(**asked)  # type: ignore[arg-type]
    assert first_words is None or {" ".join(note.text.split()[:2]) for note in found} == first_words
    assert len(found) == (1 if first_words is None else len(first_words))


def test_a_note_says_what_it_was_given_and_an_agent_without_notes_finds_none(store: Store) -> None:
    anna, bob = store.beside(agent="anna"), store.beside(agent="bob")
    written = anna.notes.write("Twice", tags=["x", "x"])
    (found,) = anna.notes.search("twice")
    assert found == written and (found.tags, found.session) == (("x",), "")
    assert list(found.as_json()) == ["id", "text", "tags", "session", "writtenAt"]
    assert bob.notes.search() == []
    assert not store.engine.exists("conversations", "notes_bob")


def test_another_agent_finds_nothing_until_it_is_allowed_and_nothing_after(store: Store) -> None:
    anna, bob = store.beside(agent="anna"), store.beside(agent="bob")

    def unseen() -> None:
        for ask in (
            lambda: bob.notes.search("canary", of="anna"),
            lambda: bob.document("notes_anna"),
            lambda: bob.append("notes_anna", content="mine now"),
            lambda: bob.channels.join("notes_anna"),
            lambda: bob.notes.share("bob", agent="anna"),
        ):
            with pytest.raises(CapsuleError) as raised:
                ask()
            assert isinstance(raised.value, NotFound | Refused) and "canary" not in str(
                raised.value
            )
        assert bob.search("canary").hits == [] and "notes_anna" not in [
            head.id for head in bob.list().heads
        ]

    unseen()
    anna.notes.share("bob")
    assert [note.tags for note in bob.notes.search("canary", of="anna")] == [("cache", "bug")]
    with pytest.raises(Refused):
        bob.append("notes_anna", content="mine now")
    with pytest.raises(Refused):
        bob.channels.invite("notes_anna", ["carl"])
    later = anna.notes.write("Later")
    assert (bob.messages.inbox().unread, bob.messages.listen().messages) == (0, [])
    assert later in bob.notes.search(of="anna")
    (let,) = [each for each in store.head("notes_anna").participants if each.id == "bob"]
    assert (let.invited_by, let.can_send, bool(let.joined_at)) == ("anna", False, True)
    anna.notes.unshare("bob")
    unseen()
    (let,) = [each for each in store.head("notes_anna").participants if each.id == "bob"]
    assert let.left_at and not let.opted_out_at
    anna.notes.share("bob")
    assert bob.notes.search("canary", of="anna")
    store.agents.forget("bob")
    anna.notes.unshare("bob")
    unseen()


def test_the_owner_of_the_store_reads_all_notes_and_an_unknown_agent_has_none(store: Store) -> None:
    assert len(store.notes.search(of="anna")) == 3
    with pytest.raises(NotFound):
        store.notes.search(of="bob")
    with pytest.raises(NotFound):
        store.notes.write("x", agent="eve")
    with pytest.raises(Refused):
        store.beside(agent="anna").notes.share("eve")


def test_no_agent_makes_the_notes_of_another(store: Store) -> None:
    for agent, type in (("bob", "chat"), ("bob", "channel"), ("anna", "chat")):
        with pytest.raises(CapsuleError):
            store.beside(agent=agent).create(
                id="notes_bob" if agent == "anna" else "notes_eve", title="x", type=type
            )
