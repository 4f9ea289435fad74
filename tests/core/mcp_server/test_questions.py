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


async def test_a_conversation_is_deleted_when_the_user_says_yes(
    store: Store, era: str, plan: str
) -> None:
    for content in ({"yes": True}, {}):
        user = Answering("accept", content)
        async with talking(store, era, elicitation_callback=user) as client:
            answer = await client.call_tool("delete_conversation", {"id": plan})
        (question,) = user.questions
        assert '"Plan" (plan-1)' in question and "trash" in question
        assert "capsule restore plan-1" in text(answer) and data(answer)["id"] == plan
        assert store.ids() == []
        assert store.trash.restore(plan).title == "Plan"


async def test_nothing_is_changed_when_the_user_does_not_say_yes(
    store: Store, era: str, plan: str
) -> None:
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
                    answer = await client.call_tool(
                        tool, {"id": plan, "confirm": confirm, **arguments}
                    )
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


async def test_where_the_client_cant_ask_nothing_is_done_without_confirm(
    store: Store, era: str, plan: str
) -> None:
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


async def test_a_held_lock_is_taken_only_with_force_and_the_users_consent(
    store: Store, era: str, plan: str
) -> None:
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
            question = f'Take the lock on "Plan" (plan-1) from {holder}, who may be writing?'
            assert no.questions == [question]
        assert store.head(plan).lock == lock
        async with talking(store, era) as client:
            assert error(
                await client.call_tool("unlock_conversation", {"id": plan, "force": True})
            ).startswith(CANT)
        async with talking(store, era, elicitation_callback=yes) as client:
            data(await client.call_tool("unlock_conversation", {"id": plan, "force": True}))
            data(await client.call_tool("append_message", {"id": plan, "content": "now"}))
        assert store.head(plan).lock is None


async def test_only_the_user_can_agree_to_delete_words_of_others_or_a_damaged_file(
    store: Store, root: Path, era: str, plan: str
) -> None:
    """Or else an agent that may not delete one message of theirs could delete all."""
    store.append(plan, content="To the sea?")
    (root / "conversations" / "bad.json").write_text("{")
    async with talking(store, era) as client:
        for id in (plan, "bad"):
            said = error(await client.call_tool("delete_conversation", {"id": id, "confirm": True}))
            assert f"capsule delete {id}" in said and "confirm" not in said
    user = Answering("accept", {"yes": True})
    async with talking(store, era, elicitation_callback=user) as client:
        data(await client.call_tool("delete_conversation", {"id": "bad"}))
        said = error(await client.call_tool("delete_conversation", {"id": "nope"}))
    assert said == "no conversation nope; call list_conversations to list them"
    assert user.questions == [
        "Delete the conversation bad, whose file is damaged? It goes to the store's trash."
    ]
    assert store.ids() == [plan] and store.tail(plan, 1)[0].content == "To the sea?"


async def test_the_user_is_asked_about_a_title_that_a_person_gave_and_about_no_other(
    store: Store, era: str, plan: str
) -> None:
    by_rule = store.create(type="group", messages=[{"role": "user", "content": "Buy milk"}]).id
    user = Answering("accept", {"yes": True})
    async with talking(store, era, elicitation_callback=user) as client:
        for arguments in ({"id": by_rule, "tags": ["x"]}, {"id": by_rule, "title": "Milk"}):
            data(await client.call_tool("update_conversation", arguments))
        await client.call_tool("update_conversation", {"id": plan, "title": "New", "tags": ["x"]})
    assert user.questions == ['Replace the title of "Plan" (plan-1) by "New"?']
    assert (store.head(plan).title, store.head(plan).tags) == ("New", ("x",))


@pytest.mark.files
async def test_a_lock_of_a_dead_program_is_taken_over_when_the_user_says_yes(
    store: Store, root: Path, era: str
) -> None:
    child = Child(
        'store = Store.open(sys.argv[1]); say(store.create(title="Left").id); hear()', str(root)
    )
    id = str(child.hear())
    child.kill()
    child.close()
    before, lock = store.read(id), store.head(id).lock or {}
    no, yes = Answering("decline"), Answering("accept", {"yes": True})
    async with talking(store, era, elicitation_callback=no) as client:
        assert "declined" in error(await client.call_tool("lock_conversation", {"id": id}))
    async with talking(store, era) as client:
        assert error(await client.call_tool("lock_conversation", {"id": id})).startswith(CANT)
    assert store.read(id) == before
    async with talking(store, era, elicitation_callback=yes) as client:
        assert data(await client.call_tool("lock_conversation", {"id": id})) == {
            "id": id,
            "locked": True,
        }
    holder = f"{lock['user']} on {lock['host']} since {lock['timestamp']}"
    question = (
        f'Take over the lock on "Left" ({id})? Its holder is {holder}, whose program has ended.'
    )
    assert no.questions == yes.questions == [question]
    assert (store.head(id).lock or {})["instanceId"] == store.instance_id


async def test_a_persons_words_are_replaced_when_they_agree_and_an_agents_own_without_a_question(
    store: Store, era: str, plan: str
) -> None:
    message = store.append(plan, content="To the sea?")
    for name in ("reviewer", "builder"):
        store.append(plan, role="assistant", content="Yes.", **{"from": name})

    async def edited(client: Client, which: str) -> Any:
        return await client.call_tool(
            "edit_message", {"id": plan, "message": which, "content": "To the hills?"}
        )

    no, yes = Answering("decline"), Answering("accept", {"yes": True})
    async with talking(store, era) as client:
        said = error(await edited(client, "@0"))
        assert f"capsule edit {plan} --which {message.id}" in said and "confirm" not in said
    async with Client(
        serving(store, Access("reviewer")), mode=era, elicitation_callback=no
    ) as client:
        assert not (await edited(client, "@1")).is_error and no.questions == []
        assert "builder" in error(await edited(client, "@2")) and no.questions == []
        assert "declined" in error(await edited(client, "@0"))
    assert [message.content for message in store.tail(plan, 3)] == [
        "To the sea?",
        "To the hills?",
        "Yes.",
    ]
    async with talking(store, era, elicitation_callback=yes) as client:
        assert data(await edited(client, "@0"))["message"] == message.id
    assert no.questions == yes.questions
    assert '"To the sea?"' in yes.questions[0] and '"To the hills?"' in yes.questions[0]
    assert len(store.trash.removed(plan)) == 2


async def test_in_a_chat_the_yes_of_the_user_lets_an_agent_change_and_remove_what_is_not_its_own(
    store: Store, era: str
) -> None:
    messages = [
        {"role": "user", "content": text, "from": "alice"} for text in ("one", "two", "three")
    ]
    chat = store.beside(keep_locks=False).create(title="Plan", messages=messages).id
    no, yes = Answering("decline"), Answering("accept", {"yes": True})
    calls: list[tuple[str, dict[str, Any]]] = [
        ("edit_message", {"message": "@0", "content": "ONE"}),
        ("delete_messages", {"message": "@1", "what": "alone"}),
        ("delete_conversation", {}),
    ]
    with store.beside(keep_locks=False, agent="anna") as anna:
        for user in (None, no):
            async with Client(
                serving(anna, Access("anna")), mode=era, elicitation_callback=user
            ) as client:
                for tool, arguments in calls:
                    answer = await client.call_tool(tool, {"id": chat, **arguments})
                    assert error(answer).startswith("Nothing was done")
        assert [entry.content for entry in store.load(chat).history] == ["one", "two", "three"]
        async with Client(
            serving(anna, Access("anna")), mode=era, elicitation_callback=yes
        ) as client:
            for tool, arguments in calls[:2]:
                assert not (await client.call_tool(tool, {"id": chat, **arguments})).is_error
            left = [
                (entry.content, entry.from_, entry.edited_by) for entry in store.load(chat).history
            ]
            assert left == [("ONE", "alice", "anna"), ("three", "alice", None)]
            assert not (await client.call_tool("delete_conversation", {"id": chat})).is_error
    assert not store.engine.exists("conversations", chat)
