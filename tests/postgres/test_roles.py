"""What a role of the database may do, and that nobody gets to see its password."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest
from starlette.testclient import TestClient

from capsule import CapsuleError, InvalidInput, NotFound, Refused, StorageFailed, Store
from capsule.engines.postgres.address import Address
from capsule.engines.postgres.index import _TABLES
from capsule.mcp_server.access import Tokens
from capsule.store.copying import copy_store
from capsule.watch.stream import Watch
from capsule.web.server import application
from capsule.web.site import WebSite
from tests.core.mcp_server.serving import over_http, over_stdio
from tests.postgres.server import Server
from tests.postgres.stores import Place
from tests.postgres.test_opening import run, sql
from tests.processes import ROOT, until
from tests.sessions.hosting import group, hosting, said
from tests.web.serving import Served

CANARY = "c4nary"
#: A password with what an address has to encode.
PASSWORD = f"{CANARY} @:/?#%'\"\\{CANARY}"


def role(database: str, tables: str, sequences: str = "") -> str:
    """The address for a new role with rights on the tables and the sequences of a store."""
    schema = Address(database).schema
    name = f"role_{schema}"
    sql(database, f"CREATE ROLE {name} LOGIN")
    if tables:
        sql(database, f"GRANT USAGE ON SCHEMA {schema} TO {name}")
        sql(database, f"GRANT {tables} ON ALL TABLES IN SCHEMA {schema} TO {name}")
    if sequences:
        sql(database, f"GRANT {sequences} ON ALL SEQUENCES IN SCHEMA {schema} TO {name}")
    return database.replace("capsule@", f"{name}@")


async def first(watch: Watch) -> str:
    async with watch:
        return (await anext(aiter(watch))).id


@pytest.mark.slow
def test_a_role_that_may_make_nothing_can_do_everything_else(database: str, tmp_path: Path) -> None:
    url = role(database, "SELECT, INSERT, UPDATE, DELETE", "USAGE")
    with Store.open(url) as store, Store.open(url) as other:
        since = store.changes().cursor
        id = store.create(title="Plan", messages=[{"role": "user", "content": "a red fish"}]).id
        with store.locks.take(id):
            store.append(id, content="a crab")
        store.edits.message(id, str(store.tail(id, 1)[0].id), "a crab and a crayfish")
        assert [hit.id for hit in other.search("crayfish").hits] == [id]
        assert [head.title for head in other.list().heads] == [
            "Plan"
        ] and other.stats().messages == 2
        assert other.facets() and [each.title for each in other.heads()] == ["Plan"]
        assert {change.id for change in other.wait_for_changes(since, timeout_s=60).changes} == {id}
        assert asyncio.run(first(other.watch(since))) == id
        store.agents.register("anna")
        group(store, "bot")
        sent = store.messages.send("hello", agent="anna", to="bot")
        assert [mail.content for mail in other.messages.listen(agent="bot").messages] == ["hello"]
        with hosting(store):
            store.messages.send("are you there?", agent="anna", to="bot")
            until(lambda: said(other, sent.conversation, "bot"))
        store.engine.files.write("attachments", id, "a.txt", b"x")
        store.import_(stream=BytesIO(store.read(id).replace(id.encode(), b"imported")))
        store.forks.create(id)
        store.delete(id)
        store.trash.restore(id)
        site = WebSite(store, Tokens(tmp_path / "config", store.root))
        with TestClient(application(site, ("testserver",)), follow_redirects=False) as client:
            client.get(site.opening("http://testserver"))
            assert "Plan" in client.get("/").text and "crayfish" in client.get(f"/c/{id}").text
        with Store.in_memory() as copy:
            assert not copy_store(store, copy).failed and id in copy.ids()
        store.delete(id)
        assert store.trash.purge(0)
        assert id not in {*other.ids(), *(hit.id for hit in other.search("crayfish").hits)}
    commands = [
        ("list",),
        ("search", "fish", "--json"),
        ("new", "More"),
        ("store", "show"),
        ("store", "migrate"),
    ]
    done = [run(*words, "--store", url) for words in commands]
    assert [each.returncode for each in done] == [0] * len(done), done
    with pytest.raises(Refused):
        Store.init(f"{url}x")


def test_a_role_that_may_only_read_reads_and_is_refused_by_name_when_it_writes(
    database: str,
) -> None:
    with Store.open(database) as owner:
        id = owner.create(
            id="plan", title="Plan", messages=[{"role": "user", "content": "a red fish"}]
        ).id
        owner.agents.register("anna")
        owner.agents.register("bob")
        owner.messages.send("hello", agent="anna", to="bob")
        owner.delete(owner.create(title="gone").id)
    url = role(database, "SELECT")
    with Store.open(url) as store:
        shown = store.root
        with pytest.raises(Refused, match="permission denied for table indexed"):
            store.search("fish")  # Nobody took in yet what was written.
        for table in (*_TABLES, "indexed"):
            sql(database, f"GRANT INSERT, UPDATE, DELETE ON @{table} TO role_{Address(url).schema}")
        assert (
            store.load(id).title == "Plan"
            and store.page(id).entries
            and store.head(id).title == "Plan"
        )
        assert [hit.id for hit in store.search("fish").hits] == [id]
        assert "plan" in {head.id for head in store.list().heads} and store.stats().messages == 2
        assert store.agents.list() and store.messages.inbox(agent="bob").unread == 1
        assert [store.trash.head(each).title for each in store.trash.list()] == ["gone"]
        assert store.changes().cursor and list(store.locks.list()) == []
        with Store.in_memory() as copy:
            assert not copy_store(store, copy).failed and copy.read(id) == store.read(id)
        writes: list[Callable[[], object]] = [
            lambda: store.create(title="x"),
            lambda: store.append(id, content="x"),
            lambda: store.rename(id, "x"),
            lambda: store.edits.message(id, "@0", "x"),
            lambda: store.delete(id),
            lambda: store.locks.take(id),
            lambda: store.trash.purge(0),
            lambda: store.agents.register("carl"),
            lambda: store.messages.send("x", agent="anna", to="bob"),
            lambda: store.engine.files.write("attachments", id, "a.txt", b"x"),
            lambda: store.engine.leases.acquire("instance-1"),
        ]
        for write in writes:
            with pytest.raises(Refused) as caught:
                write()
            assert shown in caught.value.message and caught.value.remedy is None
        since = store.changes().cursor
        with Store.open(database) as owner:
            owner.append(id, content="another")
        assert {change.id for change in store.wait_for_changes(since, timeout_s=60).changes} == {id}
    for words, code in {
        ("list",): 0,
        ("search", "fish"): 0,
        ("show", id): 0,
        ("append", id, "x"): Refused.exit_code,
        ("new", "x"): Refused.exit_code,
        ("delete", id): Refused.exit_code,
        ("store", "migrate"): 0,
    }.items():
        done = run(*words, "--store", url)
        assert done.returncode == code, (words, done)


def test_who_may_not_come_in_is_told_the_address(database: str) -> None:
    with pytest.raises(Refused) as caught:
        Store.open(role(database, ""))
    assert (
        f"role_{Address(database).schema}@" in caught.value.message
        and "denied" in caught.value.message
    )
    for other, said_so in (
        (database.replace("/postgres?", "/nosuch?"), 'database "nosuch" does not exist'),
        (database.replace("capsule@", "nobody_here@"), 'role "nobody_here" does not exist'),
        (database.partition("?")[0] + "?host=/nowhere/at/all", "No such file"),
    ):
        with pytest.raises(StorageFailed, match=said_so) as failed:
            Store.open(other)
        assert Address(other).shown in failed.value.message
        done = run("list", "--store", other)
        assert done.returncode == StorageFailed.exit_code and Address(other).shown in done.stderr


# -- Passwords -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(postgres: str) -> Iterator[str]:
    """The address of a server that asks the role anna for her password."""
    import psycopg.sql

    server = Server()
    rules = server.data / "pg_hba.conf"
    with psycopg.connect(server.url, autocommit=True) as connection:
        statement = psycopg.sql.SQL("CREATE ROLE anna LOGIN SUPERUSER PASSWORD {}")
        connection.execute(statement.format(psycopg.sql.Literal(PASSWORD)))
    rules.write_text(f"local all anna scram-sha-256\n{rules.read_text()}")
    server.stop("fast")
    server.start()
    yield server.url.replace("capsule@", f"anna:{quote(PASSWORD, safe='')}@")
    server.close()


def test_a_wrong_password_is_refused_and_not_shown(guarded: str) -> None:
    user, _, rest = guarded.partition("@")
    for url in (
        f"{user}x@{rest}",
        f"postgresql://anna@{rest}&password={CANARY}",
        f"postgresql://anna@{rest}",
    ):
        with pytest.raises(StorageFailed, match="password") as caught:
            Store.open(url)
        assert "anna@" in caught.value.message and not shows(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://anna:{CANARY}",
        f"postgresql://anna:{CANARY}/talks",
        f"postgresql://anna:12/{CANARY}@db/talks",
        f"postgresql://anna:x/{CANARY}@db/talks",
        f"postgresql://anna:12#{CANARY}@db/talks",
        f"postgresql://anna:12?{CANARY}@db/talks",
        f"postgresql://anna:12?a={CANARY}@db/talks",
        f"postgresql://anna:{CANARY}@[::1/talks",
        f"postgresql://anna:{CANARY}%zz@localhost:1/talks",
        f"postgresql://anna:{CANARY}%00@localhost:1/talks",
        f"postgresql://anna:x@{CANARY}@localhost:1/talks",
        f"postgresql://localhost:1/talks?password={CANARY}&password={CANARY}2",
        f"postgresql://localhost:1/talks?sslpassword={CANARY}&sslkey=key",
        f"postgresql://localhost:1/talks?Password={CANARY}",
        f"postgresql://anna:{CANARY}@localhost:port/talks",
        f"postgresql://anna:{CANARY}@localhost:1/talks?schema=No%20Name",
        f"postgresql://anna:{CANARY}@localhost:1/talks?sslmode=wrong",
        f"postgresql://anna:{CANARY}@localhost:1/talks?connect_timeout=soon",
    ],
)
def test_a_password_is_in_no_error_however_wrong_its_address_is(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises((InvalidInput, NotFound, StorageFailed)) as caught:
        Store.open(url)
    assert not shows(caught.value)
    assert CANARY not in "".join(traceback.format_exception(caught.value)).replace(f'"{url}"', "")
    monkeypatch.setenv("CAPSULE_STORE", url)
    for words in (["list"], ["store", "show", "--json"], ["init", "--store", url]):
        done = run(*words)
        assert done.returncode and CANARY not in done.stdout + done.stderr, done


def shows(error: CapsuleError) -> bool:
    return CANARY in f"{error!r} {error} {error.fields} {error.remedy} {error.__cause__!r}"


#: Says what it was given, and what its parent was started with.
DUMP = (
    "cat > /dev/null; env; cat /proc/$$/cmdline /proc/$PPID/cmdline 2> /dev/null || ps -o command"
)


@pytest.mark.slow
def test_a_password_is_in_nothing_that_a_door_says_keeps_or_starts(
    guarded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = f"{guarded}&schema=doors"
    kept = tmp_path / "passwords"
    kept.write_text("*:*:*:*:" + PASSWORD.replace("\\", "\\\\").replace(":", "\\:"))
    kept.chmod(0o600)
    shown = Address(url).shown
    monkeypatch.setenv("PGPASSFILE", str(kept))  # What Capsule starts has it from there.
    monkeypatch.setenv("CAPSULE_STORE", url)
    editor = tmp_path / "editor"
    editor.write_text(f"#!/bin/sh\n({DUMP}) < /dev/null > {tmp_path}/edited\n")
    editor.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(editor))
    done = [
        run(*words)
        for words in (
            ("init",),
            ("init", "--store", url),
            *(("agent", "register", "--as", agent) for agent in ("anna", "bob")),
            ("new", "Plan", "--id", "plan", "--json"),
            ("append", "plan", "a red fish"),
            ("search", "fish", "--json"),
            ("store", "show"),
            ("store", "show", "--json", "--store", url),
            ("store", "report"),
            ("store", "doctor"),
            ("edit", "plan"),
            ("send", "--as", "anna", "--to", "bob", "hello"),
            ("listen", "--as", "bob", "--timeout", "0s", "--exec", DUMP),
            ("mcp", "install", "claude-desktop", "--store", url, "--dry-run"),
            ("mcp", "tokens", "add", "anna"),
            ("mcp", "tokens", "list", "--json"),
            (
                "worker",
                "set",
                "helper",
                "--",
                "sh",
                "-c",
                f"({DUMP}) > {tmp_path}/worked; echo Done.",
            ),
            ("worker", "status", "--json"),
            ("copy", str(tmp_path / "nothing"), url),
            ("git", "setup"),
            ("show", "nothing", "--json"),
        )
    ]
    told = [f"{each.args} {each.stdout} {each.stderr}".replace(url, "URL") for each in done]
    assert shown in told[7] and f"CAPSULE_STORE={shown}" in told[13], told[13]
    assert f"CAPSULE_STORE={shown}" in (tmp_path / "edited").read_text(), told[11]
    with over_stdio(Place(shown)) as client:
        told.append(json.dumps(client.call("list_conversations")))
    with over_http(Place(shown)) as server:
        told.append(json.dumps(server.modern_call("read_conversation", id="plan")))
        told.append(server.said)
    bases: list[str] = []
    web = Served(Place(shown), (), tmp_path / "web.txt", bases)
    told += [
        web.client.get(path).text
        for path in ("/", "/overview", "/c/plan", "/workers", "/c/nothing")
    ]
    web.stop()
    paths = os.pathsep.join((str(ROOT), str(ROOT / "cli")))
    host = subprocess.Popen(
        [sys.executable, "-m", "capsule_cli", "worker", "host"],
        env={**os.environ, "PYTHONPATH": paths},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: psutil.Process(host.pid).children(recursive=True))
        for each in psutil.Process(host.pid).children(recursive=True):
            with suppress(psutil.Error):
                told.append(f"{each.cmdline()} {each.environ()}")
        run("send", "--as", "anna", "--to", "helper", "hello")
        worked = tmp_path / "worked"
        until(lambda: worked.exists() and f"CAPSULE_STORE={shown}" in worked.read_text())
    finally:
        host.terminate()
        _, errors = host.communicate()
    told.append(errors)
    with Store.open(url) as store:
        told += [
            repr(store),
            repr(vars(store)),
            repr(vars(store.engine)),
            repr(store.inner.whole_engine),
            caplog.text,
        ]
        with pytest.raises(NotFound) as caught:
            store.read("nothing")
        told.append(
            "".join(traceback.format_exception(caught.value)) + str(pickle.dumps(caught.value))
        )
    assert [each for each in told if CANARY in each] == []
    for path in (*Path(os.environ["HOME"]).rglob("*"), *tmp_path.rglob("*")):
        assert not path.is_file() or path == kept or CANARY.encode() not in path.read_bytes(), path
    rows = sql(
        url,
        "SELECT value FROM @meta UNION SELECT about FROM @leases UNION SELECT head || rest FROM "
        "@documents",
    )
    assert CANARY not in str(rows)
