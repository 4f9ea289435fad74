"""Messages in PostgreSQL: ours, a transaction as one would write it, and two that agents'
frameworks bring along.

What must stay true: each appends with its own calls, on one connection, and reads back with its own
calls; a message has the same text and fields for all.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Protocol

from benchmarks.fixtures import MESSAGE_BYTES, texts
from capsule import Store, timestamps
from capsule.ids import new_message_id

__all__ = [
    "IN_POSTGRES",
    "Capsules",
    "Checkpoints",
    "Naive",
    "Notifying",
    "Sessions",
    "Writer",
    "text_of",
]


def text_of(writer: int, number: int) -> str:
    """The text of a message, from which `writer` and `number` can be read."""
    pool = texts()
    return f"{writer} {number} {pool[number % len(pool)]}"[:MESSAGE_BYTES]


class Writer(Protocol):
    """A connection of one kind to one server."""

    def __init__(self, url: str) -> None: ...

    def fill(self, ids: list[str]) -> None:
        """Make what is needed, and these conversations."""

    def append(self, id: str, text: str) -> None:
        """Append a message; it is acknowledged when this returns."""

    def texts(self, id: str) -> list[str]:
        """The texts of a conversation in order."""

    def close(self) -> None: ...


def _entry(text: str) -> dict[str, str]:
    return {"role": "user", "content": text, "timestamp": timestamps.now(), "id": new_message_id()}


class Capsules:
    """The store."""

    def __init__(self, url: str) -> None:
        self.url = f"{url}&schema=store"
        self.store: Store | None = None

    def _opened(self) -> Store:
        self.store = self.store or Store.open(self.url)
        return self.store

    def fill(self, ids: list[str]) -> None:
        Store.init(self.url)
        for id in ids:
            self._opened().create(id=id, type="group", title="Work")

    def append(self, id: str, text: str) -> None:
        self._opened().append_entries(id, [{"role": "user", "content": text}])

    def texts(self, id: str) -> list[str]:
        return [entry["content"] for entry in self._opened().document(id)["history"]]

    def close(self) -> None:
        if self.store is not None:
            self.store.close()


class Naive:
    """Begin, lock, insert, update, commit, as one would write it with psycopg."""

    def __init__(self, url: str) -> None:
        import psycopg

        self.connection = psycopg.connect(
            url, autocommit=True, application_name=type(self).__name__
        )

    def fill(self, ids: list[str]) -> None:
        run = self.connection.execute
        run(
            "CREATE TABLE IF NOT EXISTS talks (id text PRIMARY KEY, count integer NOT NULL, "
            "updated text NOT NULL)"
        )
        run(
            "CREATE TABLE IF NOT EXISTS messages (talk text REFERENCES talks, place integer, id "
            "text NOT NULL,"
            " body text NOT NULL, PRIMARY KEY (talk, place))"
        )
        run("CREATE INDEX IF NOT EXISTS messages_id ON messages (id)")
        for id in ids:
            run("INSERT INTO talks VALUES (%s, 0, '')", (id,))

    def append(self, id: str, text: str) -> None:
        entry = _entry(text)
        with self.connection.transaction():
            self._append(id, entry)

    def _append(self, id: str, entry: dict[str, str]) -> None:
        run = self.connection.execute
        ((count,),) = run("SELECT count FROM talks WHERE id = %s FOR UPDATE", (id,)).fetchall()
        run(
            "INSERT INTO messages VALUES (%s, %s, %s, %s)",
            (id, count, entry["id"], json.dumps(entry)),
        )
        run(
            "UPDATE talks SET count = %s, updated = %s WHERE id = %s",
            (count + 1, entry["timestamp"], id),
        )

    def texts(self, id: str) -> list[str]:
        rows = self.connection.execute(
            "SELECT body FROM messages WHERE talk = %s ORDER BY place", (id,)
        )
        return [json.loads(body)["content"] for (body,) in rows]

    def close(self) -> None:
        self.connection.close()


class Notifying(Naive):
    """The same, and whoever follows is told within the transaction."""

    def _append(self, id: str, entry: dict[str, str]) -> None:
        super()._append(id, entry)
        self.connection.execute("SELECT pg_notify('talks', %s)", (id,))


class Checkpoints:
    """LangGraph's PostgresSaver: the state with all messages is read, and one with one more
    is put.
    """

    def __init__(self, url: str) -> None:
        import psycopg
        from langgraph.checkpoint.postgres import PostgresSaver  # type: ignore[import-not-found, unused-ignore]
        from psycopg.rows import dict_row

        self._connection: Any = psycopg.connect(
            url, autocommit=True, prepare_threshold=0, row_factory=dict_row
        )
        self._saver = PostgresSaver(self._connection)

    def fill(self, ids: list[str]) -> None:
        self._saver.setup()

    def append(self, id: str, text: str) -> None:
        from langgraph.checkpoint.base import create_checkpoint, empty_checkpoint  # type: ignore[import-not-found, unused-ignore]

        config: Any = {"configurable": {"thread_id": id, "checkpoint_ns": ""}}
        there = self._saver.get_tuple(config)
        before: Any = there.checkpoint if there else empty_checkpoint()
        messages = [*before["channel_values"].get("messages", []), _entry(text)]
        version = self._saver.get_next_version(before["channel_versions"].get("messages"), None)
        after: Any = create_checkpoint(before, None, len(messages))
        after["channel_values"], after["channel_versions"] = (
            {"messages": messages},
            {"messages": version},
        )
        about: Any = {"source": "update", "step": len(messages), "parents": {}}
        self._saver.put(there.config if there else config, after, about, {"messages": version})

    def texts(self, id: str) -> list[str]:
        there = self._saver.get_tuple({"configurable": {"thread_id": id, "checkpoint_ns": ""}})
        return (
            [entry["content"] for entry in there.checkpoint["channel_values"]["messages"]]
            if there
            else []
        )

    def close(self) -> None:
        self._connection.close()


class Sessions:
    """The OpenAI Agents SDK's SQLAlchemySession, by asyncpg."""

    def __init__(self, url: str) -> None:
        from sqlalchemy.ext.asyncio import create_async_engine  # type: ignore[import-not-found, unused-ignore]

        self._loop = asyncio.new_event_loop()
        self._engine = create_async_engine(
            url.replace("postgresql:", "postgresql+asyncpg:"), pool_size=1
        )
        self._sessions: dict[str, Any] = {}

    def _session(self, id: str, *, makes: bool = False) -> Any:
        from agents.extensions.memory import SQLAlchemySession  # type: ignore[import-not-found, unused-ignore]

        if id not in self._sessions:
            self._sessions[id] = SQLAlchemySession(id, engine=self._engine, create_tables=makes)
        return self._sessions[id]

    def fill(self, ids: list[str]) -> None:
        for id in ids:
            self._loop.run_until_complete(self._session(id, makes=True).get_items())

    def append(self, id: str, text: str) -> None:
        self._loop.run_until_complete(self._session(id).add_items([_entry(text)]))

    def texts(self, id: str) -> list[str]:
        return [
            item["content"] for item in self._loop.run_until_complete(self._session(id).get_items())
        ]

    def close(self) -> None:
        self._loop.run_until_complete(self._engine.dispose())
        self._loop.close()


IN_POSTGRES: dict[str, type[Writer]] = {
    "capsule": Capsules,
    "naive transaction": Naive,
    "NOTIFY in the transaction": Notifying,
    "PostgresSaver": Checkpoints,
    "SQLAlchemySession": Sessions,
}
