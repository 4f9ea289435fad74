"""What an agent has read, after versions of another clone came in, and after retries of many processes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from capsule import Store
from tests.processes import Child

FILE = "conversations/direct_anna_bob.json"

RETRIES = """
with Store.open(sys.argv[1]) as store:
    say()
    hear()
    say(sorted({store.messages.send("once", agent="anna", to="bob", idempotency_key="k").message for _ in range(5)}))
"""


def test_a_message_with_a_key_is_written_once_however_many_processes_retry(
    store: Store, child: Callable[..., Child]
) -> None:
    store.agents.register("anna")
    store.agents.register("bob")
    retrying = [child(RETRIES, store.root) for _ in range(4)]
    for one in retrying:
        one.hear()
    for one in retrying:
        one.say()
    assert len({id for one in retrying for id in one.hear()}) == 1
    assert store.ids() == ["direct_anna_bob"]
    assert [mail.content for mail in store.messages.listen(agent="bob").messages] == ["once"]


def two_clones(tmp_path: Path) -> tuple[Path, Path]:
    """A store and a copy of it, where anna and bob have talked and bob has read everything."""
    here, there = tmp_path / "here", tmp_path / "there"
    Store.init(here)
    with Store.open(here) as store:
        store.agents.register("anna")
        store.agents.register("bob")
        for number in range(10):
            store.messages.send(str(number), agent="anna", to="bob")
        store.messages.listen(agent="bob")
        store.messages.ack(agent="bob")
        assert store.messages.inbox(agent="bob").unread == 0
    shutil.copytree(here, there, ignore=shutil.ignore_patterns(".capsule"))
    return here, there


def test_a_message_that_another_clone_puts_in_front_of_the_cursor_is_unread(tmp_path: Path) -> None:
    here, there = two_clones(tmp_path)
    with Store.open(there) as other:
        other.messages.send("from there", agent="anna", to="bob")
    with Store.open(here) as store:
        store.messages.send("from here", agent="anna", to="bob")
        store.messages.listen(agent="bob")
        store.messages.ack(agent="bob")
    with Store.open(here) as store:
        ours, theirs = (json.loads((root / FILE).read_text()) for root in (here, there))
        history = sorted(ours["history"] + theirs["history"][10:], key=lambda entry: entry["timestamp"])
        assert [entry["content"] for entry in history[-2:]] == ["from there", "from here"]
        (here / FILE).write_text(json.dumps(ours | {"history": history}, indent=2) + "\n")
        heard = [mail.content for mail in store.messages.listen(agent="bob").messages]
        assert "from there" in heard
        assert len(heard) <= 3
        store.messages.ack(agent="bob")
        assert store.messages.inbox(agent="bob").unread == 0


def test_a_message_that_is_removed_leaves_the_next_one_unread(tmp_path: Path) -> None:
    here, _ = two_clones(tmp_path)
    with Store.open(here) as store:
        last = store.tail("direct_anna_bob", 1)[0]
        store.branches.remove("direct_anna_bob", str(last.id))
        store.messages.send("in its place", agent="anna", to="bob")
        assert [mail.content for mail in store.messages.listen(agent="bob").messages] == ["in its place"]
