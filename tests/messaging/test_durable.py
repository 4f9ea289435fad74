"""A message is on the medium before an agent gets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from capsule import Store
from capsule.errors import StorageFailed
from tests.core.storage.faults import Flushes, store_on

pytestmark = pytest.mark.files


def test_a_message_that_its_writer_did_not_wait_for_is_flushed_before_it_is_delivered(
    root: Path,
) -> None:
    system = Flushes()
    with Store.open(root) as writer, store_on(root, system) as reader:
        for agent in ("anna", "bob"):
            writer.agents.register(agent)
        id = writer.messages.send("one", agent="anna", to="bob").conversation
        heard = reader.messages.listen(agent="bob")
        with writer.beside(agent="anna") as anna:
            for text, failing in (("two", ""), ("three", "logs")):
                anna.append(id, content=text, wait=False)
                reader.messages.ack(agent="bob", cursor=heard.cursor)
                system.flushed.clear()
                system.failing = failing
                if failing:
                    with pytest.raises(StorageFailed):
                        reader.messages.listen(agent="bob")
                    system.failing = ""
                heard = reader.messages.listen(agent="bob")
                assert [mail.content for mail in heard.messages] == [text]
                # After a flush that failed every byte is written anew.
                assert ("conversations" if failing else "logs") in system.flushed
