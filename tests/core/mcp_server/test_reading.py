"""Reading in pages: newest, around, older and newer, cut; and what an answer may cost."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from mcp_types import CallToolResult

from capsule import Store
from capsule.mcp_server.tools import answers
from capsule.mcp_server.tools.answers import MessageOutput, chars_within, token_cost
from capsule.store import pages as module
from tests.core.mcp_server.talking import data, talking, text

pytestmark = pytest.mark.anyio


def filled(store: Store, texts: list[str]) -> str:
    id = store.create(id="long", title="Long", type="group").id
    store.append_many(id, [{"role": "user", "content": text} for text in texts])
    return id


def cost(result: CallToolResult) -> int:
    """What a whole answer costs, both the text and the data, as it goes over the wire."""
    sent = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    return token_cost(json.dumps(sent, ensure_ascii=False))


def places(found: dict[str, Any]) -> list[int]:
    return [message["at"] for message in found["messages"]]


async def test_the_newest_are_read_and_older_ones_by_cursor(store: Store, era: str) -> None:
    id = filled(store, [f"text {n}" for n in range(45)])
    async with talking(store, era) as client:
        answer = await client.call_tool("read_conversation", {"id": id})
        found = data(answer)
        assert places(found) == list(range(25, 45))
        assert "newer" not in found
        assert text(answer).endswith(f'\nFor older messages: cursor: "{found["older"]}"')
        found = data(
            await client.call_tool("read_conversation", {"id": id, "cursor": found["older"]})
        )
        assert places(found) == list(range(5, 25))
        older = data(
            await client.call_tool("read_conversation", {"id": id, "cursor": found["older"]})
        )
        assert places(older) == list(range(5))
        assert "older" not in older
        newer = data(
            await client.call_tool(
                "read_conversation", {"id": id, "cursor": older["newer"], "last": 3}
            )
        )
        assert places(newer) == [5, 6, 7]


async def test_reading_the_newest_reads_no_more_than_the_end(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = filled(store, ["x" * 1000] * 3000)

    def whole(*args: object) -> object:
        raise AssertionError("the whole file was read")

    asked: list[int] = []
    tail = module.tail_entries
    monkeypatch.setattr(store, "document", whole)
    monkeypatch.setattr(store, "load", whole)
    monkeypatch.setattr(
        module, "tail_entries", lambda engine, id, n: (asked.append(n), tail(engine, id, n))[1]
    )
    async with talking(store, "legacy") as client:
        found = data(await client.call_tool("read_conversation", {"id": id}))
        data(await client.call_tool("read_conversation", {"id": id, "cursor": found["older"]}))
        data(
            await client.call_tool(
                "read_conversation", {"id": id, "message": found["messages"][0]["id"]}
            )
        )
    assert max(asked) <= 300


async def test_no_answer_costs_more_than_10000_tokens_unless_asked(store: Store, era: str) -> None:
    rng = random.Random(4)
    kinds = [
        "plain words and no end ",
        "漢字かな交じり文",
        "{[!]} == 0x7f; ",
        "\x1b[31m\u202e",
        '"\\\n',
        "привет мир ",
    ]
    texts = [rng.choice(kinds) * rng.choice([1, 30, 300]) for _ in range(300)]
    texts[140] = kinds[1] * 4000
    id = filled(store, texts)
    async with talking(store, era) as client:
        for arguments in ({}, {"last": 500}, {"message": "@150", "last": 500}):
            answer = await client.call_tool("read_conversation", {"id": id, **arguments})
            assert len(data(answer)["messages"]) >= 1
            assert cost(answer) <= 10_000
        more = await client.call_tool(
            "read_conversation", {"id": id, "last": 500, "maxTokens": 40_000}
        )
        assert 10_000 < cost(more) <= 40_000


@pytest.mark.parametrize(("way", "begin"), [("older", {}), ("newer", {"message": "@0", "last": 1})])
async def test_following_the_cursors_shows_every_message_once(
    store: Store, way: str, begin: dict[str, Any]
) -> None:
    rng = random.Random(5)
    texts = [f"{n} " + "word " * rng.choice([1, 50, 500, 2500]) for n in range(120)]
    id = filled(store, texts)
    async with talking(store, "legacy") as client:
        found = data(await client.call_tool("read_conversation", {"id": id, "last": 50, **begin}))
        seen = places(found)
        while way in found:
            found = data(
                await client.call_tool(
                    "read_conversation", {"id": id, "last": 50, "cursor": found[way]}
                )
            )
            assert found["messages"]
            seen += places(found)
    assert sorted(seen) == list(range(120))


async def test_a_huge_message_is_cut_and_its_rest_can_be_read(store: Store, era: str) -> None:
    whole = "".join(f"line {n} of many, and a tab\t\r\n" for n in range(9000))
    id = filled(store, ["before", whole, "after"])
    async with talking(store, era) as client:
        answer = await client.call_tool("read_conversation", {"id": id, "message": "@1"})
        assert cost(answer) <= 10_000
        message = next(message for message in data(answer)["messages"] if message["at"] == 1)
        assert f"cut; for the rest: message: @1, offset: {message['restFrom']}]\n" in text(answer)
        parts = [message["text"]]
        while "restFrom" in message:
            offset = message["restFrom"]
            answer = await client.call_tool(
                "read_conversation",
                {"id": id, "message": message["id"], "offset": offset, "maxTokens": 50_000},
            )
            assert cost(answer) <= 50_000
            (message,) = data(answer)["messages"]
            parts.append(message["text"])
    assert "".join(parts) == whole.replace("\r\n", "\n")


async def test_a_list_of_long_titles_and_many_tags_stays_within_its_budget(store: Store) -> None:
    for n in range(100):
        store.create(
            id=f"c{n:02}", title="題" * 190, tags=[f"tag {i} " + "x" * 80 for i in range(30)]
        )
    async with talking(store, "legacy") as client:
        answer = await client.call_tool("list_conversations", {"limit": 100})
        found = data(answer)
        assert cost(answer) <= 10_000
        assert 0 < len(found["conversations"]) < 100
        after = data(
            await client.call_tool("list_conversations", {"limit": 1, "cursor": found["cursor"]})
        )
    assert after["conversations"][0]["id"] == f"c{99 - len(found['conversations']):02}"


def test_the_estimate_is_on_the_safe_side() -> None:
    for sample, real in [
        # What o200k and cl100k count, the larger of the two.
        ("The quick brown fox jumps over the lazy dog. " * 20, 201),
        ('{"id":"3efbe42b-0f88-4f40-9f9c-3aa6e297afa9","at":12,"role":"user"}' * 20, 760),
        ("Разговоры хранятся в файлах. " * 20, 281),
        ("会話はファイルです。" * 20, 180),
    ]:
        assert real <= token_cost(sample)


def test_a_cut_is_as_long_as_the_budget_lets_it_be() -> None:
    text = "word 1234 {} " * 2000
    end = chars_within(text, 500)
    assert token_cost(text[:end]) <= 500 < token_cost(text[: end + 8])
    assert chars_within("short", 500) == 5
    assert chars_within("", 500) == 0


@pytest.mark.parametrize("content", ["abcdef\r\nghi", "\r\n\r\nx", "x", "one two three " * 20])
async def test_a_title_of_hidden_characters_leaves_room_for_the_messages(
    store: Store, content: str
) -> None:
    id = filled(store, [content])
    store.update(id, title="x" + "\U000e0041" * 98)
    parts = []
    async with talking(store, "legacy") as client:
        arguments: dict[str, Any] = {"id": id, "maxTokens": 1000}
        while arguments:
            answer = await client.call_tool("read_conversation", arguments)
            assert cost(answer) <= 1000
            (message,) = data(answer)["messages"]
            parts.append(message["text"])
            offset = message.get("restFrom")
            arguments = {**arguments, "message": "@0", "offset": offset} if offset else {}
    assert "".join(parts) == content.replace("\r\n", "\n")


@pytest.mark.parametrize("budget", range(-100, 60, 3))
@pytest.mark.parametrize("content", ["abcdef\r\nghi", "\r\n\r\n\r\n", "x", "題" * 9])
def test_each_part_of_a_cut_message_has_a_character_and_none_is_lost(
    budget: int, content: str
) -> None:
    parts = []
    offset: int | None = 0
    while offset is not None:
        message = MessageOutput(id="id", at=0, role="user", text="")
        answers._cut(message, content[offset:], budget, offset, frozenset({"text", "data"}))
        assert message.text
        assert message.rest_from is None or message.rest_from > offset
        parts.append(message.text)
        offset = message.rest_from
    assert "".join(parts) == content.replace("\r\n", "\n")
