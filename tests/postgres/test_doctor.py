"""The doctor of a store in a database: whether each document is sound, and what an acknowledged
message survives.
"""

from __future__ import annotations

import json

import pytest

from capsule import InvalidDocument, Refused, Store
from capsule.maintenance.doctor import DoctorFinding, examine
from tests.postgres.test_opening import run, sql

MESSAGES = [{"role": "user", "content": text} for text in ("one", "two", "three")]


def troubles(store: Store) -> list[DoctorFinding]:
    return [finding for finding in examine(store) if finding.is_trouble]


def test_a_sound_store_has_no_finding_but_what_an_acknowledged_message_survives(
    database: str,
) -> None:
    with Store.open(database) as store:
        store.create(type="group", messages=MESSAGES)
        store.agents.register("anna")
        (only,) = examine(store)
        assert only.kind == "durability" and "no standby" in only.what and not only.is_trouble
        with pytest.raises(Refused, match="a repair needs a store that keeps files"):
            list(examine(store, repair=True))


BREAKS: dict[str, str] = {
    "it has 2 entries up to position 2, but its row says 3": "DELETE FROM @entries WHERE place = 1",
    "it has 3 entries up to position 7, but its row says 3": "UPDATE @entries SET place = 7 WHERE "
    "place = 2",
    "bytes, but its row says": "UPDATE @documents SET inner_bytes = inner_bytes + 1 WHERE kind = "
    "'conversations'",
    "entries of document": "DELETE FROM @documents WHERE kind = 'conversations'",
    "must be one of user": "UPDATE @entries SET body = replace(body, '\"user\"', '\"usex\"') "
    "WHERE place = 1",
    "a comma too many": "UPDATE @documents SET head = head || ',' WHERE kind = 'conversations'",
}


@pytest.mark.parametrize("words", BREAKS)
def test_each_row_that_is_broken_is_a_finding(database: str, words: str) -> None:
    with Store.open(database) as store:
        id = store.create(type="group", messages=MESSAGES).id
        sql(database, BREAKS[words])
        found = troubles(store)
        assert [finding.kind for finding in found] == ["damaged"]
        assert words in found[0].what and found[0].id in (id, "")


def test_the_command_says_it_and_its_exit_code_too(database: str) -> None:
    with Store.open(database) as store:
        store.create(type="group", messages=MESSAGES)
    done = run("--store", database, "doctor", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["findings"][0]["kind"] == "durability"
    sql(database, "DELETE FROM @entries WHERE place = 1")
    done = run("--store", database, "doctor")
    assert done.returncode == InvalidDocument.exit_code and "up to position 2" in done.stdout
    assert run("--store", database, "doctor", "--repair").returncode == Refused.exit_code
