"""A database that is restored from a copy of its files, as from a snapshot of its disk: who read
later changes is told, and hears no silence.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from capsule import InvalidInput, Store
from tests.postgres.server import Server
from tests.postgres.test_opening import sql

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("postgres")]


class CopiedServer(Server):
    """A server whose files can be copied and restored."""

    def copy(self) -> None:
        """Copy the files, as they are while it does not run."""
        self.stop("fast")
        shutil.rmtree(self.directory / "copy", ignore_errors=True)
        shutil.copytree(self.data, self.directory / "copy")
        self.start()

    def restore(self) -> None:
        """Replace the files by those of the copy."""
        self.stop()
        shutil.rmtree(self.data)
        shutil.copytree(self.directory / "copy", self.data)
        if self.user:
            for path in (self.data, *self.data.rglob("*")):
                shutil.chown(path, self.user["user"], self.user["group"])
        self.data.chmod(0o700)
        self.start()


@pytest.fixture
def server() -> Iterator[CopiedServer]:
    server = CopiedServer()
    yield server
    server.close()


@pytest.mark.parametrize("new_count", [0, 5, 20, 40])
def test_a_cursor_from_after_the_copy_is_refused_however_much_was_written_since(
    server: CopiedServer, new_count: int
) -> None:
    Store.init(server.url)
    with Store.open(server.url) as store:
        id = store.create(type="group").id
        before = store.changes().cursor
        server.copy()
        for number in range(20):
            store.append(id, content=f"lost {number}")
        after = store.changes().cursor
        server.restore()
        sent = [str(store.append(id, content=f"new {number}").id) for number in range(new_count)]
        with pytest.raises(InvalidInput, match="restored from an earlier copy; take a new cursor"):
            store.wait_for_changes(after, timeout_s=0)
        found = store.changes(before).changes
        assert [message for change in found for message in change.messages] == sent
        assert not store.changes(store.changes().cursor).changes


def test_who_waits_while_it_is_restored_is_told(server: CopiedServer) -> None:
    Store.init(server.url)
    with Store.open(server.url) as store, ThreadPoolExecutor(1) as pool:
        id = store.create(type="group").id
        server.copy()
        for number in range(20):
            store.append(id, content=f"lost {number}")
        waits = pool.submit(store.wait_for_changes, store.changes().cursor, timeout_s=100)
        server.restore()
        with pytest.raises(InvalidInput, match="restored"):
            waits.result()
        cursor = store.changes().cursor
        waits = pool.submit(store.wait_for_changes, cursor, timeout_s=100)
        sent = str(store.append(id, content="new").id)
        assert waits.result().changes[0].messages == (sent,)


def test_a_cursor_of_a_part_of_a_change_and_one_of_a_pruned_change_are_accepted(
    database: str,
) -> None:
    with Store.open(database) as store:
        begin = store.changes().cursor
        id = store.create(type="group").id
        store.append_many(id, [{"role": "user", "content": str(number)} for number in range(3)])
        changes = store.changes(begin).changes
        part = store.queries.advance(changes[-1].before, 1)
        (rest,) = store.changes(part).changes
        assert rest.messages == changes[-1].messages[1:]
        end = store.changes().cursor
        store.facets()
        sql(database, "CALL @prune('0 days')")
        assert not store.changes(end).changes
