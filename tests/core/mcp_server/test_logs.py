"""Warnings of the store reach the clients that asked for them, at the level they asked for."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
from mcp import Client

from capsule import Store
from tests.core.mcp_server.talking import serving, talking, until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings(
        "ignore:logging/setLevel is removed:mcp.shared.exceptions.MCPDeprecationWarning"
    ),
    pytest.mark.filterwarnings(
        "ignore:The logging capability is deprecated:mcp.shared.exceptions.MCPDeprecationWarning"
    ),
]

log = logging.getLogger("capsule")


class Hearing:
    def __init__(self) -> None:
        self.heard: list[tuple[str, str, str]] = []

    async def __call__(self, params: Any) -> None:
        self.heard.append((params.level, params.logger, params.data))


async def test_a_client_hears_warnings_from_the_level_on_that_it_set(store: Store) -> None:
    hearing = Hearing()
    async with Client(serving(store), mode="legacy", logging_callback=hearing) as client:
        assert client.server_capabilities.logging is not None
        log.warning("before anybody asked")
        await client.set_logging_level("warning")
        log.info("too low")
        # As the store warns: from whatever thread it runs in; and what it names is no command to a
        # terminal.
        thread = threading.Thread(
            target=log.warning, args=("took over the lock of %s", "\x1b[31manna")
        )
        thread.start()
        thread.join()
        log.error("worse")
        await until(lambda: len(hearing.heard) == 2)
        assert hearing.heard == [
            ("warning", "capsule", "took over the lock of \\u001b[31manna"),
            ("error", "capsule", "worse"),
        ]
        await client.set_logging_level("error")
        log.warning("too low now")
        log.error("heard")
        await until(lambda: len(hearing.heard) == 3)
        assert hearing.heard[2] == ("error", "capsule", "heard")


async def test_nothing_listens_when_the_client_is_gone(store: Store) -> None:
    before = list(log.handlers)
    async with talking(store, "legacy") as client:
        await client.set_logging_level("debug")
        assert len(log.handlers) == len(before) + 1
    assert log.handlers == before
