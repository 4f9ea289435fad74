"""Messages as HTML: what they say is there, nothing of it runs or loads, and what is large takes no
time.
"""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.format.text.escaping import escape_controls as escaped
from capsule.transfer.rendering import messages as rendering
from capsule.transfer.rendering.messages import (
    STYLES,
    RenderOptions,
    anchor_of,
    describe_call,
    is_talk,
    messages,
    name_style,
    render,
)
from capsule.transfer.rendering.texts import (
    MAX_CODE_LINES,
    HtmlCache,
    TextRenderer,
    language_of,
    valid,
)
from tests.transfer.exchange import EXAMPLES, read
from tests.web.hostile import HOSTILE

DIGEST = "c414cd0e204de974f73753c7e28d7638e7b3691bb8b1a2bab6b25bb7fed7ce77"
VOID = {"img", "br", "hr"}
TAGS = {
    "article",
    "header",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "p",
    "div",
    "span",
    "bdi",
    "a",
    "time",
    "svg",
    "path",
    "details",
}
TAGS |= {
    "summary",
    "pre",
    "code",
    "ul",
    "ol",
    "li",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "em",
    "strong",
    "s",
}
TAGS |= {"blockquote", "ins", "del", *VOID}
ATTRIBUTES = {
    "class",
    "id",
    "dir",
    "open",
    "title",
    "aria-labelledby",
    "aria-label",
    "aria-hidden",
    "datetime",
}
ATTRIBUTES |= {"viewbox", "d", "fill-rule", "href", "rel", "src", "alt", "loading", "download"}
ATTRIBUTES |= {"start", "align", "tabindex"}
PATCH = "*** Begin Patch\n*** Update File: a.py\n@@\n-x\n+y\n+z\n*** End Patch"
MARKS = [
    *"[]()<>!`*_~#|-+>&;:\"'= \n\t\\a",
    "http://a.b",
    "javascript:",
    "script",
    "onclick=",
    "```",
    "\n\n",
    "    ",
]
ADDRESS = re.compile(r"(https?|mailto):|#[mh]-|/files/[0-9a-f]{64}$")


class Page(HTMLParser):
    """HTML as a browser takes it apart; that every element is closed and allowed is asserted."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.said, self.tags, self._open = (
            "",
            "",
            list[tuple[str, dict[str, str | None]]](),
            list[str](),
        )
        self.feed(str(html))
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS
        assert {name for name, _ in attrs} <= ATTRIBUTES
        fields = dict(attrs)
        assert len(fields) == len(attrs)
        for name in ("href", "src"):
            assert name not in fields or ADDRESS.match(fields[name] or ""), fields
        if tag == "img":
            assert (fields["src"] or "").startswith("/files/")
        elif tag == "a" and (fields["href"] or "")[0] != "#":
            assert fields["rel"] == "noopener noreferrer nofollow"
        self.tags.append((tag, fields))
        self.said += " ".join(value or "" for value in fields.values()) + " "
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    handle_decl = handle_pi = unknown_decl = handle_comment

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [fields for name, fields in self.tags if name == tag]


def drawn(*entries: dict[str, Any], **options: Any) -> Page:
    return Page(
        "\n".join(
            render(entries, RenderOptions(file_url=lambda digest: f"/files/{digest}", **options))
        )
    )


def entry(content: str = "", role: str = "assistant", **fields: Any) -> dict[str, Any]:
    return {"id": "1", "role": role, "content": content, **fields}


def call(name: str, arguments: Any, id: str = "c1") -> dict[str, Any]:
    return {"id": id, "name": name, "arguments": arguments}


def with_it_everywhere(text: str) -> dict[str, Any]:
    about = dict.fromkeys(
        ("id", "from", "model", "reasoning", "topic", "intent", "priority", "timestamp"), text
    )
    files = [
        {"name": text, "text": text},
        {"name": text, "url": text},
        {"name": text, "type": text, "sha256": text},
    ]
    files += [{"name": text, "type": "image/png", "sha256": DIGEST}, {text: text}]
    calls = [
        call(text, text),
        call("Edit", {"file_path": text, "old_string": text, "new_string": ""}),
        {text: text},
    ]
    calls += [
        call("Bash", {"command": text}),
        call("Write", {"path": text, "content": text}),
        call("x", {text: text}),
    ]
    mentions = {"valid": [text], "kinds": {text: text}}
    return entry(
        text,
        **about,
        replyTo=text,
        attachments=files,
        toolCalls=calls,
        mentions=mentions,
        editedAt=text,
    )


@pytest.mark.parametrize("place", range(len(HOSTILE)))
def test_a_hostile_text_in_every_field_stays_text(place: int) -> None:
    text = HOSTILE[place]
    page = drawn(
        with_it_everywhere(text), entry(text, role="tool", id=text, toolCallId=text), find=[text]
    )

    assert (
        escaped(valid(re.sub("\x1b\\[[0-9;]*m", "", text))) in page.text
    )  # The result of a tool is as it was.


@pytest.mark.parametrize("place", range(len(HOSTILE)))
def test_a_hostile_text_as_markdown_says_all_of_its_words(place: int) -> None:
    text = HOSTILE[place]
    page = drawn(entry(text, id="1"))

    fence = re.match(r"```\S*.*\n", text)
    words = re.findall(
        "[a-z]{3,}", re.sub(r"&#?\w+;|%\w\w", " ", text[fence.end() if fence else 0 :]).lower()
    )
    lost = [word for word in words if word not in (page.text + page.said).lower()]
    assert lost == (["png"] if "[![" in text else [])  # The address of an image inside a link.


@given(st.text(max_size=300), st.text(max_size=30))
def test_any_text_in_every_field_stays_text(text: str, name: str) -> None:
    drawn(with_it_everywhere(text), with_it_everywhere(name), find=[name])


@given(st.lists(st.sampled_from(MARKS), max_size=40).map("".join))
def test_any_markdown_stays_text(text: str) -> None:
    drawn(entry(text))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=9),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "path",
                        "edits",
                        "old_string",
                        "new_string",
                        "command",
                        "content",
                        "input",
                        "x",
                    ]
                ),
                inner,
            )
        ),
        max_leaves=12,
    )
)
def test_any_arguments_of_a_call_are_drawn(arguments: Any) -> None:
    drawn(
        entry(
            toolCalls=[call("Edit", arguments)],
            attachments=[{"name": arguments, "type": arguments}],
        )
    )


def test_values_that_are_nested_very_deep_are_drawn() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    drawn(entry(toolCalls=[call("x", deep), call("y", {"a": deep})], attachments=[{"name": deep}]))


def test_markdown_is_drawn_with_tables_and_headings_below_those_of_the_page() -> None:
    page = drawn(entry("# Plan\n\n| a | b |\n|--:|---|\n| 1 | ~~2~~ |\n\n3. three"))

    assert [fields.get("align") for fields in page.of("th")] == ["right", None]
    assert [tag for tag, _ in page.tags if tag in ("h1", "h3", "s")] == ["h3", "s"]
    assert page.of("ol") == [{"start": "3"}]


def test_an_image_of_markdown_is_a_link_and_is_not_loaded() -> None:
    page = drawn(
        entry("![a plan](https://e.org/a.png) and [![b](https://e.org/b.png)](https://e.org/c)")
    )

    assert not page.of("img")
    assert [fields["href"] for fields in page.of("a")] == ["https://e.org/a.png", "https://e.org/c"]
    assert "[image: a plan] and [image: b]" in page.text


def test_code_gets_classes_and_no_style() -> None:
    page = drawn(entry("```python\ndef f(): pass\n```\n\n```nosuch\n<b>\n```"))

    assert {"class": "k"} in page.of("span")
    assert "def f(): pass" in page.text and "<b>" in page.text


def test_a_diff_of_markdown_is_drawn_as_that_of_a_call() -> None:
    page = drawn(entry("```diff\n-a\n+<b>\n```"))
    assert page.of("pre") == [{"class": "diff"}] and len(page.of("ins")) == len(page.of("del")) == 1
    assert "-a\n+<b>" in page.text


def test_long_code_gets_no_colours_and_neither_does_what_comes_after_many_lines() -> None:
    line = "x = 1\n"
    page = drawn(entry(f"```python\n{line * (MAX_CODE_LINES + 1)}```"))
    assert {"class": "mi"} not in page.of("span")
    many = "\n".join(f"```python\n{line * 10}y = {number}\n```" for number in range(20))
    page = drawn(entry(many), lines=100)
    assert page.of("span").count({"class": "mi"}) == 99
    assert page.text.count("x = 1") == 200


def test_code_that_had_no_colours_for_want_of_lines_gets_them_in_another_window() -> None:
    text = "```python\nimportant = 'of another window'\n```"
    assert not TextRenderer(0).markdown(text).count("<span")
    assert TextRenderer(10).markdown(text).count("<span")
    assert TextRenderer(0).markdown(text).count("<span")  # It takes no time any more.


def test_a_text_of_more_than_a_megabyte_is_escaped() -> None:
    page = drawn(entry("**a** <b>" * 200_000))
    assert not page.of("strong") and len(page.text) > 1_800_000


def test_text_that_is_nested_too_deep_for_markdown_is_not_cut() -> None:
    page = drawn(entry("> " * 100 + "at the end"))
    assert "at the end" in page.text


def test_the_cache_keeps_so_many_characters_and_what_was_used_last() -> None:
    cache = HtmlCache(10)
    for key in (b"a", b"b"):
        cache.put(key, "12345")
    cache.get(b"a")
    cache.put(b"c", "12345")
    assert [key for key in (b"a", b"b", b"c") if cache.get(key)] == [b"a", b"c"]
    cache.put(b"d", "x" * 11)
    assert not cache.get(b"d")


@pytest.mark.parametrize(
    ("name", "arguments", "summary"),
    [
        ("Read", {"file_path": "capsule/store/store.py"}, "Read capsule/store/store.py"),
        ("read_file", {"target_file": "a.py"}, "read_file a.py"),
        ("Bash", {"command": "make test\nls", "description": "Run"}, "Bash: make test"),
        ("shell", {"command": ["bash", "-lc", "ls -l"]}, "shell: ls -l"),
        ("local_shell", {"type": "exec", "command": ["ls", "a b"]}, "local_shell: ls 'a b'"),
        ("exec_command", '{"cmd": "ls"}', "exec_command: ls"),
        ("Edit", {"file_path": "f.py", "old_string": "a\nb", "new_string": "a\nB\nc"}, ("Edit f.py "
                                                                                       "(+2 −1)")),
        ("edit", {"filePath": "f.py", "oldString": "--- a", "newString": ""}, "edit f.py (+0 −1)"),
        ("MultiEdit", {"file_path": "f", "edits": [{"old_string": "a", "new_string": "b"}]}, "MultiEdit f (+1 −1)"),
        ("edit_tool", {"command": "create", "path": "f", "file_text": "a\nb"}, ("edit_tool f (2 "
                                                                               "lines)")),
        ("str_replace_editor", {"command": "view", "path": "f"}, "str_replace_editor: view in f"),
        ("Write", {"file_path": "f.py", "content": "a"}, "Write f.py (1 line)"),
        ("apply_patch", PATCH, "apply_patch a.py (+2 −1)"),
        ("shell", {"command": ["apply_patch", PATCH]}, "shell a.py (+2 −1)"),
        ("patch", {"diff": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-1\n+2"}, "patch x (+1 −1)"),
        ("Grep", {"pattern": "def f", "path": "src"}, "Grep: def f in src"),
        ("Task", {"description": "look", "prompt": "Find the logo"}, "Task: look"),
        ("web_search", {"type": "search", "query": "routes"}, "web_search: routes"),
        ("add", {"a": 2}, 'add: {"a":2}'),
        ("noop", {}, "noop"),
        ("", None, "Tool"),
    ],
)  # fmt: skip
def test_a_call_is_said_in_a_line(name: str, arguments: Any, summary: str) -> None:
    assert describe_call(call(name, arguments))[0] == summary
    assert describe_call({"function": {"name": name, "arguments": arguments}})[0] == summary


def test_an_edit_is_a_diff_with_signs_and_what_else_the_call_says() -> None:
    arguments = {
        "file_path": "f",
        "old_string": "one\ntwo",
        "new_string": "one\n<b>",
        "replace_all": True,
    }
    page = Page(render([entry(toolCalls=[call("Edit", arguments)])])[0])

    assert "-two\n+<b>" in page.text and "replace_all" in page.text
    assert (len(page.of("ins")), len(page.of("del"))) == (1, 1)


def test_code_that_a_call_writes_has_the_colours_of_its_language() -> None:
    page = drawn(
        entry(toolCalls=[call("Write", {"file_path": "src/a.py", "content": "import os"})])
    )
    assert {"class": "kn"} in page.of("span")
    names = {
        "a.py": "python",
        "b/Makefile": "make",
        "a.sql": "sql",
        "a.h": "c",
        "a.html": "html",
        "a.nosuch": "",
        "": "",
    }
    assert {name: language_of(name) for name in names} == names


def test_every_argument_is_drawn_also_of_edits_in_one_call() -> None:
    edits = [{"old_string": "a", "new_string": "b", "replace_all": True}]
    assert (
        "replace_all"
        in drawn(entry(toolCalls=[call("MultiEdit", {"file_path": "f", "edits": edits})])).text
    )
    long = {"file_path": "a" * 300 + "/last"}
    assert "/last" in drawn(entry(toolCalls=[call("Read", long)])).text


def test_a_result_stands_under_its_call_and_keeps_its_anchor() -> None:
    calls = [call("Bash", {"command": "ls"}, "a"), call("Bash", {"command": "pwd"}, "b")]
    first, second = (
        entry("x\ny", "tool", id="3", toolCallId="b"),
        entry("z", "tool", id="4", toolCallId="a"),
    )
    second["metadata"] = {"isError": True}
    window = [
        entry("go", "user"),
        entry(id="2", toolCalls=calls),
        first,
        second,
        entry("of none", "tool", id="5", toolCallId="a"),
    ]
    made = messages(window)

    assert [message.anchor for message in made] == ["m-1", "m-2", "m-5"]
    assert [fold.results[0].anchor for fold in made[1].calls] == ["m-4", "m-3"]
    assert [fold.summary for fold in made[1].calls] == [
        "Bash: ls · error, 1 line",
        "Bash: pwd · 2 lines",
    ]
    assert {"m-3", "m-4"} <= {fields.get("id") for fields in drawn(*window).of("div")}
    assert messages(window[2:3])[0].fold


@pytest.mark.parametrize(
    "path", [path for _, path in EXAMPLES], ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_each_message_of_every_program_is_there_once_with_what_it_says(path: Path) -> None:
    for document in read(path)[0]:
        history = document["history"]
        page = drawn(*history)
        anchors = [
            fields["id"]
            for _, fields in page.tags
            if (fields.get("id") or "").startswith(("m-", "h-"))
        ]
        assert sorted(id for id in anchors if id and not id.endswith("-by")) == sorted(
            map(anchor_of, history)
        )
        assert [message["content"] for message in history if message["role"] == "tool"] == [
            message["content"]
            for message in history
            if message["role"] == "tool" and message["content"] in page.text
        ]


def test_a_result_of_another_branch_stands_alone() -> None:
    window = [entry("go", "user"), entry(id="2", toolCalls=[call("f", {})])]
    window += [entry("r", "tool", id="3", toolCallId="c1", parent="1")]
    assert [message.anchor for message in messages(window)] == ["m-1", "m-2", "m-3"]


def test_ids_of_calls_that_come_again_belong_to_the_last_call() -> None:
    result = entry("r", "tool", toolCallId="c1")
    window = [entry(id="1", toolCalls=[call("f", {})]), {**result, "id": "2"}]
    window += [entry(id="3", toolCalls=[call("g", {})]), {**result, "id": "4"}]
    assert [message.calls[0].results[0].anchor for message in messages(window)] == ["m-2", "m-4"]


def test_reactions_stand_below_what_they_are_about() -> None:
    (message,) = messages(
        [
            entry("done"),
            entry("👍", "user", id="2", intent="reaction", replyTo="1", **{"from": "anna"}),
        ]
    )
    assert [(reaction.who, reaction.anchor) for reaction in message.reactions] == [("anna", "m-2")]


def test_what_is_folded_is_open_if_it_has_a_searched_word() -> None:
    result = entry("the Größe of it", "tool", id="2", toolCallId="c1")
    window = [entry(reasoning="Many thoughts", toolCalls=[call("Bash", {"command": "ls"})]), result]

    assert [fields.get("open", 0) for fields in drawn(*window).of("details")] == [0, 0]
    assert [
        fields.get("open", 0) for fields in drawn(*window, find=["grosse", "GROẞE"]).of("details")
    ] == [0, None]
    assert [
        fields.get("open", 0) for fields in drawn(*window, find=["thought", " "]).of("details")
    ] == [None, 0]


def test_only_prompts_and_answers_are_drawn_without_what_tools_do() -> None:
    window = [
        entry("go", "user"),
        entry("looking", id="2", reasoning="hm", toolCalls=[call("f", {})]),
    ]
    window += [
        entry("r", "tool", id="3", toolCallId="c1"),
        entry(" ", id="4"),
        entry("made", "user", id="5", metadata={"hidden": True}),
    ]
    page = drawn(*window, talk=True)
    assert [is_talk(message) for message in window] == [True, True, False, False, False]
    assert [fields["id"] for fields in page.of("article")] == ["m-1", "m-2"] and not page.of(
        "details"
    )


def test_a_message_says_who_when_and_what_about() -> None:
    said = {
        "from": "anna",
        "model": "m-1",
        "topic": "bees",
        "priority": "high",
        "confidence": 0.8,
        "replyTo": "0",
    }
    said |= {
        "mentions": {"valid": ["bo", "@all"], "kinds": {"bo": "review"}},
        "editedAt": "2026-01-02T11:00:00Z",
    }
    page = drawn(entry(timestamp="2026-01-02T10:00:00.000Z", **said))

    for text in ("anna", "m-1", "bees", "high", "80% sure", "@bo (review)", "@all"):
        assert text in page.text
    assert [fields["datetime"] for fields in page.of("time")] == [
        "2026-01-02T10:00:00.000Z",
        "2026-01-02T11:00:00.000Z",
    ]
    assert "#m-0" in [fields["href"] for fields in page.of("a")]


@pytest.mark.parametrize("time", [None, "1970-01-01T00:00:00.000Z", "yesterday", 12, ""])
def test_a_time_that_is_not_known_is_not_shown(time: Any) -> None:
    assert not drawn(entry(timestamp=time)).of("time")


def test_attachments_are_images_links_and_texts() -> None:
    svg = {"name": "b.svg", "type": "image/svg+xml", "sha256": DIGEST}
    files = [
        {"name": "a.png", "type": "image/png", "sha256": DIGEST},
        svg,
        {"name": "n.txt", "text": "one\ntwo"},
    ]
    page = drawn(
        entry(
            attachments=[*files, {"name": "e", "type": "image/png", "url": "https://e.org/e.png"}]
        )
    )

    assert [fields["src"] for fields in page.of("img")] == [f"/files/{DIGEST}"]
    assert [(fields["href"], "download" in fields) for fields in page.of("a")] == [
        (f"/files/{DIGEST}", True), ("https://e.org/e.png", False),
    ]  # fmt: skip
    assert "n.txt, 2 lines" in page.text and "one\ntwo" in page.text
    both = drawn(
        entry(
            attachments=[
                {"name": "a.pdf", "type": "application/pdf", "text": "of it", "sha256": DIGEST}
            ]
        )
    )
    assert both.of("a")[0]["href"] == f"/files/{DIGEST}" and "of it" in both.text
    assert (
        drawn(
            entry(attachments=[{"name": "a.png", "type": "image/png", "sha256": "../" + DIGEST}])
        ).of("img")
        == []
    )


def test_names_look_the_same_each_time_and_differ_in_colour_and_shape() -> None:
    assert (
        name_style("anna")
        == name_style("anna")
        == (messages([entry(**{"from": "anna"})])[0].hue, name_style("anna")[1])
    )
    looks = [name_style(f"agent-{number}") for number in range(300)]
    assert {hue for hue, _ in looks} == set(range(rendering.HUES))
    assert {shape for _, shape in looks} == set(range(rendering.SHAPES))
    shapes = {
        render([entry(model=f"model {number}")])[0].split(' d="')[1][:40] for number in range(100)
    }
    assert len(shapes) == rendering.SHAPES


def test_anchors_are_different_for_different_ids_and_fit_into_an_address() -> None:
    ids = [
        "a",
        "A",
        "a b",
        "a\tb",
        "",
        "é",
        "x" * 500,
        "x" * 501,
        '"><img>',
        "019b7f3c-1c2d-7a10-8e51-6f0b2d3c4e5f",
    ]
    anchors = [anchor_of({"id": id}) for id in ids]
    assert len(set(anchors)) == len(ids)
    assert all(re.fullmatch(r"[\w.-]+", anchor, re.ASCII) for anchor in anchors)


def rgb(colour: str) -> list[float]:
    """A colour of CSS, `#abc`, `#aabbcc` or `oklch(L% C H)`, as parts of light."""
    if colour.startswith("#"):
        signs = colour[1:] if len(colour) == 7 else "".join(sign * 2 for sign in colour[1:])
        parts = [int(signs[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        return [
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        ]
    light, strong, hue = (float(part.rstrip("%")) for part in colour[6:-1].split())
    light, a, b = (
        light / 100,
        strong * math.cos(math.radians(hue)),
        strong * math.sin(math.radians(hue)),
    )
    long = (light + 0.3963377774 * a + 0.2158037573 * b) ** 3
    middle = (light - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (light - 0.0894841775 * a - 1.2914855480 * b) ** 3
    parts = [4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short]
    parts += [-1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short]
    parts += [-0.0041960863 * long - 0.7034186147 * middle + 1.7076147010 * short]
    return [min(1, max(0, part)) for part in parts]


def contrast(one: str, other: str) -> float:
    lights = sorted(
        sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), rgb(it), strict=True))
        for it in (one, other)
    )
    return (lights[1] + 0.05) / (lights[0] + 0.05)


@pytest.mark.parametrize("mode", [0, 1])
def test_every_colour_can_be_read_in_light_and_in_dark(mode: int) -> None:
    css = STYLES.read_text("utf-8")
    pairs = re.findall(r"--([\w-]+): light-dark\(((?:[^(),]|\(.*?\(.*?\)\))*), (.*?)\);", css)
    values = {name: (light, dark)[mode] for name, light, dark in pairs}
    for name in (
        "text",
        "faint",
        "link",
        "comment",
        "keyword",
        "name",
        "string",
        "number",
        "added",
        "removed",
    ):
        for back in ("back", "block"):
            assert contrast(values[name], values[back]) >= 4.5, (name, back)
    for name in ("added", "removed"):
        assert contrast(values[name], values[f"{name}-back"]) >= 4.5
    assert contrast(values["line"], values["back"]) >= 3
    hues = re.findall(r"--hue: (\d+);", css)
    assert len(hues) == rendering.HUES
    for hue in hues:
        own = values["own"].replace("var(--hue)", hue).removesuffix(")") + ")"
        assert contrast(own, values["back"]) >= 4.5, hue
