"""watch_changes: what an agent hears that waits for others."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest
from mcp import Client

from capsule import Store
from capsule.mcp_server.tools.answers import token_cost
from tests.core.mcp_server.talking import data, talking, text, until

pytestmark = pytest.mark.anyio


async def waited(client: Client, act: Callable[[], None], **arguments: str) -> Any:
    """The answer to a wait for the next changes, during which somebody does something."""
    cursor = data(await client.call_tool("watch_changes", {"seconds": 0}))["cursor"]
    answers: list[Any] = []

    async def wait() -> None:
        answers.append(
            await client.call_tool("watch_changes", {"cursor": cursor, "seconds": 50, **arguments})
        )

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        act()
    return answers[0]


async def test_without_a_change_the_answer_is_empty_and_has_a_cursor(
    store: Store, era: str
) -> None:
    async with talking(store, era) as client:
        answer = await client.call_tool("watch_changes", {"seconds": 0.05})
    found = data(answer)
    assert found["changes"] == []
    assert (
        text(answer)
        == f'Nothing changed within 0.05 seconds.\nTo continue: cursor: "{found["cursor"]}"'
    )


async def test_the_clients_own_writes_are_marked_before_its_first_wait_too(
    store: Store, era: str
) -> None:
    """An agent that takes a cursor without waiting, or has one from before,
    does not answer itself.
    """
    store.create(id="c1", title="t", type="group")
    with store.beside() as other:
        old = other.changes().cursor
        async with talking(store, era) as client:
            for content in ("mine", "theirs", "mine too"):
                if content == "theirs":
                    other.append("c1", content=content)
                else:
                    await client.call_tool("append_message", {"id": "c1", "content": content})
            for seconds in (0, 5):
                changes = data(
                    await client.call_tool("watch_changes", {"cursor": old, "seconds": seconds})
                )["changes"]
                assert [change.get("own", False) for change in changes] == [True, False, True]


HOLDS = """
    store = Store.open(sys.argv[1])
    store.locks.take(sys.argv[2], client="claude-code 2.1", agent="reviewer")
    say()
    hear()
"""


@pytest.mark.both_eras
async def test_a_write_of_another_ends_the_wait(store: Store, era: str) -> None:
    for id in ("c1", "c2"):
        store.create(id=id, title="t", type="group")
    with store.beside() as other:
        ids: list[str] = []

        def write() -> None:
            other.append("c2", content="passed over")
            ids.append(str(other.append("c1", content="from afar").id))

        async with talking(store, era) as client:
            answer = await waited(client, write, id="c1")
    assert data(answer)["changes"] == [{"kind": "appended", "id": "c1", "messages": ids}]
    assert text(answer).startswith(f"c1 appended: {ids[0]}\nTo continue: cursor: ")


@pytest.mark.both_eras
async def test_the_client_hears_that_the_wait_goes_on(
    store: Store, era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capsule.mcp_server.tools.reading._PROGRESS_S", 0.01)
    heard: list[tuple[float, float | None, str | None]] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        heard.append((done, total, message))

    async with talking(store, era) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(
            partial(client.call_tool, "watch_changes", {"seconds": 50}, progress_callback=progress)
        )
        await until(lambda: len(heard) > 3)
        tasks.cancel_scope.cancel()
    assert heard == sorted(heard)
    assert {(total, message) for _, total, message in heard} == {(50, "waiting for changes")}


@pytest.mark.both_eras
async def test_a_wait_that_is_cancelled_ends_at_once_and_the_server_goes_on(
    store: Store, era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[str] = []
    wait = store.await_changes

    async def noted(*args: Any, **more: Any) -> Any:
        waits.append("begun")
        try:
            return await wait(*args, **more)
        except BaseException as error:
            waits.append(type(error).__name__)
            raise

    monkeypatch.setattr(store, "await_changes", noted)
    async with talking(store, era) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(client.call_tool, "watch_changes", {"seconds": 50})
        await until(lambda: waits == ["begun"])
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await until(lambda: waits == ["begun", "CancelledError"])
            assert data(await client.call_tool("list_conversations", {}))["total"] == 0


async def test_many_changes_are_answered_within_the_budget_without_a_gap(store: Store) -> None:
    async with talking(store, "legacy") as client:
        cursor = data(await client.call_tool("watch_changes", {"seconds": 0}))["cursor"]
        with store.beside() as other:
            for n in range(150):
                other.create(id=f"c{n}", title="t", type="group")
                other.append_many(f"c{n}", [{"role": "user", "content": "x"}] * 30)
        seen: set[str] = set()
        for _ in range(100):
            answer = await client.call_tool("watch_changes", {"cursor": cursor, "seconds": 0})
            sent = answer.model_dump(mode="json", by_alias=True, exclude_none=True)
            assert token_cost(json.dumps(sent)) <= 10_000
            found = data(answer)
            if not found["changes"]:
                break
            seen |= {change["id"] for change in found["changes"]}
            cursor = found["cursor"]
    assert seen == {f"c{n}" for n in range(150)}
