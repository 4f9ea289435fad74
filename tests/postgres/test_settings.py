"""The settings of a store in PostgreSQL: read, changed, checked, and in force on every machine that
opens it then.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from capsule import InvalidDocument, InvalidInput, Refused, Store, StoreBusy
from capsule.settings import TEMPLATE
from tests.postgres.test_opening import run, sql


@pytest.fixture(params=["files", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of each kind."""
    if request.param == "files":
        Store.init(tmp_path / "store")
        return str(tmp_path / "store")
    return str(request.getfixturevalue("database"))


def test_settings_are_shown_replaced_and_in_force_at_the_next_opening(
    place: str, tmp_path: Path
) -> None:
    assert run("store", "settings", "--store", place).stdout == TEMPLATE
    new = tmp_path / "new.toml"
    new.write_text("[limits]\nmessage_bytes = 10\n", encoding="utf-8")
    done = run("store", "settings", "--set", str(new), "--store", place)
    assert done.returncode == 0 and run(
        "store", "settings", "--store", place
    ).stdout == new.read_text("utf-8")
    with Store.open(place) as store, pytest.raises(InvalidInput, match="larger than 10 bytes"):
        store.create(messages=[{"role": "user", "content": "more than ten"}])
    again = run("store", "settings", "--set", str(new), "--store", place, "--json")
    assert again.returncode == 0 and '"changed": false' in again.stdout


def test_settings_that_are_not_valid_are_refused_with_their_line_and_change_nothing(
    place: str,
) -> None:
    with Store.open(place) as store:
        for toml, said in (
            ("a = \n", "is not valid TOML"),
            ('\n[lock]\nttl = "soon"\n', "3"),
            (b"\xff", "is not valid TOML"),
        ):
            with pytest.raises(InvalidDocument, match=said):
                store.set_settings(toml)
        assert store.read_settings() == TEMPLATE
        assert [problem.where for problem in store.set_settings("lok = 1\n").unknown] == ["lok"]
        with pytest.raises(StoreBusy):
            store.set_settings("# mine\n", before=TEMPLATE)
        assert store.read_settings() == "lok = 1\n"
        with store.beside(agent="anna") as agents:
            for act in (agents.read_settings, lambda: agents.set_settings("")):
                with pytest.raises(Refused, match="only a person"):
                    act()


def test_an_editor_opens_them_and_what_it_leaves_is_checked(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VISUAL", "sed -i 's/# ttl = .*/ttl = \"1h\"/'")
    assert run("store", "settings", "--edit", "--store", place).returncode == 0
    with Store.open(place) as store:
        assert store.settings.lock_ttl_s == 3600.0
    monkeypatch.setenv("VISUAL", "sed -i 's/1h/never/'")
    refused = run("store", "settings", "--edit", "--store", place)
    assert (
        refused.returncode == InvalidDocument.exit_code
        and "lock.ttl" in refused.stderr
        and "kept in" in refused.stderr
    )
    with Store.open(place) as store:
        assert store.settings.lock_ttl_s == 3600.0


def test_rooms_of_other_packages_are_found_by_the_settings_in_the_database(database: str) -> None:
    assert run("nonsense", "--store", database).returncode == 2
    with Store.open(database) as store:
        store.set_settings('rooms = ["from-elsewhere"]\n')
    asked = run("nonsense", "--store", database)
    assert asked.returncode == Refused.exit_code and "from-elsewhere" in asked.stderr


def test_settings_that_another_version_wrote_are_named_with_the_address(database: str) -> None:
    sql(database, "UPDATE @meta SET value = 'shared = 2' WHERE key = 'settings'")
    with pytest.raises(InvalidDocument, match="shared") as caught:
        Store.open(database)
    assert "postgresql://" in caught.value.problems[0].path
