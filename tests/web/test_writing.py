"""What the page changes, asked without a browser: once, by whom it may, and with nothing lost of
what was typed.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from capsule import Store
from tests.web.test_admission import Door, tokens

if TYPE_CHECKING:
    from starlette.testclient import TestClient

    from capsule.mcp_server.access import Tokens

__all__ = ["tokens"]  # A fixture.
#: A form without fields: a browser says what it is, also when it is empty.
NOTHING = {"x": ""}
FORM = "application/x-www-form-urlencoded"
JSON = {"accept": "application/json"}
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 16


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store, open as the server opens it."""
    Store.init(tmp_path / "store")
    with Store.open(tmp_path / "store", keep_locks=False) as store:
        yield store


@pytest.fixture
def door(store: Store, tokens: Tokens) -> Door:
    """The pages, asked with the cookie of any visitor."""
    return Door(store, tokens)


@pytest.fixture
def owner(door: Door) -> Door:
    door.enter(door.site.admission.token())
    return door


def texts(store: Store, id: str) -> list[str]:
    return [message.content for message in store.load(id).history]


def agents(store: Store) -> str:
    """Two agents, and a group of them."""
    for name in ("anna", "bert"):
        store.agents.register(name, name=name, project=str(Path(store.root).parent))
    return store.groups.create("g", agent="anna", with_=["bert"]).id


# -- Messages --------------------------------------------------------------------------------------


def test_a_text_is_written_and_leads_to_its_message(client: TestClient, store: Store) -> None:
    id = store.create(title="Plan").id
    answer = client.post(f"/c/{id}/messages", data={"content": "one\r\ntwo", "id": "k1"})
    message = store.tail(id, 1)[0]
    assert (message.content, message.role) == ("one\ntwo", "user")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/c/{id}/m/{message.id}")
    again = client.post(f"/c/{id}/messages", data={"content": "one\ntwo", "id": "k1"}, headers=JSON)
    assert again.json() == {"location": f"/c/{id}/m/{message.id}", "id": message.id}
    assert client.post(f"/c/{id}/messages", data={"content": "three"}).status_code == 303
    assert texts(store, id) == ["one\ntwo", "three"]


def test_twenty_clicks_at_once_write_one_message(client: TestClient, store: Store) -> None:
    id = store.create(title="Plan").id

    def click(_: int) -> str:
        answer = client.post(f"/c/{id}/messages", data={"content": "once", "id": "k"})
        return f"{answer.status_code} {answer.headers.get('location')}"

    with ThreadPoolExecutor(20) as pool:
        assert set(pool.map(click, range(20))) == {f"303 /c/{id}/m/{store.tail(id, 1)[0].id}"}
    assert texts(store, id) == ["once"]


def test_who_wrote_meanwhile_is_named_before_the_text_goes_behind_it(
    client: TestClient, store: Store
) -> None:
    id = store.create(title="Plan").id
    seen = store.append(id, content="first").id
    store.append(id, role="assistant", content="meanwhile")
    form = {"content": "<my> text", "id": "k", "seen": str(seen)}
    answer = client.post(f"/c/{id}/messages", data=form)
    assert answer.status_code == 409
    assert texts(store, id) == ["first", "meanwhile"]
    assert "1 message came after the last one that was seen" in answer.text
    assert "<my> text" in unescape(answer.text)
    assert "Send anyway" in answer.text
    assert 'name="seen"' not in answer.text
    assert client.post(f"/c/{id}/messages", data=form, headers=JSON).json()["kind"] == "Meanwhile"
    sent = client.post(f"/c/{id}/messages", data=form | {"seen": ""})
    assert sent.status_code == 303
    store.append(id, role="assistant", content="an answer")
    # Who asks again whether it was sent hears that it was, whatever came behind it.
    assert (
        client.post(f"/c/{id}/messages", data=form).headers["location"] == sent.headers["location"]
    )
    assert texts(store, id) == ["first", "meanwhile", "<my> text", "an answer"]


def test_a_text_that_is_refused_is_kept(client: TestClient, store: Store, tmp_path: Path) -> None:
    id = store.create(title="Plan").id
    with Store.open(tmp_path / "store") as other, other.locks.take(id):
        answer = client.post(f"/c/{id}/messages", data={"content": "my text", "id": "k"})
        assert (answer.status_code, texts(store, id)) == (409, [])
        assert "my text" in answer.text
        assert f'href="/c/{id}"' in answer.text
        assert 'name="id" value="k"' in answer.text
    assert (
        client.post(f"/c/{id}/messages", data={"content": "my text", "id": "k"}).status_code == 303
    )
    # Another text under the same id: it is kept, and gets another id.
    other_text = client.post(f"/c/{id}/messages", data={"content": "changed", "id": "k"})
    assert (
        other_text.status_code,
        'value="k"' in other_text.text,
        "changed" in other_text.text,
    ) == (400, False, True)


@pytest.mark.parametrize(
    "id", ["..%2f..%2fetc", "%00", "no-such", "x" * 500, "a%0d%0aset-cookie:b", "%ff"]
)
def test_hostile_ids_change_nothing_and_are_answered(client: TestClient, id: str) -> None:
    for path in (
        f"/c/{id}/messages",
        f"/c/{id}/delete",
        f"/trash/{id}",
        f"/c/{id}/m/{id}/edit",
        f"/c/{id}/head",
    ):
        answer = client.post(
            path, data={"content": "x", "id": "k", "seen": "x", "title": "x", "how": "place"}
        )
        assert answer.status_code in (400, 404, 405), path
        assert "set-cookie" not in answer.headers


def test_hostile_fields_are_shown_and_do_nothing(client: TestClient, store: Store) -> None:
    id = store.create(title="Plan").id
    answer = client.post(
        f"/c/{id}/messages", data={"content": "</textarea><script>canary()</script>", "id": " "}
    )
    assert answer.status_code == 400
    assert "<script>canary" not in answer.text
    for form in ({"content": "x", "parent": "nothing"}, {"content": "x", "id": "k" * 300}, NOTHING):
        assert client.post(f"/c/{id}/messages", data=form).status_code == 400, form
    assert texts(store, id) == []


# -- Who writes ------------------------------------------------------------------------------------


def test_a_token_to_read_changes_nothing_and_is_shown_no_forms(door: Door, tokens: Tokens) -> None:
    store = door.site.store
    group = agents(store)
    message = store.messages.send("hi", agent="anna", conversation=group).message
    chat = store.create(title="Chat").id
    door.enter_token(tokens.add("anna", scope="read"))
    for path in (
        f"/c/{chat}/messages",
        f"/c/{group}/m/{message}/edit",
        "/import",
    ):  # All: test_routes.py.
        # It is refused before any of its files is read.
        assert door.ask(path, {}, content_type="multipart/form-data; boundary=x").status == 403, (
            path
        )
    assert texts(store, group) == ["hi"]
    for path in (f"/c/{group}", f"/c/{group}/m/{message}/edit", "/new", "/import"):
        assert 'method="post"' not in door.ask(path).text, path


def test_a_token_to_write_takes_nothing_away(door: Door, tokens: Tokens) -> None:
    store = door.site.store
    group = agents(store)
    message = store.messages.send("hi", agent="anna", conversation=group).message
    chat = store.create(title="Chat").id
    door.enter_token(tokens.add("anna", scope="write"))
    for path in (
        f"/c/{chat}/delete",
        f"/c/{chat}/unlock",
        f"/c/{group}/m/{message}/remove",
        "/import",
    ):
        assert door.ask(path, {}).status == 403, path
    assert door.ask(f"/c/{group}/m/{message}/edit", {"content": "ho", "how": "place"}).status == 303
    assert door.ask(f"/c/{group}/messages", {"content": "more"}).status == 303
    assert texts(store, group) == ["ho", "more"]


def test_an_agent_gets_what_the_store_says_of_what_it_may_not_read(
    door: Door, tokens: Tokens
) -> None:
    store = door.site.store
    group = agents(store)
    store.agents.register("carl", name="carl", project=str(Path(store.root).parent))
    door.enter_token(tokens.add("carl", scope="admin"))
    for path, form in (
        (f"/c/{group}/messages", {"content": "x"}),
        (f"/c/{group}/head", {"title": "mine"}),
        (f"/c/{group}/delete", {}),
        (f"/c/{group}/lock", {"on": "yes"}),
        (f"/c/{group}/export?format=markdown", None),
        (f"/c/{group}/files/x", None),
    ):
        assert door.ask(path, form).status in (403, 404), path
    assert texts(store, group) == []
    assert door.ask("/as", {"agent": "anna"}).status == 403


def test_a_token_of_an_agent_changes_no_message_of_another_in_a_chat(
    door: Door, tokens: Tokens
) -> None:
    store = door.site.store
    agents(store)
    messages = [
        {"role": "user", "content": "mine", "from": "alice"},
        {"role": "user", "content": "a person's"},
    ]
    chat = store.create(title="Chat", messages=messages).id
    door.enter_token(tokens.add("anna", scope="admin"))
    for at in ("@0", "@1"):
        assert (
            door.ask(f"/c/{chat}/m/{at}/edit", {"content": "REWRITTEN", "how": "place"}).status
            == 403
        )
        for what in ("alone", "answers"):
            assert door.ask(f"/c/{chat}/m/{at}/remove", {"what": what}).status in (403, 409)
        page = door.ask(f"/c/{chat}/m/{at}/edit").text
        assert 'value="place"' not in page and "/remove" not in page
    assert door.ask(f"/c/{chat}/delete", {}).status == 403
    assert texts(store, chat) == ["mine", "a person's"]
    assert door.ask(f"/c/{chat}/m/@1/edit", {"content": "beside", "how": "beside"}).status == 303
    last = store.load(chat).history[-1]
    assert (last.content, last.from_) == ("beside", "anna")


def test_the_owner_changes_as_the_owner_what_the_chosen_agent_did_not_write(owner: Door) -> None:
    store = owner.site.store
    group = agents(store)
    for agent in ("anna", "bert"):
        store.messages.send("hi", agent=agent, conversation=group)
    owner.cookie += f"; {owner.site.cookie}-as=anna"
    for at in ("@0", "@1"):
        assert owner.ask(f"/c/{group}/m/{at}/edit", {"content": "ho", "how": "place"}).status == 303
    assert [entry.edited_by for entry in store.load(group).history] == ["anna", None]


def test_where_several_write_one_message_goes_and_more_only_when_they_were_named(
    owner: Door,
) -> None:
    store = owner.site.store
    group = agents(store)
    for number in range(6):
        store.messages.send(
            f"text {number}", agent=("anna", "bert")[number % 2], conversation=group
        )
    assert owner.ask(f"/c/{group}/m/@1/remove", {}).status == 303
    assert texts(store, group) == [f"text {number}" for number in (0, 2, 3, 4, 5)]
    assert 'name="sure" value=""' in owner.ask(f"/c/{group}/m/@1/edit").text
    asked = owner.ask(f"/c/{group}/m/@1/remove", {"what": "answers"})
    said = unescape(asked.text)
    assert asked.status == 409 and len(texts(store, group)) == 5
    assert all(
        f"{who}: 'text {n}'" in said
        for who, n in (("anna", 2), ("bert", 3), ("anna", 4), ("bert", 5))
    )
    sure = asked.text.partition('name="sure" value="')[2].partition('"')[0]
    assert owner.ask(f"/c/{group}/m/@1/remove", {"what": "answers", "sure": sure}).status == 303
    assert texts(store, group) == ["text 0"]


def test_an_agent_that_joined_later_changes_its_own(door: Door, tokens: Tokens) -> None:
    store = door.site.store
    group = agents(store)
    before = store.messages.send("before", agent="anna", conversation=group).message
    store.agents.register("carl", name="carl", project=str(Path(store.root).parent))
    store.groups.add(group, ["carl"], agent="anna")
    own = store.messages.send("own", agent="carl", conversation=group).message
    door.enter_token(tokens.add("carl", scope="admin"))
    assert "Remove this message" in door.ask(f"/c/{group}/m/{own}/edit").text
    for message, status in ((before, 404), (own, 303)):
        assert (
            door.ask(f"/c/{group}/m/{message}/edit", {"content": "x", "how": "place"}).status
            == status
        )
        assert door.ask(f"/c/{group}/m/{message}/remove", {}).status == status
    assert texts(store, group) == ["before"]
    assert door.ask(f"/c/{group}/m/{before}/edit").status == 404


def test_a_text_as_large_as_a_message_may_be_comes_in(client: TestClient, store: Store) -> None:
    id = store.create(title="Plan").id
    text = "é" * (store.settings.message_bytes // 2 - 1000)
    assert client.post(f"/c/{id}/messages", data={"content": text, "id": "k"}).status_code == 303
    assert (
        client.post(f"/c/{id}/messages", data={"content": text * 2, "id": "l"}).status_code == 400
    )
    assert (
        client.post(f"/c/{id}/messages", data={"content": text * 6, "id": "m"}).status_code == 400
    )
    assert texts(store, id) == [text]


def test_the_owner_writes_as_the_agent_that_was_chosen(owner: Door) -> None:
    store = owner.site.store
    group = agents(store)
    chat = store.create(title="Chat").id
    chosen = owner.ask("/as", {"agent": "anna"})
    assert {"HttpOnly", "SameSite=strict"} <= set(chosen.cookies[0].split("; "))
    own = owner.cookie
    owner.cookie += "; " + chosen.cookies[0].partition(";")[0]
    assert "as anna" in owner.ask("/").text
    owner.ask(f"/c/{chat}/messages", {"content": "from her", "id": "k"})
    sent = owner.ask(f"/c/{group}/messages", {"content": "@bert hi", "id": "k"})
    assert owner.ask(f"/c/{group}/messages", {"content": "@bert hi", "id": "k"}) == sent
    assert [(entry.from_, entry.content) for entry in store.load(group).history] == [
        ("anna", "@bert hi")
    ]
    assert store.tail(chat, 1)[0].from_ == "anna"
    assert store.messages.inbox(agent="bert").conversations[0].id == group
    assert store.head(chat).lock is None
    owner.ask(f"{sent.headers['location']}/react", {"emoji": "👍"})
    assert store.tail(group, 1)[0].intent == "reaction"
    assert owner.ask("/as", {"agent": "nobody"}).status == 404
    cleared = owner.ask("/as", {"agent": ""})
    assert "Max-Age=0" in cleared.cookies[0]
    owner.cookie = own
    owner.ask(f"/c/{group}/messages", {"content": "the owner"})
    assert store.tail(group, 1)[0].from_ is None


# -- One message -----------------------------------------------------------------------------------


def test_a_message_with_answers_is_changed_in_a_branch_of_its_own(
    client: TestClient, store: Store
) -> None:
    id = store.create(title="Plan").id
    first = store.append(id, content="first")
    store.append(id, role="assistant", content="answer")
    page = client.get(f"/c/{id}/m/{first.id}/edit").text
    assert 'value="beside" checked' in page
    assert "What answers it, 1 message, stays with the text as it is" in page
    form = {"content": "better", "how": "beside", "id": "k"}
    done = client.post(f"/c/{id}/m/{first.id}/edit", data=form)
    assert (
        client.post(f"/c/{id}/m/{first.id}/edit", data=form).headers["location"]
        == done.headers["location"]
    )
    assert [message.content for message in store.branches.path(id)] == ["better"]
    assert texts(store, id) == ["first", "answer", "better"]
    switched = client.post(f"/c/{id}/switch", data={"message": str(first.id)}, headers=JSON).json()
    assert [message.content for message in store.branches.path(id)] == ["first", "answer"]
    another = {"content": "another answer", "how": "answer", "id": "k2"}
    client.post(f"/c/{id}/m/{switched['leaf']}/edit", data=another)
    assert [message.content for message in store.branches.path(id)] == ["first", "another answer"]
    in_place = {"content": "in place", "how": "place"}
    client.post(f"/c/{id}/m/{first.id}/edit", data=in_place)
    assert texts(store, id)[0] == "in place"
    assert (
        client.post(f"/c/{id}/m/{first.id}/edit", data={"content": "x", "how": "?"}).status_code
        == 400
    )
    assert client.post(f"/c/{id}/switch", data={"message": "none-of-these"}).status_code == 404


def test_a_message_of_agents_is_changed_in_its_place(owner: Door) -> None:
    store = owner.site.store
    group = agents(store)
    message = store.messages.send("hi", agent="anna", conversation=group).message
    owner.cookie += f"; {owner.site.cookie}-as=anna"
    page = owner.ask(f"/c/{group}/m/{message}/edit").text
    assert 'value="place" checked' in page
    assert 'value="beside"' not in page


def test_a_removed_message_comes_back(client: TestClient, store: Store) -> None:
    id = store.create(title="Plan").id
    store.append(id, content="first")
    second = store.append(id, content="second")
    store.append(id, content="third")
    page = client.get(f"/c/{id}/m/{second.id}/edit").text
    assert "2 messages (2 user)" in page
    form = {"what": "answers", "sure": page.partition('name="sure" value="')[2].partition('"')[0]}
    store.append(id, content="fourth")
    asked = client.post(f"/c/{id}/m/{second.id}/remove", data=form)
    assert (asked.status_code, texts(store, id)) == (409, ["first", "second", "third", "fourth"])
    store.branches.remove(id, "@last")
    done = client.post(f"/c/{id}/m/{second.id}/remove", data=form)
    assert texts(store, id) == ["first"]
    assert "In the trash: 2 messages" in client.get(done.headers["location"]).text
    back = client.post(done.headers["location"], data=NOTHING)
    assert back.headers["location"] == f"/c/{id}/m/{second.id}"
    assert texts(store, id) == ["first", "second", "third"]
    assert client.get(done.headers["location"]).status_code == 404


# -- A conversation --------------------------------------------------------------------------------


def test_a_title_that_a_person_gave_is_replaced_when_that_was_said(
    client: TestClient, store: Store
) -> None:
    by_rule = store.create(messages=[{"role": "user", "content": "hello there"}]).id
    assert client.post(f"/c/{by_rule}/head", data={"title": "Mine"}).status_code == 303
    asked = client.post(f"/c/{by_rule}/head", data={"title": "Other"})
    assert (asked.status_code, store.head(by_rule).title) == (409, "Mine")
    assert "'Mine'" in unescape(asked.text)
    assert 'name="instead_of" value="Mine"' in asked.text
    store.rename(by_rule, "Meanwhile")
    stale = client.post(f"/c/{by_rule}/head", data={"title": "Other", "instead_of": "Mine"})
    assert (stale.status_code, store.head(by_rule).title) == (409, "Meanwhile")
    client.post(f"/c/{by_rule}/head", data={"title": "Other", "instead_of": "Meanwhile"})
    assert store.head(by_rule).title == "Other"


def test_marks_of_a_conversation_are_changed(client: TestClient, store: Store) -> None:
    id = store.create(title="Plan", tags=["a"]).id
    for form in ({"tagged": "b"}, {"untagged": "a"}, {"pinned": "yes"}, {"archived": "yes"}):
        assert client.post(f"/c/{id}/head", data=form).status_code == 303
    for form in (
        {"server": "git", "on": "no"},
        {"server": "web", "on": "yes"},
        {"server": "web", "on": ""},
    ):
        assert client.post(f"/c/{id}/head", data=form).status_code == 303
    head = store.head(id)
    assert (head.tags, head.pinned, head.archived, head.mcp_servers) == (
        ("b",),
        True,
        True,
        {"git": False},
    )
    client.post(f"/c/{id}/head", data={"pinned": "no"})
    assert not store.head(id).pinned
    assert client.post(f"/c/{id}/head", data=NOTHING).status_code == 400


def test_a_lock_is_taken_released_and_broken_when_that_was_said(
    client: TestClient, store: Store, tmp_path: Path
) -> None:
    id = store.create(title="Plan").id
    client.post(f"/c/{id}/lock", data={"on": "yes"})
    assert store.head(id).lock
    client.post(f"/c/{id}/lock", data={"on": "no"})
    assert store.head(id).lock is None
    with Store.open(tmp_path / "store", user="anna") as other:
        other.locks.take(id)
        assert client.post(f"/c/{id}/lock", data={"on": "no"}).status_code == 409
        asked = client.post(
            f"/c/{id}/unlock", content=b"", headers={"content-type": FORM}
        )  # As its button does.
        assert (asked.status_code, "anna" in asked.text, bool(store.head(id).lock)) == (
            409,
            True,
            True,
        )
        assert f'name="sure" value="{other.instance_id}"' in asked.text
        client.post(f"/c/{id}/unlock", data={"sure": other.instance_id})
        assert store.head(id).lock is None


def test_a_deleted_conversation_comes_back(client: TestClient, store: Store) -> None:
    id = store.create(title="Plan & <b>").id
    done = client.post(f"/c/{id}/delete", data=NOTHING)
    assert client.get(f"/c/{id}").status_code == 404
    page = client.get(done.headers["location"]).text
    assert "Deleted" in page
    assert "Plan & <b>" in unescape(page)
    assert client.post(done.headers["location"], data=NOTHING).headers["location"] == f"/c/{id}"
    assert store.head(id).title == "Plan & <b>"
    assert client.post(done.headers["location"], data=NOTHING).status_code == 404


def test_a_conversation_is_made_once(client: TestClient, store: Store) -> None:
    form = {"title": "Plan", "tags": "a, b,", "content": "hello", "id": "k"}
    made = client.post("/new", data=form).headers["location"]
    assert client.post("/new", data=form).headers["location"] == made
    head = store.head(made.removeprefix("/c/"))
    assert (head.title, head.tags, texts(store, head.id)) == ("Plan", ("a", "b"), ["hello"])


def test_a_conflict_is_resolved(client: TestClient, store: Store) -> None:
    id = store.create(title="Plan").id

    def conflicting(head: dict[str, object]) -> None:
        metadata = head["metadata"]
        assert isinstance(metadata, dict)
        metadata["conflicts"] = [
            {"field": "title", "values": [{"value": "Plan"}, {"value": "Other"}]}
        ]

    store.inner.change_head(id, conflicting)
    assert [conflict.field for conflict in store.conflicts.list(id)] == ["title"]
    assert (
        client.post(f"/c/{id}/conflicts", data={"field": "title", "value": "{"}).status_code == 400
    )
    client.post(f"/c/{id}/conflicts", data={"field": "title", "value": '"Other"'})
    assert (store.head(id).title, store.conflicts.list(id)) == ("Other", [])
    assert (
        client.post(f"/c/{id}/conflicts", data={"field": "title", "text": "x"}).status_code == 404
    )


# -- Files -----------------------------------------------------------------------------------------


def test_files_are_imported_and_what_became_of_them_is_shown(
    client: TestClient, store: Store
) -> None:
    capsule = store.create(title="Old", messages=[{"role": "user", "content": "hello"}])
    data = store.read(capsule.id)
    store.delete(capsule.id)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("notes.txt", "of no format")
    files = [
        ("files", ("../../a.json", data.replace(capsule.id.encode(), b"came"), "text/html")),
        ("files", ("a.json", data.replace(capsule.id.encode(), b"came-too"), "application/json")),
        ("files", (".x.zip", archive.getvalue(), "application/zip")),
    ]
    answer = client.post("/import", files=files)
    assert answer.status_code == 200
    assert "2 imported" in answer.text
    assert "notes.txt" in answer.text
    assert "capsule-import-" not in answer.text
    assert {head.id for head in store.heads()} == {"came", "came-too"}
    assert client.post("/import", files=files, headers=JSON).json()["unchanged"] == 2
    assert client.post("/import", data={"files": "no file"}).status_code == 400


def test_a_conversation_is_exported_as_a_file_to_save(client: TestClient, store: Store) -> None:
    id = store.create(
        title="Plan", messages=[{"role": "user", "content": "<script>canary()</script>"}]
    ).id
    assert 'value="markdown"' in client.get(f"/c/{id}/export").text
    for format in ("markdown", "html", "capsule"):
        answer = client.get(f"/c/{id}/export?format={format}")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"].startswith(
            f"attachment; filename*=UTF-8''{id}."
        )
        assert b"canary" in answer.content
    assert client.get(f"/c/{id}/export?format=nothing").status_code == 400
    assert client.get("/c/no-such/export?format=markdown").status_code == 404


def test_only_images_are_shown_and_only_where_they_are_attached(
    client: TestClient, store: Store
) -> None:
    def kept(data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        store.inner.whole_engine.files.write("attachments", digest, digest, data)
        return digest

    page = b"<svg xmlns='http://www.w3.org/2000/svg' onload='canary()'/>"
    image, hostile, elsewhere = kept(PNG), kept(page), kept(b"RIFF0000WEBP")
    attached = [
        {"sha256": image, "name": "a.png", "type": "image/png"},
        {"sha256": hostile, "name": 'a"\r\nx: y/é.svg', "type": "image/svg+xml"},
    ]
    entry = {"role": "user", "content": "look", "attachments": attached}
    id = store.create(title="Plan", messages=[entry]).id
    shown = client.get(f"/c/{id}/files/{image}")
    assert (shown.headers["content-type"], shown.content) == ("image/png", PNG)
    saved = client.get(f"/c/{id}/files/{hostile}")
    assert saved.headers["content-type"] == "application/octet-stream"
    assert (
        saved.headers["content-disposition"]
        == "attachment; filename*=UTF-8''a%22%0D%0Ax%3A%20y%2F%C3%A9.svg"
    )
    for digest in (elsewhere, "..%2f..%2fcapsule.toml", "0" * 64):
        assert client.get(f"/c/{id}/files/{digest}").status_code == 404, digest
