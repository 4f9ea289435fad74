"""Every door of a store, by the name of its method: how to ask for one conversation, to write to
it, to ask for all.

A further word behind the name tells two ways to ask apart. `test_canaries` says that no method is
missing here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capsule import Filter, Store
from capsule.engines.cursor_seal import CursorSeal

#: Every way to ask for one conversation by its id.
BY_ID: dict[str, Callable[[Store, str], Any]] = {
    "read": lambda store, id: store.read(id),
    "document": lambda store, id: store.document(id),
    "load": lambda store, id: store.load(id),
    "tail": lambda store, id: store.tail(id, 5),
    "tail_entries": lambda store, id: store.tail_entries(id, 5),
    "head": lambda store, id: store.head(id),
    "page": lambda store, id: store.page(id),
    "page around": lambda store, id: store.page(id, around="@last"),
    "find_message": lambda store, id: store.find_message(id, "@last"),
    "branches.path": lambda store, id: store.branches.path(id),
    "branches.tree": lambda store, id: store.branches.tree(id),
    "branches.alternatives": lambda store, id: store.branches.alternatives(id, "@last"),
    "branches.slot": lambda store, id: store.branches.slot(id),
    "branches.descendants": lambda store, id: store.branches.descendants(id, "@last"),
    "branches.remove dry": lambda store, id: store.branches.remove(id, "@last", dry_run=True),
    "branches.switch": lambda store, id: store.branches.switch(id, f"{id}-two"),
    "context.get": lambda store, id: store.context.get(id),
    "conflicts.list of one": lambda store, id: store.conflicts.list(id),
    "titles.by_rule": lambda store, id: store.titles.by_rule(id),
    "forks.create": lambda store, id: store.forks.create(id),
    "summaries.add": lambda store, id: store.summaries.add(id, "text"),
    "summaries.mark": lambda store, id: store.summaries.mark(id),
    "locks.take": lambda store, id: store.locks.take(id).__exit__(None, None, None),
    "locks.release": lambda store, id: store.locks.release(id, force=True),
    "versions.restore": lambda store, id: store.versions.restore(
        id, store.inner.whole_engine.document("conversations", id)
    ),
    "edits.migrate": lambda store, id: store.edits.migrate(id, check=True),
}
#: Every way to write to a conversation.
WRITES: dict[str, Callable[[Store, str], Any]] = {
    "append": lambda store, id: store.append(id, content="hello"),
    "append_many": lambda store, id: store.append_many(id, [{"role": "user", "content": "hello"}]),
    "append_once": lambda store, id: store.append_once(id, "key", content="hello"),
    "rename": lambda store, id: store.rename(id, "Other"),
    "tag": lambda store, id: store.tag(id, "red"),
    "archive": lambda store, id: store.archive(id),
    "titles.suggest": lambda store, id: store.titles.suggest(id, "Other", instead_of=id.title()),
    "context.set": lambda store, id: store.context.set(id, {"fullContext": "text", "metadata": {}}),
    "edits.message": lambda store, id: store.edits.message(id, f"{id}-first", "other"),
    "branches.remove": lambda store, id: store.branches.remove(id, f"{id}-first"),
    "branches.revise": lambda store, id: store.branches.revise(id, f"{id}-first", "other"),
    "branches.regenerate": lambda store, id: store.branches.regenerate(id, "other"),
    "branches.switch": lambda store, id: store.branches.switch(id, f"{id}-one"),
    "delete": lambda store, id: store.delete(id),
    "forks.delete": lambda store, id: store.forks.delete(id),
}
#: Where the changes that `FOR_ALL` asks for begin.
CURSOR: list[str] = []


def cursor_of(store: Store) -> str:
    """That cursor, as who asks gets it."""
    return (
        CURSOR[0]
        if store.agent is None
        else CursorSeal(store.agent, store.inner.whole_engine.local).seal(CURSOR[0])
    )


#: Every way to ask for all conversations.
FOR_ALL: dict[str, Callable[[Store], Any]] = {
    "ids": lambda store: store.ids(),
    "heads": lambda store: list(store.heads()),
    "list": lambda store: store.list(Filter(archived=None)).heads,
    "list of an agent": lambda store: [
        store.list(Filter(agent=agent, archived=None)) for agent in ("anna", "eve")
    ],
    "list of a program": lambda store: store.list(Filter(source="here", archived=None), "created"),
    "search": lambda store: store.search("first", profile="exact").hits,
    "search titles": lambda store: store.search("Team", title_only=True).hits,
    "stats": lambda store: store.stats(),
    "locks.list": lambda store: list(store.locks.list()),
    "forks.list": lambda store: store.forks.list("plan"),
    "summaries.list": lambda store: store.summaries.list("plan"),
    "changes": lambda store: store.changes(cursor_of(store)).changes,
    "wait_for_changes": lambda store: store.wait_for_changes(cursor_of(store), timeout_s=0).changes,
    "conflicts.list": lambda store: store.conflicts.list(),
    "resolve": lambda store: store.resolve("@last"),
    "trash.list": lambda store: [store.trash.list(), store.trash.removed()],
}
