"""What a search finds: everything that was asked for, and nothing else."""

from __future__ import annotations

import itertools
import re
import threading
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule import InvalidInput, Store
from capsule.engines.index.tables import writer
from capsule.engines.questions import ranking
from capsule.engines.questions.query import composed, is_continuous, tokens

#: Several languages, with and without spaces; what a person looks for in them.
CORPUS = (
    "The quick brown fox can't jump over the naïve façade.",
    "Le déjeuner sur l’herbe: Émile a mangé à l'hôtel.",
    "Die Straße nach Köln ist gesperrt; STRASSE frei.",
    "Привет, мир! Ёлка стоит в лесу.",
    "我们今天讨论全文检索的问题。",
    "检索系统的全文索引，中文分词。",
    "東京都は日本の首都です。カタカナとひらがな。",
    "京都は古い都です。",
    "วันนี้อากาศดีมาก ไปเที่ยวทะเลกัน",
    "학교에서 친구를 만났어요. 학교는 크다.",
    "हिन्दी में खोज काम करती है।",
    "مرحبا بالعالم، اللغة العربية.",
    "Ship it 🚀🚀 and celebrate 🎉 👍🏽",
    "foo-bar foo_bar foobar x²+y² = z² ≠ 0",
    "path/to/file.py::test_it --flag=value https://example.org/a?b=c#d",
)
NEEDLES = (
    "naive", "FACADE", "emile", "HÔTEL", "déjeuner", "strasse", "Straße", "koln", "мир", "ЁЛКА", "全文", "检索", "文",
    "全文检索", "文索", "東京", "京都", "都", "カタ", "ひらがな", "です", "อากาศ", "ทะเล", "ดี",
    "학교", "친구", "만났",
    "खोज", "हिन्दी", "العربية",
    "🚀", "🎉", "👍", "🏽", "foo", "foobar", "bar", "fox", "the", "file", "test", "example", "flag", "quick", "z2",
)  # fmt: skip


def plain(text: str) -> str:
    """Without case and accents, by other means than the index has."""
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    return "".join(c for c in decomposed if unicodedata.combining(c) < 200)


def holds(text: str, needle: str) -> bool:
    """Whether a person would say that the needle stands in the text: as a word, or anywhere in
    scripts without them.
    """
    text, needle = plain(text), plain(needle)
    if is_continuous(needle[0]) or unicodedata.category(needle[0])[0] == "S":
        return needle in text
    return needle in re.findall(r"(?:[^\W_]|[\u093e-\u094d\u0902])+", text)


def found(store: Store, query: str, **options: Any) -> list[str]:
    """The contents that a search finds, by their conversations' ids and places, sorted."""
    return sorted(f"{hit.id}@{hit.at}" for hit in store.search(query, limit=1000, **options).hits)


def test_a_search_in_any_language_finds_what_a_full_scan_finds(store: Store) -> None:
    store.create(id="c", title="~", messages=[{"role": "user", "content": text} for text in CORPUS])
    for needle in NEEDLES:
        wanted = [f"c@{at}" for at, text in enumerate(CORPUS) if holds(text, needle)]
        assert wanted, "each needle is somewhere"
        assert found(store, needle) == sorted(wanted)


def test_an_index_that_is_built_at_once_finds_what_one_finds_that_grew(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        writer, "_BATCH_BYTES", 5000
    )  # Several conversations together, and several times.
    for number, text in enumerate(CORPUS):
        calls = [{"id": "1", "name": "run", "arguments": {"text": CORPUS[~number]}}]
        said = ({"content": "plain"}, {"content": text}, {"content": "", "toolCalls": calls})
        store.create(
            id=f"c{number}",
            title="~",
            messages=[{"role": "assistant", **message} for message in said],
        )
        store.search("plain")
    grown = [found(store, needle, in_tools=True) for needle in ("plain", *NEEDLES)]
    store.reindex()
    assert [found(store, needle, in_tools=True) for needle in ("plain", *NEEDLES)] == grown


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One store for all examples of a property."""
    root = tmp_path_factory.mktemp("shared")
    Store.init(root)
    with Store.open(root, keep_locks=False) as store:
        store.create(
            title="Any (thing)",
            messages=[{"role": "user", "content": content} for content in CORPUS],
        )
        yield store


@given(st.text(max_size=60), st.data())
def test_a_messages_own_words_find_it(shared: Store, text: str, data: st.DataObject) -> None:
    text = composed(text.encode("utf-8", "replace").decode())
    pieces = [text[first:last] for _, first, last in tokens(text)]
    if not pieces:
        return
    id = shared.create(title="~", messages=[{"role": "user", "content": text}]).id
    first = data.draw(st.integers(0, len(pieces) - 1))
    chosen = pieces[first : first + data.draw(st.integers(1, 5))]
    for query in (" ".join(chosen), text, f'"{chosen[0]}"', f"{chosen[0]}*"):
        if not set(query.split()) & {"AND", "OR", "NOT"}:
            assert found(shared, query, ids=[id]) == [f"{id}@0"], query


@given(st.text(max_size=200))
def test_any_text_is_a_query(shared: Store, text: str) -> None:
    for in_tools in (False, True):
        assert shared.search(text, in_tools=in_tools).hits is not None


def test_a_query_that_no_file_can_hold_finds_nothing(store: Store) -> None:
    for query in ["\ud800", "\ud83d \udc4d", "\x00"]:
        store.create(title="A", messages=[{"role": "user", "content": "text"}])
        assert store.search(query).as_json() == {"hits": [], "cursor": None, "total": 0}


def test_signs_without_words_are_found_as_they_stand(store: Store) -> None:
    contents = (
        "why?! because",
        "so :) it is",
        'she said "no"',
        "a * b ** c",
        "plain",
        "half a\x0bline",
    )
    store.create(
        id="c", title="t*", messages=[{"role": "user", "content": content} for content in contents]
    )
    assert found(store, "?!") == ["c@0"]
    assert found(store, ":)") == ["c@1"]
    assert found(store, '"') == ["c@2"]
    assert found(store, "**") == ["c@3"]
    assert found(store, "*") == ["c@3", "c@None"]
    assert [hit.snippet.marks for hit in store.search(":)").hits] == [((3, 5),)]


def test_a_hit_says_where_it_stands_and_how_to_open_it(store: Store) -> None:
    store.create(
        id="c", title="Plans", tags=["garden"], messages=[{"role": "user", "content": "first"}]
    )
    written = store.append("c", role="assistant", content="the second word", from_="ada")
    (hit,) = store.search("second").hits
    assert hit.as_json() == {
        "id": "c",
        "title": "Plans",
        "message": written.id,
        "at": 1,
        "role": "assistant",
        "from": "ada",
        "time": written.timestamp,
        "where": "content",
        "snippet": {"text": "the second word", "marks": [[4, 10]]},
        "score": hit.score,
        "active": True,
    }
    (hit,) = store.search("garden").hits
    assert (hit.message, hit.at, hit.role, hit.where) == (None, None, None, "title")
    assert (hit.snippet.text, hit.snippet.marks) == ("#garden", ((1, 7),))
    assert hit.time == store.head("c").updated_at


def test_each_filter_narrows_a_search(store: Store) -> None:
    store.create(
        id="one",
        title="One",
        tags=["work", "garden"],
        mode="toolbox",
        messages=[
            {
                "role": "user",
                "content": "word",
                "from": "ada",
                "timestamp": "2025-01-01T00:00:00.000Z",
            },
            {"role": "assistant", "content": "word", "timestamp": "2025-02-01T00:00:00.000Z"},
        ],
    )
    store.create(
        id="two",
        title="Two word",
        tags=["work"],
        type="group",
        messages=[
            {
                "role": "tool",
                "content": "word",
                "from": "bob",
                "timestamp": "2025-03-01T00:00:00.000Z",
            }
        ],
    )
    every = ["one@0", "one@1", "two@0", "two@None"]
    assert found(store, "word") == every
    assert found(store, "word", roles=["user"]) == ["one@0"]
    assert found(store, "word", roles=["user", "tool"]) == ["one@0", "two@0"]
    assert found(store, "word", senders=["bob"]) == ["two@0"]
    assert found(store, "word", ids=["two"]) == ["two@0", "two@None"]
    assert found(store, "word", ids=["one", "two"]) == every
    assert found(store, "word", ids=["none"]) == []
    assert found(store, "word", tags=["work"]) == every
    assert found(store, "word", tags=["work", "garden"]) == ["one@0", "one@1"]
    assert found(store, "word", tags=["Work"]) == [], "tags are taken by the letter"
    assert found(store, "word", mode="toolbox") == ["one@0", "one@1"]
    assert found(store, "word", since="2025-02-01") == ["one@1", "two@0", "two@None"]
    assert found(store, "word", until="2025-02-01T00:00:00Z") == ["one@0"]
    assert found(store, "word", since="2025-01-15", until="2025-02-15") == ["one@1"]
    assert found(store, "word", title_only=True) == ["two@None"]
    assert found(store, "word", title_only=True, roles=["user"]) == []
    for profile in ("exact", "recent"):
        assert found(store, "word", profile=profile) == every
        assert found(store, "word", profile=profile, tags=["garden"], roles=["user"]) == ["one@0"]


def test_all_branches_are_searched_unless_the_active_one_is_asked_for(store: Store) -> None:
    store.create(id="c", title="C", type="group", messages=[{"role": "user", "content": "root"}])
    root = store.tail("c", 1)[0].id
    store.append("c", content="left branch", parent=root)
    store.append("c", content="right branch", parent=root)
    assert found(store, "branch") == ["c@1", "c@2"]
    assert found(store, "branch", branch="active") == ["c@2"]
    assert [(hit.at, hit.active) for hit in store.search("branch").hits] == [(2, True), (1, False)]


def test_if_no_message_has_all_words_those_with_the_most_are_found(store: Store) -> None:
    texts = ["one two other", "two three", "two three one", "one", "nothing"]
    store.create(
        id="c", title="one", messages=[{"role": "user", "content": text} for text in texts]
    )
    for query, hits, having in (
        ("one two three", ["c@2"], 0),
        ("one two three four", ["c@2"], 3),
        ("four one two five", ["c@0", "c@2"], 2),
        ("one four five six", ["c@0", "c@2", "c@3", "c@None"], 1),
        ('"three two" four two', ["c@0", "c@1", "c@2"], 1),
        ("one AND four", [], 0),
        ("seven", [], 0),
        (" ".join(f"w{number}" for number in range(60)) + " three", ["c@1", "c@2"], 1),
    ):
        answer = store.search(query)
        assert sorted(f"{hit.id}@{hit.at}" for hit in answer.hits) == hits, query
        assert answer.having == having, query
    (many, one) = (store.search("one two four five", limit=limit) for limit in (9, 1))
    rest = store.search("one two four five", limit=1, cursor=one.cursor)
    assert [hit.at for hit in (*one.hits, *rest.hits)] == [hit.at for hit in many.hits]
    assert rest.having == 2 and rest.cursor is None
    assert store.search("one four", roles=["assistant"]).having == 0


def test_an_empty_query_lists_messages_by_its_filters(store: Store) -> None:
    message = {"role": "user", "content": "text"}
    early, late = ({**message, "timestamp": f"2025-01-{day}T12:00:00.000Z"} for day in (10, 20))
    store.create(id="c", title="C", tags=["t"], messages=[early, late])
    store.create(id="d", title="D", messages=[{"role": "assistant", "content": "now"}])
    assert [f"{hit.id}@{hit.at}" for hit in store.search("").hits] == ["d@0", "c@1", "c@0"]
    assert found(store, " ", tags=["t"]) == ["c@0", "c@1"]
    assert found(store, "", tags=["t"], title_only=True) == ["c@None"]
    assert found(store, "", roles=["assistant"]) == ["d@0"]
    assert found(store, "", since="2025-01-10", until="2025-01-10") == ["c@0"]
    assert found(store, "", until="2025-01-20T12:00Z") == ["c@0"]
    assert (
        found(store, "", since="24h")
        == found(store, "", since="yesterday", until="today")
        == ["d@0"]
    )
    assert found(store, "", until="24h") == ["c@0", "c@1"]
    assert found(store, "", since="99999999w") == ["c@0", "c@1", "d@0"]


def test_tool_calls_and_reasoning_are_searched_when_asked(store: Store) -> None:
    calls = [{"function": {"name": "lookup", "arguments": '{"city": "Paris"}'}}]
    store.create(
        id="c",
        title="C",
        messages=[{"role": "assistant", "content": "It rains", "toolCalls": calls}],
    )
    store.append("c", role="assistant", content="Rain", reasoning="the almanac says so")
    assert (
        found(store, "paris") == found(store, "almanac") == found(store, "lookup OR almanac") == []
    )
    assert found(store, "paris", in_tools=True) == ["c@0"]
    (hit,) = store.search("rain almanac", in_tools=True).hits
    assert hit.at == 1
    (hit,) = store.search("almanac", in_tools=True).hits
    assert hit.where == "tools"
    assert hit.snippet.text[hit.snippet.marks[0][0] : hit.snippet.marks[0][1]] == "almanac"


def test_an_option_that_can_not_be_is_refused(store: Store) -> None:
    for options in [
        {"profile": "best"},
        {"branch": "left"},
        {"limit": 0},
        {"since": "once"},
        {"until": "x"},
        {"cursor": "x"},
        {"cursor": "é"},
        {"cursor": ""},
        {"cursor": "A" * 99},
    ]:
        with pytest.raises(InvalidInput):
            store.search("word", **options)


def pages(store: Store, query: str, limit: int, **options: Any) -> Any:
    """The pages of a search, one after the other."""
    cursor = None
    while True:
        page = store.search(query, limit=limit, cursor=cursor, **options)
        yield page
        cursor = page.cursor
        if cursor is None:
            return


@pytest.mark.parametrize("profile", ["recent", "balanced", "exact"])
def test_pages_repeat_nothing_and_skip_nothing_while_others_append(
    store: Store, profile: str
) -> None:
    texts = ["word " * (number % 5 + 1) + "more " * (number % 7) for number in range(60)]
    store.create(
        id="c",
        title="word",
        type="group",
        messages=[{"role": "user", "content": text} for text in texts],
    )
    met: list[str] = []
    for number, page in enumerate(pages(store, "word", 7, profile=profile)):
        met += [f"{hit.id}@{hit.at}" for hit in page.hits]
        store.append("c", content="word " * (number + 1))
        store.create(title=f"word {number}")
    assert sorted(met) == sorted(["c@None", *(f"c@{at}" for at in range(60))])


@pytest.mark.parametrize(
    ("query", "profile"), [("word", "balanced"), (":)", "balanced"), (":)", "exact")]
)
def test_pages_go_on_behind_the_newest_matches_that_are_ranked(
    store: Store, monkeypatch: pytest.MonkeyPatch, query: str, profile: str
) -> None:
    monkeypatch.setattr(ranking, "WINDOW", 8)
    store.create(
        id="c",
        title="word :)",
        messages=[{"role": "user", "content": "word :)"} for _ in range(30)],
    )
    first = store.search(query, limit=3, profile=profile)
    assert first.total is None
    met = [
        f"{hit.id}@{hit.at}"
        for page in pages(store, query, 3, profile=profile)
        for hit in page.hits
    ]
    assert sorted(met) == sorted(["c@None", *(f"c@{at}" for at in range(30))])


@pytest.mark.parametrize("query", ["word", "~"])
def test_pages_of_titles_go_on_too(
    store: Store, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    monkeypatch.setattr(ranking, "WINDOW", 4)
    for number in range(15):
        store.create(
            id=f"c{number}", title="word ~", messages=[{"role": "user", "content": "word ~"}]
        )
    met = [f"{hit.id}@{hit.at}" for page in pages(store, query, 3) for hit in page.hits]
    assert sorted(met) == sorted(f"c{number}@{at}" for number in range(15) for at in (0, None))


def test_a_cursor_is_good_for_its_own_search_only(store: Store) -> None:
    store.create(title="word", messages=[{"role": "user", "content": "word"}])
    cursor = store.search("word", limit=1).cursor
    for options in (
        {"query": "other"},
        {"query": "word", "roles": ["user"]},
        {"query": "word", "profile": "exact"},
    ):
        with pytest.raises(InvalidInput, match="another query"):
            store.search(cursor=cursor, **options)
    store.reindex()
    with pytest.raises(InvalidInput, match="rebuilt"):
        store.search("word", cursor=cursor)


@pytest.mark.parametrize("in_memory", [False, True])
def test_threads_search_while_others_write(store: Store, root: Path, in_memory: bool) -> None:
    if in_memory:
        (root / ".capsule" / "index.sqlite3" / "a directory in the way").mkdir(parents=True)
    store.create(id="c", title="C", type="group", messages=[{"role": "user", "content": "word"}])
    failures: list[BaseException] = []
    done = threading.Event()

    def look() -> None:
        try:
            for number in itertools.count():
                if done.is_set() and number:
                    return
                seen = [hit.at for hit in store.search("word", limit=1000).hits]
                assert sorted(seen) == list(range(len(seen)))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(40):
        store.append("c", content="another word")
    done.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(store.search("word", limit=1000).hits) == 41


def tally(messages: int, words: int, tokens: int) -> dict[str, int]:
    return {"messages": messages, "words": words, "tokens": tokens}


def test_stats_count_the_store(store: Store, root: Path) -> None:
    store.create(
        id="a",
        title="A",
        messages=[
            {
                "role": "user",
                "content": "one two three",
                "timestamp": "2024-12-31T23:59:59.999Z",
                "from": "anna",
            },
            {"role": "assistant", "content": "four 中文", "timestamp": "2025-01-01T00:00:00.000Z"},
            {"role": "user", "content": "seven", "timestamp": "1969-12-31T23:00:00Z"},
        ],
    )
    store.create(
        id="b",
        title="B",
        messages=[{"role": "user", "content": "x", "timestamp": "2025-01-31T00:00:00Z"}],
    )
    store.archive("b")
    (root / "conversations" / "broken.json").write_text("{")
    told = store.stats().as_json()
    assert told["bytes"] == sum(path.stat().st_size for path in (root / "conversations").iterdir())
    sizes = {id: (root / "conversations" / f"{id}.json").stat().st_size for id in ("a", "b")}
    del told["bytes"]
    assert told == {
        "conversations": 3,
        "damaged": 1,
        "archived": 1,
        "messages": 4,
        "words": 8,
        "tokens": 6,
        "byRole": {"user": tally(3, 5, 3), "assistant": tally(1, 3, 3)},
        "byMonth": {
            "1969-12": tally(1, 1, 1),
            "2024-12": tally(1, 3, 2),
            "2025-01": tally(2, 4, 3),
        },
        "byDay": {
            "1969-12-31": tally(1, 1, 1),
            "2024-12-31": tally(1, 3, 2),
            "2025-01-01": tally(1, 3, 3),
            "2025-01-31": tally(1, 1, 0),
        },
        "bySender": {"anna": tally(1, 3, 2)},
        "bySource": {"here": tally(4, 8, 6)},
        "largest": [
            {"id": "a", "title": "A", "messages": 3, "words": 7, "bytes": sizes["a"]},
            {"id": "b", "title": "B", "messages": 1, "words": 1, "bytes": sizes["b"]},
        ],
    }
    assert list(told["byRole"]) == ["user", "assistant"]
    assert list(told["byMonth"]) == sorted(told["byMonth"])
