"""A session store of the Claude Agent SDK, by the SDK itself. `make test-all` installs it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from capsule import Store
from capsule.transfer.adapters.claude_agent import CapsuleSessionStore
from tests.transfer.exchange import DATA, run_twice

pytestmark = pytest.mark.slow
KEY = {"project_key": "-home-dev-app", "session_id": "c8d359e4-58d6-518b-a8b4-b271044961d8"}
ENTRIES: list[dict[str, Any]] = [
    json.loads(line)
    for path in sorted((DATA / "claude-code").rglob("*.jsonl"))
    if "damaged" not in str(path.relative_to(DATA))
    for line in path.read_text("utf-8").split("\n")
    if line
]


def test_entries_of_real_transcripts_come_back_equal_and_are_messages_that_people_read() -> None:
    store = Store.in_memory()
    sessions = CapsuleSessionStore(store)
    seen: set[str] = set()
    entries = [
        one
        for one in ENTRIES
        if "uuid" not in one or not (one["uuid"] in seen or seen.add(one["uuid"]))
    ]

    async def use() -> Any:
        await sessions.append(KEY, entries[:3])
        await sessions.append(KEY, entries[3:])
        await sessions.append(
            KEY, [one for one in entries if "uuid" in one]
        )  # A batch that comes again.
        store.append(sessions.conversation_id(KEY), role="user", content="by hand")
        return await sessions.load(KEY)

    assert asyncio.run(use()) == entries
    history = store.document(sessions.conversation_id(KEY))["history"]
    assert {"user", "assistant", "tool"} <= {entry["role"] for entry in history}
    assert any(entry.get("toolCalls") for entry in history)


def test_the_store_does_what_the_sdk_asks_of_every_store() -> None:
    testing = pytest.importorskip(
        "claude_agent_sdk.testing", reason="make test-all installs claude-agent-sdk"
    )

    asyncio.run(
        testing.run_session_store_conformance(lambda: CapsuleSessionStore(Store.in_memory()))
    )


def test_sessions_and_their_subagents_are_listed_and_deleted_together() -> None:
    sessions = CapsuleSessionStore(Store.in_memory())
    below, other = KEY | {"subpath": "subagents/agent-1"}, KEY | {"session_id": "other"}

    async def use() -> list[Any]:
        for key in (KEY, below, other):
            await sessions.append(key, [{"type": "tag", "n": 1}])
            await sessions.append(key, [{"type": "tag", "n": 2}])
        seen = [
            sorted(one["session_id"] for one in await sessions.list_sessions(KEY["project_key"]))
        ]
        seen.append(await sessions.list_subkeys(KEY))
        await sessions.delete(KEY)
        seen += [await sessions.load(key) for key in (KEY, below)]
        return [
            *seen,
            [one["session_id"] for one in await sessions.list_sessions(KEY["project_key"])],
        ]

    assert asyncio.run(use()) == [
        [KEY["session_id"], "other"],
        ["subagents/agent-1"],
        None,
        None,
        ["other"],
    ]


def test_the_sdk_reads_the_messages_of_a_session_from_the_store() -> None:
    sdk = pytest.importorskip("claude_agent_sdk", reason="make test-all installs claude-agent-sdk")
    sessions = CapsuleSessionStore(Store.in_memory())
    about = {
        "sessionId": KEY["session_id"],
        "cwd": "/home/dev/app",
        "isSidechain": False,
        "version": "2.0.0",
    }
    first, second = "0b8b64f6-5d28-4c9e-8f6c-3a3c1e0a1b01", "0b8b64f6-5d28-4c9e-8f6c-3a3c1e0a1b02"
    asked = {
        "type": "user",
        "uuid": first,
        "parentUuid": None,
        "message": {"role": "user", "content": "hi"},
    }
    text = [{"type": "text", "text": "hello"}]
    answer = {"type": "assistant", "uuid": second, "parentUuid": first}
    answer |= {"message": {"role": "assistant", "model": "m", "content": text}}

    async def use() -> list[Any]:
        project = sdk.project_key_for_directory("/home/dev/app")
        key = {"project_key": project, "session_id": KEY["session_id"]}
        await sessions.append(
            key,
            [about | one | {"timestamp": "2026-05-01T12:00:00.000Z"} for one in (asked, answer)],
        )
        return await sdk.get_session_messages_from_store(
            sessions, KEY["session_id"], directory="/home/dev/app"
        )

    assert [one.message["content"] for one in asyncio.run(use())] == ["hi", text]


def test_two_processes_append_to_a_transcript_and_what_both_have_is_there_once(
    tmp_path: Path,
) -> None:
    Store.init(tmp_path)
    script = """
        import asyncio, sys
        from capsule import Store
        from capsule.transfer.adapters.claude_agent import CapsuleSessionStore

        async def add(sessions, who):
            for n in range(30):
                both = {"type": "user", "uuid": f"both {n}", "message": {"role": "user", "content": "x"}}
                await sessions.append({"project_key": "p", "session_id": "s"}, [both, {"type": "tag", who: n}])

        with Store.open(sys.argv[1]) as store:
            asyncio.run(add(CapsuleSessionStore(store), sys.argv[2]))
    """
    run_twice(script, tmp_path)

    with Store.open(tmp_path) as store:
        entries = asyncio.run(
            CapsuleSessionStore(store).load({"project_key": "p", "session_id": "s"})
        )
    for who in "ab":
        assert [entry[who] for entry in entries if who in entry] == list(range(30))
    assert len(entries) == 90
