"""What is asked of the user first, in both eras, and what happens where the client can't ask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from capsule import Store
from capsule.mcp_server.access import Access
from tests.core.mcp_server.talking import Answering, data, error, serving, talking, text
from tests.processes import Child

pytestmark = [pytest.mark.anyio, pytest.mark.both_eras]

NO = [
    ("accept", {"yes": False}, "said no"),
    ("decline", None, "declined"),
    ("cancel", None, "closed the question without an answer"),
]
CANT = "Nothing was done. This needs the user's consent, and the client can't ask: "
AGAIN = " If the user agrees, call again with confirm: true."


@pytest.fixture
def plan(store: Store) -> str:
    return store.create(id="plan-1", title="Plan", type="group").id


@pytest.fixture
def dead(root: Path, store: Store) -> str:
    """A conversation whose lock is of a process that is gone."""
    child = Child('store = Store.open(sys.argv[1]); say(store.create(title="Left").id); hear()', str(root))
    id = child.hear()
    child.kill()
    child.close()
    return str(id)


async def test_a_conversation_is_deleted_when_the_user_says_yes(store: Store, era: str, plan: str) -> None:
    for content in ({"yes": True}, {}):
        user = Answering("accept", content)
        async with talking(store, era, elicitation_callback=user) as client:
            answer = await client.call_tool("delete_conversation", {"id": plan})
        (question,) = user.questions
        assert '"Plan" (plan-1)' in question and "trash" in question
        assert "capsule restore plan-1" in text(answer) and data(answer)["id"] == plan
        assert store.ids() == []
        assert store.trash.restore(plan).title == "Plan"


async def test_nothing_is_changed_when_the_user_does_not_say_yes(store: Store, era: str, plan: str) -> None:
    first = store.append(plan, content="To the sea?")
    for content in ("Yes.", "No."):
        store.append(plan, role="assistant", content=content, parent=first.id)
    before = store.read(plan)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("delete_conversation", {}),
        ("update_conversation", {"title": "New", "tags": ["x"]}),
        ("delete_messages", {"message": "@0"}),
        ("delete_messages", {"message": "@0", "what": "alone"}),
        ("delete_messages", {"what": "other_branches"}),
    ]
    for action, content, said in NO:
        user = Answering(action, content)
        async with talking(store, era, elicitation_callback=user) as client:
            for tool, arguments in calls:
                for confirm in (False, True):
                    answer = await client.call_tool(tool, {"id": plan, "confirm": confirm, **arguments})
                    assert error(answer).startswith(f"Nothing was done: the user {said}.")
        assert len(user.questions) == 2 * len(calls)
    assert store.read(plan) == before


async def test_an_answer_that_does_not_fit_the_question_is_a_no_and_names_nothing_of_the_server(
    store: Store, era: str, plan: str
) -> None:
    for content in (None, {"yes": "perhaps"}, {"yes": None}, {"yes": 1}, {"no": True}):
        async with talking(store, era, elicitation_callback=Answering("accept", content)) as client:
            said = error(await client.call_tool("delete_conversation", {"id": plan}))
        assert said.startswith("Nothing was done: "), content
        assert "capsule" not in said and "may_delete" not in said
        assert store.ids() == [plan]


async def test_where_the_client_cant_ask_nothing_is_done_without_confirm(store: Store, era: str, plan: str) -> None:
    before = store.read(plan)
    async with talking(store, era) as client:
        for tool, arguments in (
            ("update_conversation", {"id": plan, "title": "New"}),
            ("delete_conversation", {"id": plan}),
        ):
            said = error(await client.call_tool(tool, arguments))
            assert said.startswith(CANT) and said.endswith(AGAIN) and '" (plan-1)' in said
            assert store.read(plan) == before
            data(await client.call_tool(tool, {**arguments, "confirm": True}))
            before = b"" if store.ids() == [] else store.read(plan)
    assert store.ids() == [] and store.trash.head(store.trash.list()[0]).title == "New"


async def test_only_the_user_can_agree_to_delete_a_conversation_with_words_of_others(
    store: Store, root: Path, era: str, plan: str
) -> None:
    """Or else an agent that may not delete one message of theirs could delete all."""
    store.append(plan, content="To the sea?")
    (root / "conversations" / "bad.json").write_text("{")
    async with talking(store, era) as client:
        for id in (plan, "bad"):
            said = error(await client.call_tool("delete_conversation", {"id": id, "confirm": True}))
            assert f"capsule delete {id}" in said and "confirm" not in said
    assert store.tail(plan, 1)[0].content == "To the sea?"


async def test_a_damaged_conversation_can_be_deleted_too(store: Store, era: str, root: Path) -> None:
    (root / "conversations" / "bad.json").write_text("{")
    user = Answering("accept", {"yes": True})
    async with talking(store, era, elicitation_callback=user) as client:
        data(await client.call_tool("delete_conversation", {"id": "bad"}))
    assert user.questions == ["Delete the conversation bad, whose file is damaged? It goes to the store's trash."]
    assert store.ids() == []


async def test_the_user_is_not_asked_about_a_missing_conversation(store: Store, era: str) -> None:
    user = Answering("accept", {"yes": True})
    async with talking(store, era, elicitation_callback=user) as client:
        said = error(await client.call_tool("delete_conversation", {"id": "nope"}))
    assert said == "no conversation nope; call list_conversations to see which there are"
    assert user.questions == []


async def test_a_title_that_a_person_gave_is_replaced_when_the_user_says_yes(store: Store, era: str, plan: str) -> None:
    user = Answering("accept", {"yes": True})
    async with talking(store, era, elicitation_callback=user) as client:
        await client.call_tool("update_conversation", {"id": plan, "title": "New", "tags": ["x"]})
    assert user.questions == ['Replace the title that was given to "Plan" (plan-1) by "New"?']
    assert (store.head(plan).title, store.head(plan).tags) == ("New", ("x",))


async def test_the_user_is_not_asked_about_tags_or_a_title_made_by_rule(store: Store, era: str) -> None:
    id = store.create(type="group", messages=[{"role": "user", "content": "Buy milk"}]).id
    user = Answering("decline")
    async with talking(store, era, elicitation_callback=user) as client:
        data(await client.call_tool("update_conversation", {"id": id, "tags": ["x"]}))
        data(await client.call_tool("update_conversation", {"id": id, "title": "Milk"}))
    assert user.questions == []


async def test_a_lock_of_a_dead_program_is_taken_over_when_the_user_says_yes(store: Store, era: str, dead: str) -> None:
    lock = store.head(dead).lock
    assert lock is not None
    user = Answering("accept", {"yes": True})
    async with talking(store, era, elicitation_callback=user) as client:
        answer = await client.call_tool("lock_conversation", {"id": dead})
    holder = f"{lock['user']} on {lock['host']} since {lock['timestamp']}"
    assert user.questions == [f'Take over the lock on "Left" ({dead})? It is of {holder}, whose program is gone.']
    assert data(answer) == {"id": dead, "locked": True}
    assert (store.head(dead).lock or {})["instanceId"] == store.instance_id


async def test_a_lock_of_a_dead_program_stays_where_nobody_says_yes(store: Store, era: str, dead: str) -> None:
    before = store.read(dead)
    async with talking(store, era, elicitation_callback=Answering("decline")) as client:
        assert "declined" in error(await client.call_tool("lock_conversation", {"id": dead}))
    async with talking(store, era) as client:
        assert error(await client.call_tool("lock_conversation", {"id": dead})).startswith(CANT)
        assert store.read(dead) == before
        data(await client.call_tool("lock_conversation", {"id": dead, "confirm": True}))


async def test_a_held_lock_is_taken_only_with_force_and_the_users_consent(store: Store, era: str, plan: str) -> None:
    with store.beside(user="anna") as other:
        other.locks.take(plan)
        lock = other.head(plan).lock
        assert lock is not None
        no, yes = Answering("decline"), Answering("accept", {"yes": True})
        async with talking(store, era, elicitation_callback=no) as client:
            error(await client.call_tool("unlock_conversation", {"id": plan}))
            assert no.questions == []
            error(await client.call_tool("unlock_conversation", {"id": plan, "force": True}))
            holder = f"anna on {lock['host']} since {lock['timestamp']}"
            question = f'Take the lock on "Plan" (plan-1) from {holder}, who may be in the middle of something?'
            assert no.questions == [question]
        assert store.head(plan).lock == lock
        async with talking(store, era) as client:
            assert error(await client.call_tool("unlock_conversation", {"id": plan, "force": True})).startswith(CANT)
        async with talking(store, era, elicitation_callback=yes) as client:
            data(await client.call_tool("unlock_conversation", {"id": plan, "force": True}))
            data(await client.call_tool("append_message", {"id": plan, "content": "now"}))
        assert store.head(plan).lock is None


async def test_a_persons_words_are_replaced_when_they_agree_and_can_be_restored(
    store: Store, era: str, plan: str
) -> None:
    message = store.append(plan, content="To the sea?")
    arguments = {"id": plan, "message": "@last", "content": "To the hills?"}
    no, yes = Answering("decline"), Answering("accept", {"yes": True})
    async with talking(store, era, elicitation_callback=no) as client:
        assert "declined" in error(await client.call_tool("edit_message", arguments))
    async with talking(store, era) as client:
        said = error(await client.call_tool("edit_message", arguments))
        assert f"capsule edit {plan} --which {message.id}" in said and "confirm" not in said
    assert store.tail(plan, 1)[0].content == "To the sea?"
    async with talking(store, era, elicitation_callback=yes) as client:
        assert data(await client.call_tool("edit_message", arguments))["message"] == message.id
    assert (
        no.questions == yes.questions and '"To the sea?"' in yes.questions[0] and '"To the hills?"' in yes.questions[0]
    )
    (kept,) = store.trash.removed(plan)
    store.trash.restore_messages(kept.trashed)
    assert store.tail(plan, 1)[0].content == "To the sea?"


async def test_an_answer_is_edited_without_a_question(store: Store, era: str, plan: str) -> None:
    store.append(plan, role="assistant", content="Yes.")
    user = Answering("decline")
    async with talking(store, era, elicitation_callback=user) as client:
        data(await client.call_tool("edit_message", {"id": plan, "message": "@last", "content": "No."}))
    assert user.questions == [] and len(store.trash.removed(plan)) == 1


async def test_a_named_agent_edits_its_own_words_and_no_other_agents(store: Store, era: str, plan: str) -> None:
    for name in ("reviewer", "builder"):
        store.append(plan, role="assistant", content="Yes.", **{"from": name})
    user = Answering("accept", {"yes": True})
    server = serving(store, Access("reviewer"))
    async with Client(server, mode=era, elicitation_callback=user) as client:
        await client.call_tool("edit_message", {"id": plan, "message": "@0", "content": "No."})
        said = error(await client.call_tool("edit_message", {"id": plan, "message": "@1", "content": "No."}))
    assert "builder" in said and user.questions == []
    assert [message.content for message in store.tail(plan, 2)] == ["No.", "Yes."]
