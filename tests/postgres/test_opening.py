"""A store in PostgreSQL by its address: made, opened, refused; and no password is shown."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from capsule import InvalidInput, NotFound, Refused, StorageFailed, Store
from capsule.engines.postgres.address import Address
from tests.postgres.server import Server
from tests.processes import ROOT, Child

SECRET = "s3cret-pass"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    paths = os.pathsep.join((str(ROOT), str(ROOT / "cli")))
    program = [sys.executable, "-m", "capsule_cli", *words]
    return subprocess.run(
        program, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )


def sql(url: str, statement: str) -> list[tuple[Any, ...]]:
    import psycopg

    address = Address(url)
    with psycopg.connect(address.conninfo, autocommit=True) as connection:
        cursor = connection.execute(statement.replace("@", f'"{address.schema}".'))
        return cursor.fetchall() if cursor.description else []


def test_a_store_is_opened_by_its_address_from_any_process(
    database: str, child: Callable[..., Child]
) -> None:
    with Store.open(database) as store:
        id = store.create(title="Plan", type="group").id
        other = child(
            "store = Store.open(sys.argv[1])\n"
            "say([head.title for head in store.heads()])\n"
            "store.append(sys.argv[2], content='a fish')\nsay()\n"
            "say(len(store.search('crab').hits))\nstore.close()",
            database,
            id,
        )
        assert other.hear() == ["Plan"]
        other.hear()
        assert [hit.id for hit in store.search("fish").hits] == [id]
        assert other.hear() == 0
        assert not os.path.exists(store.root) and store.root == Address(database).shown


def test_commands_take_an_address_as_an_option_and_from_the_environment(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{postgres}&schema=cli_{os.getpid()}&password={SECRET}"
    said = [
        run("init", "--store", url),
        run("new", "Plan", "--id", "plan", "--type", "group", "--store", url),
    ]
    monkeypatch.setenv("CAPSULE_STORE", url)
    said += [
        run("append", "plan", "a red fish"),
        run("search", "fish", "--json"),
        run("store", "show"),
    ]
    said += [run("store", "migrate"), run("doctor"), run("list"), run("init", "--store", url)]
    assert [each.returncode for each in said] == [0] * len(said), said
    assert (
        "a red fish" in said[3].stdout
        and "already" in said[-1].stdout
        and "no standby" in said[4].stdout
    )
    refused = [
        run(*words) for words in (("doctor", "--repair"), ("store", "validate"), ("git", "setup"))
    ]
    assert [each.returncode for each in refused] == [Refused.exit_code] * 3
    schema = f"init_{os.getpid()}"
    monkeypatch.setenv("CAPSULE_STORE", f"{postgres}&schema={schema}&password={SECRET}")
    assert schema in run("init").stdout and run("list").returncode == 0
    assert all("capsule copy" in each.stderr for each in refused), refused
    assert SECRET not in "".join(each.stdout + each.stderr for each in (*said, *refused))


def test_a_password_is_in_no_error_no_log_and_no_file(
    postgres: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    for url in (
        f"postgresql://anna:{SECRET}@localhost:1/x?schema=s",
        f"postgresql://anna@localhost:1/x?password={SECRET}",
        f"postgresql://anna:{SECRET}@localhost:1/x?nonsense=1",
        f"postgresql://anna:{SECRET}@localhost:1/x?schema=No",
        f"postgresql://anna:{SECRET}@[::1/x",
        f"{postgres}&password={SECRET}&schema=none",
    ):
        with pytest.raises((StorageFailed, NotFound, InvalidInput)) as caught:
            Store.open(url)
        assert SECRET not in f"{caught.value!r} {caught.value.fields} {caught.value.__cause__!r}"
    url = f"{postgres}&schema=p{os.getpid()}&password={SECRET}"
    Store.init(url)
    with Store.open(url) as store:
        store.create(title="Plan")
        assert SECRET not in store.root + repr(vars(store.engine)) + repr(store.engine.database)  # type: ignore[attr-defined]
    home = Path(os.environ["HOME"])
    assert not [
        path for path in home.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()
    ]
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("url", "conninfo"),
    [
        ("postgresql:///db?host=/var/run&schema=s", "postgresql:///db?host=/var/run"),
        (" postgresql+psycopg://anna@h/db", "postgresql://anna@h/db"),
        ("Postgres://h/db", "postgresql://h/db"),
        (
            "postgresql://h/db?options=-c%20a=1&application_name=a+b",
            "postgresql://h/db?options=-c%20a%3D1&application_name=a%2Bb",
        ),
        ("postgresql://h/db?password=a%20b", "postgresql://h/db?password=a%20b"),
    ],
)
def test_an_address_is_taken_as_libpq_takes_it(url: str, conninfo: str) -> None:
    from psycopg.conninfo import conninfo_to_dict

    address = Address(url)
    assert address.conninfo == conninfo and conninfo_to_dict(conninfo)
    assert address.shown.startswith("postgresql://") and "password" not in address.shown
    assert Address(address.shown).place == address.place


def test_an_address_without_a_store_or_of_another_version_is_refused_by_name(
    database: str, postgres: str
) -> None:
    with pytest.raises(NotFound, match="has no Capsule store") as caught:
        Store.open(f"{postgres}&schema=nothing")
    assert caught.value.remedy is not None and caught.value.remedy.action == "init"
    for version in (0, 99):
        sql(database, f"UPDATE @meta SET value = '{version}' WHERE key = 'version'")
        with pytest.raises(Refused, match=f"version {version}") as refused:
            Store.open(database)
        assert (
            (refused.value.remedy is None) == ("newer" in refused.value.message) == (version == 99)
        )
    with pytest.raises(Refused, match="newer"):
        Store.init(database)


@pytest.mark.parametrize(
    ("change", "write"),
    [
        (
            "ALTER FUNCTION @append RENAME TO append_2",
            lambda store: store.append("plan", content="late"),
        ),
        (
            "ALTER FUNCTION @save RENAME TO save_2",
            lambda store: store.rename("plan", "late"),
        ),
        (
            "ALTER TABLE @entries RENAME TO later",
            lambda store: store.append("plan", content="late"),
        ),
        (
            "ALTER TABLE @leases RENAME who TO holders",
            lambda store: store.engine.leases.acquire("worker"),
        ),
    ],
)
def test_a_program_that_is_open_while_the_schema_gets_another_version_is_refused(
    database: str, change: str, write: Callable[[Store], object]
) -> None:
    with Store.open(database) as store:
        store.create(id="plan", type="group")
        for number in range(10):
            store.append("plan", content=f"{number}")  # By then its statements are prepared.
        sql(
            database, f"BEGIN; {change}; UPDATE @meta SET value = '2' WHERE key = 'version'; COMMIT"
        )
        with pytest.raises(
            Refused, match="version 2, and this Capsule works with 1; install a newer"
        ):
            write(store)
    assert sql(database, "SELECT entries FROM @documents") == [(10,)]


def test_without_the_driver_an_address_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(Refused, match="postgres"):
        Store.open("postgresql://localhost/x")


def test_a_pooler_that_loses_prepared_statements_is_got_on_with(database: str) -> None:
    with Store.open(database) as store:
        id = store.create(type="group", title="Plan").id
        for number in range(20):
            store.append(id, content=f"{number}")
            with store.engine.database._connection() as connection:  # type: ignore[attr-defined]
                connection.execute(
                    "DEALLOCATE ALL", prepare=False
                )  # As where another session gets the next one.
        assert [entry["content"] for entry in store.document(id)["history"]] == [
            str(number) for number in range(20)
        ]


def test_two_that_migrate_at_once_make_one_schema(
    postgres: str, child: Callable[..., Child]
) -> None:
    url = f"{postgres}&schema=both_{os.getpid()}"
    body = (
        "hear()\ntry: say(Store.init(sys.argv[1]))\nexcept CapsuleError as error: "
        "say(error.message)"
    )
    children = [child(body, url) for _ in range(4)]
    for each in children:
        each.say()
    assert sorted(map(bool, (each.hear() for each in children))) == [False, False, False, True]


@pytest.mark.slow
@pytest.mark.sample
@pytest.mark.usefixtures("postgres")
def test_a_database_restored_from_a_dump_has_everything_refuses_cursors_of_before_and_goes_on() -> (
    None
):
    with closing(Server()) as old, closing(Server()) as new:
        urls = [f"{server.url}&schema=talks" for server in (old, new)]
        Store.init(urls[0])
        with Store.open(urls[0]) as store:
            id = store.create(
                title="Plan", type="group", messages=[{"role": "user", "content": "a red fish"}]
            ).id
            for number in range(200):
                store.append(
                    id, content=f"number {number}"
                )  # The new server is not that far for long.
            store.create(id="gone")
            store.delete("gone")
            store.engine.files.write("attachments", id, "a", b"data")
            assert store.search("fish").hits
            cursor, sealed = (
                each.changes().cursor for each in (store, store.inner.store_for("anna"))
            )
            document = store.document(id)
            old.run(
                "pg_dump",
                "-Fc",
                "-h",
                old.directory,
                "-U",
                "capsule",
                "-f",
                old.directory / "dump",
                "postgres",
            )
        new.run(
            "pg_restore",
            "-e",
            "-h",
            new.directory,
            "-U",
            "capsule",
            "-d",
            "postgres",
            old.directory / "dump",
        )
        with Store.open(urls[1]) as store:
            assert (
                store.document(id) == document
                and store.engine.files.read("attachments", id, "a") == b"data"
            )
            assert [hit.id for hit in store.search("fish").hits] == [id]
            anna = store.inner.store_for("anna")
            for before, reader in ((cursor, store), (cursor, anna), (sealed, anna)):
                with pytest.raises(InvalidInput, match=r"restored|not a cursor"):
                    reader.changes(before)
            since = store.changes().cursor
            sent = store.append(id, content="a blue crab").id
            store.trash.restore("gone")
            assert [hit.message for hit in store.search("crab").hits] == [sent]
            assert (sent,) in [change.messages for change in store.changes(since).changes]
            assert store.head("gone").id == "gone"


def test_what_belongs_to_the_machine_stays_there(database: str) -> None:
    with Store.open(database) as store:
        store.engine.local.edit(
            "commands", "anna", lambda _: {"id": "anna", "command": "canary-command"}
        )
    with Store.open(database) as store:
        assert store.engine.local.read("commands", "anna") == {
            "id": "anna",
            "command": "canary-command",
        }
    rows = sql(database, "SELECT kind FROM @documents UNION ALL SELECT folder FROM @files")
    assert rows == []


def test_an_agent_goes_on_from_its_cursor_on_another_machine(
    database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with Store.open(database, agent="anna") as store:
        id = store.create(title="Plan", type="group").id
        cursor = store.changes().cursor
        sent = store.append(id, content="x").id
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "another" / name))
    with Store.open(database, agent="anna") as store:
        assert [change.messages for change in store.changes(cursor).changes] == [(sent,)]
        web = store.inner.whole_engine.local.key("web")
    with (
        Store.open(database, agent="bob") as store,
        pytest.raises(InvalidInput, match="not a cursor of bob"),
    ):
        store.changes(cursor)
    assert web != bytes.fromhex(
        sql(database, "SELECT value FROM @meta WHERE key = 'cursors'")[0][0]
    )


def test_who_is_behind_what_the_feed_keeps_begins_anew(database: str) -> None:
    with Store.open(database) as store, Store.open(database) as late:
        id = store.create(title="Plan", type="group").id
        cursor = late.changes().cursor
        store.append(id, content="a fish")
        sent = store.append(id, content="a crab").id
        now = store.changes().cursor
        sql(database, "CALL @prune('0 s')")
        assert sent in {hit.message for hit in late.search("crab").hits}
        with pytest.raises(InvalidInput, match="older"):
            late.changes(cursor)
        assert late.changes(now).changes == []
