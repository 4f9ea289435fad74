"""The index in the database: all machines share it, and whoever asks takes in what is missing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from capsule import InvalidInput, Store
from capsule.engines.postgres import index
from capsule.engines.postgres.tables import IndexTables
from capsule.engines.read_marks import UnreadFilter
from capsule.store.copying import copy_store
from tests.postgres.test_opening import sql
from tests.processes import Child

#: What PostgreSQL does not take as it is: a NUL, half a pair that is text, too many words, places,
#: and characters of a word; with a query that finds it.
TEXTS = [
    ("needle \0 after a zero", "needle after"),
    ('needle "\\u0000" \\ud800 \\\\', "needle u0000"),
    (f"{'x' * 5000}y needle", "xxx* needle"),
    (f"{'x' * 5000}y needle", "x" * 5000),
    (f"{' '.join(f'w{number}' for number in range(150_000))} needle", "w5000"),
    (f"{'again ' * 20_000} needle behind", "needle again"),
    ("needle 'quoted' \\backslash $$ %s ? {}", '"needle quoted" backslash'),
    ("needle → \0 ←", "→"),
    ("針 needle \U0010ffff \U0001f9f5", "針 \U0001f9f5"),
]

FIRST = [{"role": "user", "content": "first"}]


@pytest.fixture
def stores(database: str) -> Iterator[tuple[Store, Store]]:
    """Two stores, as two machines have them."""
    with Store.open(database) as one, Store.open(database) as other:
        yield one, other


def found(store: Store, query: str, **more: Any) -> list[tuple[str, int]]:
    return sorted(
        (hit.id, hit.at) for hit in store.search(query, **more).hits if hit.at is not None
    )


def state(database: str) -> dict[str, list[Any]]:
    """What the rows of the index say of the conversations that are there, whatever their numbers
    are.
    """
    capsules = (
        "id, version, era, size, tag, head, title, updated_at, tags, archived, lock, forked, "
        "entries, words, linear"
    )
    messages = (
        "c.id, m.at, m.id, front, parent, role, sender, time_ms, m.words, m.tokens, "
        "active, m.digest, m.length"
    )
    of_message = "JOIN @capsules AS c ON c.num = m.capsule"
    return {
        "capsules": sql(database, f"SELECT {capsules} FROM @capsules WHERE gone = 0 ORDER BY id"),
        "members": sql(
            database, "SELECT agent, id FROM @members JOIN @capsules ON num = capsule ORDER BY 1, 2"
        ),
        "names": sql(
            database,
            "SELECT id, vector::text, n.length FROM @names AS n JOIN @capsules USING (num) ORDER BY 1",
        ),
        "messages": sql(
            database, f"SELECT {messages} FROM @messages AS m {of_message} ORDER BY 1, 2"
        ),
        "words": sql(
            database,
            "SELECT c.id, m.at, vector::text, w.tools::text FROM @words AS w FULL JOIN @messages "
            "AS m USING (num)"
            f" {of_message} ORDER BY 1, 2",
        ),
        "sums": sql(database, "SELECT texts, text_words, titles, title_words FROM @indexed"),
        "facts": sql(
            database,
            "SELECT c.id, m.at, path, type, value, number FROM @facts AS f FULL JOIN @messages AS m"
            f" ON m.num = f.message {of_message} ORDER BY 1, 2, 3, 4, 5",
        ),
    }


def test_what_one_machine_took_in_another_one_reads_and_does_not_take_in_again(
    stores: tuple[Store, Store], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = stores
    id = one.create(
        title="Fish", type="group", messages=[{"role": "user", "content": "a needle"}]
    ).id
    assert other.list().heads == [one.head(id)] and found(other, "needle") == [(id, 0)]
    one.append(id, content="another needle")
    one.rename(id, "Fishes")
    assert found(one, "needle") == [(id, 0), (id, 1)]
    monkeypatch.setattr(index.PostgresIndex, "_update", lambda *_: pytest.fail("it is there"))
    assert found(other, "needle") == [(id, 0), (id, 1)]
    assert [head.title for head in other.list().heads] == ["Fishes"]
    with Store.open(database) as third:
        assert found(third, "needle") == [(id, 0), (id, 1)]


def test_an_index_that_followed_is_the_one_that_is_made_anew(
    stores: tuple[Store, Store], database: str
) -> None:
    one, other = stores
    for number in range(3):
        id = one.create(
            title=f"T{number}",
            type="group",
            tags=["x"],
            messages=[{"role": "user", "content": "first"}],
        ).id
        one.queries.refresh()
        first = one.append(id, content="second", topic="api").id
        other.queries.refresh()
        other.edits.message(id, str(first), "edited, second")
        one.append(id, content="third", mentions={"valid": ["@all"]})
        one.queries.refresh()
    gone = one.create(title="gone").id
    one.queries.refresh()
    one.delete(gone)
    other.queries.refresh()
    followed = state(database)
    assert all(rows for name, rows in followed.items() if name != "members")
    assert followed["sums"] == sql(
        database,
        "SELECT (SELECT count(*) FROM @messages), (SELECT sum(length) FROM @messages)::bigint, "
        "(SELECT count(*) FROM @names), (SELECT sum(length) FROM @names)::bigint",
    )
    one.queries.refresh(anew=True)
    assert state(database) == followed


def test_an_index_that_another_machine_made_anew_answers_and_refuses_old_cursors(
    stores: tuple[Store, Store],
) -> None:
    one, other = stores
    ids = [one.create(title=f"T{number}").id for number in range(3)]
    cursor = other.list(limit=1).cursor()
    one.queries.refresh(anew=True)
    assert sorted(head.id for head in other.list().heads) == sorted(ids)
    with pytest.raises(InvalidInput, match="rebuilt"):
        other.list(limit=1, cursor=cursor)


def test_a_large_store_is_taken_in_part_by_part_by_whoever_asks(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = stores
    ids = [
        one.create(messages=[{"role": "user", "content": f"needle {number}"}]).id
        for number in range(7)
    ]
    monkeypatch.setattr(index, "_BATCH_CONVERSATIONS", 2)
    real, lookups = index.PostgresIndex._find_backlog, list[object]()

    def find_backlog(tables: IndexTables) -> Any:
        lookups.append(tables)
        return real(tables)

    monkeypatch.setattr(index.PostgresIndex, "_find_backlog", staticmethod(find_backlog))
    seen: list[tuple[int, int]] = []
    one.queries.refresh(progress=lambda done, total: seen.append((done, total)))
    assert (
        len(seen) == 4
        and seen[-1][0] == seen[-1][1]
        and [total for _, total in seen] == [seen[0][1]] * 4
    )
    assert len(lookups) == 1
    one.queries.refresh(anew=True)
    with ThreadPoolExecutor(2) as pool:
        answers = [
            each.result()
            for each in [pool.submit(found, store, "needle") for store in (one, other)]
        ]
    assert answers == [sorted((id, 0) for id in ids)] * 2


def test_whoever_dies_while_it_takes_in_keeps_nobody_from_it(
    database: str, child: Callable[..., Child]
) -> None:
    with Store.open(database) as store:
        id = store.create(messages=[{"role": "user", "content": "needle"}]).id
        body = (
            "from capsule.engines.postgres import index\n"
            "real = index.PostgresIndex._index_documents\n"
            "def put(tables, some):\n    real(tables, some)\n    say(); hear()\n"
            "index.PostgresIndex._index_documents = staticmethod(put)\n"
            "Store.open(sys.argv[1]).list()"
        )
        stuck = child(body, database)
        stuck.hear()
        with ThreadPoolExecutor(1) as pool:
            asks = pool.submit(found, store, "needle")
            stuck.signal(9)
            assert asks.result() == [(id, 0)]


@pytest.mark.parametrize(("text", "query"), TEXTS, ids=range(len(TEXTS)))
def test_no_text_keeps_a_message_from_being_written_and_found(
    database: str, text: str, query: str
) -> None:
    with Store.open(database) as store:
        id = store.create(
            title=text.replace("\0", "")[:60], messages=[{"role": "user", "content": text}]
        ).id
        assert (id, 0) in found(store, query)
        said = store.queries.summarize_unread(id, UnreadFilter())
        assert (
            said.total == 1
            and said.last is not None
            and said.last.id == store.document(id)["history"][0]["id"]
        )
        assert [head.id for head in store.list().heads] == [id]


def test_a_question_is_answered_while_others_write_without_a_pause(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = stores
    id = one.create(type="group", messages=[{"role": "user", "content": "needle"}]).id
    real, written = index.PostgresIndex._update, []

    def reconcile_external_edit(*args: Any) -> None:
        real(*args)
        written.append(one.append(id, content=f"needle {len(written)}").id)
        assert len(written) < 9, "it goes on as long as others write"

    monkeypatch.setattr(index.PostgresIndex, "_update", reconcile_external_edit)
    cursor = other.changes().cursor
    assert found(other, "needle")[0] == (id, 0)
    heard: list[str] = []
    for _ in range(3):
        found(other, "needle")
        news = other.changes(cursor)
        cursor, heard = (
            news.cursor,
            heard + [message for change in news.changes for message in change.messages],
        )
    assert heard == written and len(heard) > 2


def test_changes_that_are_forgotten_are_in_the_index(
    stores: tuple[Store, Store], database: str
) -> None:
    one, other = stores
    id = one.create(type="group", messages=FIRST).id
    assert found(other, "first") == [(id, 0)]
    one.append(id, content="needle")
    sql(database, "CALL @prune('0')")
    assert sql(database, "SELECT count(*) FROM @changes") == [(1,)]
    assert found(other, "needle") == [(id, 1)]
    sql(database, "CALL @prune('0')")
    assert sql(database, "SELECT count(*) FROM @changes") == [(0,)]
    assert found(one, "needle") == [(id, 1)]


def test_plain_words_are_found_in_the_same_order_as_on_files(database: str, tmp_path: Path) -> None:
    draw = random.Random(7)
    words = [f"w{number}" for number in range(60)]
    weights = [1 / (number + 1) for number in range(60)]
    Store.init(tmp_path / "files")
    with Store.open(database) as here, Store.open(tmp_path / "files") as on_files:
        for _ in range(20):
            texts = [
                " ".join(draw.choices(words, weights, k=draw.randint(3, 60))) for _ in range(10)
            ]
            on_files.create(
                type="group",
                title=" ".join(draw.choices(words, weights, k=3)),
                tags=draw.sample(words, 2),
                messages=[{"role": "user", "content": text} for text in texts],
            )
        copy_store(on_files, here)
        for profile in ("balanced", "exact"):
            for number in range(60):
                query = " ".join(draw.sample(words, number % 3 + 1))
                answers = [
                    [
                        (hit.id, hit.at, hit.score if profile == "exact" else 0)
                        for hit in store.search(query, profile=profile, limit=50).hits
                    ]
                    for store in (on_files, here)
                ]
                assert answers[0] == answers[1], query


def test_a_purge_leaves_no_word_in_any_table(database: str, postgres: str) -> None:
    with Store.open(database) as store, psycopg.connect(postgres, autocommit=True) as admin:
        kept = store.create(title="kept").id
        id = store.create(title="canarytitle", tags=["canarytag"]).id
        message = store.append(
            id, content="canarytext", topic="canarytopic", **{"from": "canarysender"}
        ).id
        assert found(store, "canarytext") == [(id, 0)]
        store.edits.message(id, str(message), "other")
        store.delete(id)
        store.trash.purge()
        assert [head.id for head in store.list().heads] == [kept]
        schema = database.rpartition("=")[2]
        tables = admin.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)
        ).fetchall()
        assert len(tables) > 15
        for (table,) in tables:
            rows = admin.execute(
                f'SELECT count(*) FROM "{schema}"."{table}" AS t WHERE t::text LIKE %s',
                ("%canary%",),
            )
            assert rows.fetchone() == (0,), table
