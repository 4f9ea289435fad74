"""What a person types, and what is asked of FTS5: every text is a query."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.engines.index.search import words
from capsule.engines.questions.query import (
    MAX_WORDS,
    Phrase,
    as_fts5,
    composed,
    count,
    fold,
    parse,
    tokens,
)

TEXTS = (
    "a plan for the garden",
    "the budget of the plan",
    "old draft of the plan",
    "I can't stop, foo-bar f(x)",
    "not here and or there",
)


@pytest.fixture(scope="module")
def db() -> Iterator[sqlite3.Connection]:
    """An index of words alone."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    words.create(db)
    words.add(db, [(num, text, None) for num, text in enumerate(TEXTS)])
    yield db
    db.close()


def matches(db: sqlite3.Connection, text: str) -> list[int]:
    match = as_fts5(parse(text).terms)
    return [
        num
        for (num,) in db.execute(
            "SELECT rowid FROM words WHERE words MATCH ? ORDER BY rowid", (match,)
        )
    ]


def test_syntax_is_understood_and_all_else_is_words(db: sqlite3.Connection) -> None:
    for text, found in [
        ("plan", [0, 1, 2]),
        ("PLAN Garden", [0]),
        ('"the plan"', [1, 2]),
        ('"plan the"', []),
        ("gard*", [0]),
        ('"the pl"*', [1, 2]),
        ("garden OR budget", [0, 1]),
        ("plan NOT draft", [0, 1]),
        ("plan NOT (draft OR garden)", [1]),
        ("plan AND NOT draft", [0, 1]),
        ("garden OR the draft", [0, 2]),
        ("(garden OR the) draft", [2]),
        ("draft the AND (budget OR old)", [2]),
        ("plan NOT gard*", [1, 2]),
        ("can't", [3]),
        ("foo-bar", [3]),
        ("bar-foo", []),
        ("f(x)", [3]),
        ("(f(x) OR garden)", [0, 3]),
        ("plan :) garden", [0]),
        ("plan AND", []),
        ("here AND", [4]),
        ("NOT here", [4]),
        ("OR there", [4]),
        ("here NOT NOT there", []),
        ("AND OR", [4]),
        ("and OR draft", [2, 4]),
        ("(((plan garden", [0]),
        ("plan) garden))", [0]),
        ("() plan ( ) garden", [0]),
        ('garden "', [0]),
        ("content:plan", []),
        ("{content}:budget", []),
        ("NEAR(plan garden)", []),
        ("^plan", [0, 1, 2]),
        ("plan + garden", [0]),
    ]:
        assert matches(db, text) == found


def test_a_text_without_words_is_looked_for_as_it_is() -> None:
    for text in ['"', "*", "(", ":)", '""', "...", " ", "", "*\"('", "\x00\x01"]:
        assert parse(text).terms == ()
        assert parse(text).literal == text.strip()


def test_words_behind_the_first_many_are_passed_over() -> None:
    many = " ".join(f"word{number}" for number in range(10_000))
    phrases = parse(many).phrases
    assert len(phrases) == MAX_WORDS
    assert phrases[0] == Phrase(("word0",))
    few = " ".join(f"word{number}" for number in range(1000))
    assert parse(f'"{few}"').phrases == (
        Phrase(tuple(f"word{number}" for number in range(MAX_WORDS))),
    )


def test_an_operator_whose_words_were_skipped_is_no_word() -> None:
    many = " ".join(f"word{number}" for number in range(MAX_WORDS))
    assert parse(f"{many} NOT (one OR two)").terms == parse(many).terms
    for last_part in ("AND foo", "OR (foo", "NOT foo", "AND (foo bar)"):
        assert parse(f"{many} {last_part}").terms == parse(many).terms


def test_an_operator_before_the_cut_of_a_long_query_is_no_word() -> None:
    assert parse("plan AND" + " " * 50_000 + "budget").terms == parse("plan").terms
    assert parse("plan OR " + "x" * 50_000).terms == parse("plan").terms


def test_parentheses_stay_if_the_operand_after_them_was_skipped() -> None:
    few = " ".join(f"word{number}" for number in range(MAX_WORDS - 3))
    query = f"plan NOT (old draft) {few}"
    assert parse(f"{query} AND (foo").terms == parse(query).terms
    assert as_fts5(parse(f"{few} plan NOT (old draft) AND foo").terms).endswith(
        '"plan" NOT ( "old" AND "draft" )'
    )


def test_blanks_before_a_query_are_not_counted() -> None:
    assert parse(" " * 50_000 + "a") == parse("a")


def test_a_query_of_a_hundred_kilobytes_is_understood(db: sqlite3.Connection) -> None:
    for text in [
        "(" * 100_000 + "a b",
        "(" * 50_000 + ")" * 50_000,
        "(" * 40_000 + "a b" * 20_000,
        "(a OR " * 9_000 + ")" * 9_000,
        "a NOT " * 20_000,
    ]:
        assert len(text) > 60_000
        query = parse(text)
        if query.terms:
            db.execute(
                "SELECT rowid FROM words WHERE words MATCH ?", (as_fts5(query.terms),)
            ).fetchall()
        else:
            assert query.literal == text


def test_a_word_as_long_as_a_book_finds_itself(db: sqlite3.Connection) -> None:
    book = "x" * 90_000
    words.add(db, [(1000, book, None), (1001, f"some {book}y", None)])
    assert set(matches(db, book)) == {1000, 1001}
    words.remove(db, [(1000, book, None), (1001, f"some {book}y", None)])


SYNTAX = st.sampled_from(
    ["a", "plan", "ga*", '"', "(", ")", "AND", "OR", "NOT", '"the plan"', ":)", "中文", "()", "f(x)", "*", "can't",
     "\ud800", "\x00"]
)  # fmt: skip


@given(st.one_of(st.text(), st.lists(SYNTAX).map(" ".join), st.lists(SYNTAX).map("".join)))
def test_no_text_is_an_error(text: str) -> None:
    query = parse(text)
    if query.terms:
        db = sqlite3.connect(":memory:")
        words.create(db)
        words.add(db, [(1, text, text)])
        db.execute(
            "SELECT rowid FROM words WHERE words MATCH ?",
            (f"{{content}} : ({as_fts5(query.terms)})",),
        ).fetchall()
        db.close()
    else:
        assert tokens(text) == [] or not query.literal


@given(st.text())
def test_a_text_folded_as_a_whole_has_the_words_that_are_marked_in_it(text: str) -> None:
    db = sqlite3.connect(":memory:")
    db.execute("CREATE VIRTUAL TABLE said USING fts5(content, content='', tokenize='ascii')")
    db.execute("CREATE VIRTUAL TABLE vocabulary USING fts5vocab(said, instance)")
    db.execute("INSERT INTO said(rowid, content) VALUES(1, ?)", (fold(text),))
    indexed = [term for (term,) in db.execute("SELECT term FROM vocabulary ORDER BY offset")]
    db.close()
    text = composed(text)
    found = tokens(text)
    assert [word for word, _, _ in found] == indexed
    for (_, first, last), (_, following, _) in pairwise(found):
        assert 0 <= first < last <= len(text)
        assert first <= following


def test_words_that_a_person_takes_for_the_same_are_folded_alike() -> None:
    for one, other in [
        ("Émile", "emile"),
        ("e\u0301te\u0301", "ÉTÉ"),
        ("Straße", "STRASSE"),
        ("ΣΊΣΥΦΟΣ", "σίσυφος"),
        ("ﬁne ＦＵＬＬ", "fine full"),
        ("ガ", "ｶﾞ"),
        ("が", "か\u3099"),
        ("한글", "\u1112\u1161\u11ab\u1100\u1173\u11af"),
        ("שָׁלוֹם", "שלום"),
        ("مُحَمَّد", "محمد"),
        ("٣٤", "34"),
        ("❤️", "❤"),
        ("soft\u00adhyphen", "softhyphen"),
        ("İstanbul", "istanbul"),
    ]:
        assert [word for word, _, _ in tokens(composed(one))] == [
            word for word, _, _ in tokens(composed(other))
        ]


def test_words_that_differ_for_a_reader_are_not_folded_alike() -> None:
    for one, other in [
        ("か", "が"),
        ("कि", "की"),
        ("ที", "ทิ"),
        ("👍", "👎"),
        ("文中", "中文"),
        ("ab", "a b"),
    ]:
        assert [word for word, _, _ in tokens(one)] != [word for word, _, _ in tokens(other)]


def test_words_are_counted_as_people_count_them() -> None:
    for text, words_in_it in [
        ("", 0),
        ("a b  c\n", 3),
        ("can't", 1),
        ("中文 word", 3),
        ("日本語です", 5),
        ("naïve café", 2),
    ]:
        assert count(text) == words_in_it


def test_a_first_build_gives_the_same_answers_as_single_additions_and_is_not_merged_with_later_ones() -> (
    None
):
    texts = [
        f"word{number % 7} 中文{number} nul\0here \u2028 only{number}" for number in range(3000)
    ]
    rows = [
        (num * 2 + 1, text, None if num % 3 else f"tool{num % 5} zażółć")
        for num, text in enumerate(texts)
    ]
    answers = []
    for is_first in (True, False):
        db = sqlite3.connect(":memory:", isolation_level=None)
        words.create(db)
        db.execute("BEGIN")
        if is_first:
            words.build(db, lambda db=db: words.add(db, rows))
        else:
            words.add(db, rows)
        db.execute("COMMIT")
        largest = "SELECT segid FROM words_idx GROUP BY segid ORDER BY count(*) DESC LIMIT 1"
        built = db.execute(largest).fetchone()
        words.remove(db, rows[5:9])
        for num in range(1500):
            words.add(db, [(100_000 + num, "word1 afterwards", None)])
        assert not is_first or db.execute(largest).fetchone() == built
        assert db.execute("SELECT count(DISTINCT segid) FROM words_idx").fetchone()[0] < 60
        asked = (
            "word1",
            '"中 文"',
            "tool0",
            "zazołc",
            '"nul here"',
            "word1 afterwards",
            "only7",
            "tools : word1",
        )
        found = "SELECT rowid, bm25(words) FROM words WHERE words MATCH ? ORDER BY rowid"
        answers.append([db.execute(found, (match,)).fetchall() for match in asked])
        db.execute("INSERT INTO words(words) VALUES('integrity-check')")
        db.close()
    assert answers[0] == answers[1]
    assert [len(found) > 0 for found in answers[0]] == [True] * 6 + [False] * 2
