"""The piece of a text that shows why it was found."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from capsule.engines.questions.query import composed, parse, tokens
from capsule.engines.questions.snippets import snippet


def shown(text: str, query: str, width: int = 40) -> str:
    """The snippet, its marks in brackets."""
    understood = parse(query)
    made = snippet(text, understood.phrases, understood.literal, width)
    marked, at = "", 0
    for first, last in made.marks:
        marked += f"{made.text[at:first]}[{made.text[first:last]}]"
        at = last
    return marked + made.text[at:]


def test_the_matches_are_marked() -> None:
    for text, query, wanted in [
        ("the plan", "plan", "the [plan]"),
        ("the PLAN, the plans", "plan*", "the [PLAN], the [plans]"),
        ("a phrase\n\n  here", '"phrase here"', "a [phrase here]"),
        ("I can't", "can't", "I [can't]"),
        ("Émile à l'hôtel", "emile HOTEL", "[Émile] à l'[hôtel]"),
        ("e\u0301te\u0301 now", "été", "[\u00e9t\u00e9] now"),
        ("我们讨论全文检索的问题", "全文检索", "我们讨论[全文检索]的问题"),
        ("全文 文全", "文", "全[文] [文]全"),
        ("東京都", "京都 東", "[東京都]"),
        ("ผู้ใหญ่ดีมาก", "ดี", "ผู้ใหญ่[ดี]มาก"),
        ("go 👍🏽 on ❤️", "👍 ❤", "go [👍🏽] on [❤️]"),
        ("so :) it :) is", ":)", "so [:)] it [:)] is"),
        ("plan and draft", "plan NOT draft", "[plan] and draft"),
        ("nothing of the kind", "other", "nothing of the kind"),
        ("", "other", ""),
        ("  \n plan \n ", "plan", "[plan]"),
        ("no(plan)there", "plan", "no([plan])there"),
        ("planplan plan", "plan", "planplan [plan]"),
    ]:
        assert shown(text, query) == wanted


def test_a_long_text_is_cut_between_words_and_says_so() -> None:
    text = " ".join(f"word{number}" for number in range(1000))
    assert shown(text, "word500") == "…word499 [word500] word501 word502…"
    assert shown(text, "word0") == "[word0] word1 word2 word3 word4 word5…"
    assert shown(text, "word999") == "…word996 word997 word998 [word999]"
    assert shown(text, "none") == "word0 word1 word2 word3 word4 word5…"


def test_the_piece_with_the_most_phrases_is_shown() -> None:
    filler = "filler " * 50
    text = f"budget {filler} plan {filler} the plan of the budget {filler} budget"
    assert "[plan] of the [budget]" in shown(text, "plan budget", width=60)


def test_a_match_far_into_a_long_text_is_shown() -> None:
    text = "filler " * 50_000 + "needle in here " + "filler " * 1000
    assert "[needle] in" in shown(text, "needle")
    assert "[needle in here]" in shown(text, '"needle in here"')
    text = "中" * 100_000 + "文" + "中" * 1000
    assert "[文]" in shown(text, "文")


def test_one_character_on_the_screen_is_never_cut() -> None:
    for offset in range(40):
        family, flag, thumb, accented = "👨\u200d👩\u200d👧", "🇩🇪", "👍🏽", "e\u0301\u0323"
        around = (
            "".join((family, flag, thumb, accented) * 30),
            "".join((flag, accented, family) * 30),
        )
        text = composed("x" * offset + "needle".join(around))
        made = snippet(text, parse("needle").phrases, "", 60)
        inner = made.text.strip("…")
        assert len(made.text) <= 60
        assert text.find(inner) >= 0
        before, after = text[text.find(inner) - 1], text[text.find(inner) + len(inner)]
        assert before != "\u200d"
        assert not inner.startswith(("\u200d", "\u0301", "\u0323", "🏽", "🇪"))
        assert not inner.endswith(("\u200d", "🇩"))
        assert after not in ("\u200d", "\u0301", "\u0323", "🏽", "🇪")


@given(st.text(max_size=400), st.text(max_size=20), st.integers(20, 60))
def test_a_snippet_is_one_bounded_line_of_the_text(text: str, query: str, width: int) -> None:
    understood = parse(query)
    made = snippet(text, understood.phrases, understood.literal, width)
    assert len(made.text) <= width
    assert not any(character.isspace() and character != " " for character in made.text)
    shown_of_it = made.text.removeprefix("…").removesuffix("…").replace(" ", "")
    assert shown_of_it in "".join(composed(text).split()) or "…" in text
    end = 0
    for first, last in made.marks:
        assert end <= first < last <= len(made.text)
        end = last


@given(
    st.lists(
        st.sampled_from(["plan", "中文", "かな", "👍🏽", "étage", "x", " ", "\n", ", "]),
        max_size=60,
    ),
    st.data(),
)
def test_a_word_of_a_text_is_marked_in_it(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    words = tokens(text)
    if not words:
        return
    word, first, last = data.draw(st.sampled_from(words))
    made = snippet(text, parse(text[first:last]).phrases)
    assert made.marks
    assert all(word in [found for found, _, _ in tokens(made.text[a:b])] for a, b in made.marks)
