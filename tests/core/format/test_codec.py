"""The codec: nothing is lost, nothing is changed, and every refusal names its place."""

from __future__ import annotations

import datetime
import enum
import json
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from capsule.errors import InvalidDocument, InvalidInput
from capsule.format.json import codec

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4)
)
documents = st.dictionaries(texts, values, max_size=5)
number_tokens = st.from_regex(
    r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,4})?", fullmatch=True
)


def problem(data: bytes) -> Any:
    with pytest.raises(InvalidDocument) as caught:
        codec.decode(data, "c.json")
    return caught.value.problems[0]


def nested(levels: int, document: bool = True) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value} if document else [value]
    return value


@given(documents)
def test_an_encoded_document_decodes_to_the_same(document: dict[str, Any]) -> None:
    data = codec.encode(document)
    again = codec.decode(data, "c.json")
    assert again == document
    assert list(again) == list(document)
    assert codec.encode(again) == data
    assert data == orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


@given(st.lists(number_tokens, min_size=1, max_size=8))
@example(
    [
        "12345678901234567890123",
        "-0",
        "2.50",
        "1e999",
        "1E5",
        "18446744073709551616",
        "-9223372036854775809",
    ]
)
@example(["0", "-1", "18446744073709551615", "-9223372036854775808", "-0.0", "1e-7", "9" * 5000])
def test_every_number_keeps_its_digits(tokens: list[str]) -> None:
    data = ('{\n  "n": [\n    ' + ",\n    ".join(tokens) + "\n  ]\n}\n").encode()
    document = codec.decode(data, "c.json")
    assert codec.encode(document) == data
    assert codec.encode_entry(document).split() == data.split()


@given(documents)
def test_an_entry_stands_as_it_stands_in_a_file(entry: dict[str, Any]) -> None:
    file = codec.encode({"history": [entry]})
    assert file == b'{\n  "history": [\n' + codec.encode_entry(entry) + b"\n  ]\n}\n"


@given(documents, st.booleans(), st.booleans())
def test_escapes_crlf_and_a_byte_order_mark_are_read(
    document: dict[str, Any], ascii_only: bool, mark: bool
) -> None:
    text = json.dumps(document, ensure_ascii=ascii_only, indent=1).replace("\n", "\r\n")
    data = text.encode("utf-8-sig" if mark else "utf-8")
    # Python writes some floats with other digits than orjson, which are kept: 1e-08.
    assert json.loads(codec.encode(codec.decode(data, "c.json"))) == document


@given(
    st.binary(max_size=60)
    | st.text('{}[]",:\\u0d8 \n01-.eEtrufalsn\x00é', max_size=40).map(str.encode)
)
def test_arbitrary_bytes_raise_only_errors_of_ours(data: bytes) -> None:
    try:
        document = codec.decode(data, "c.json")
    except InvalidDocument as error:
        places = {(found.line >= 1, found.column >= 1) for found in error.problems}
    else:
        codec.decode(codec.encode(document), "c.json")
        return
    assert places == {(True, True)}


def test_an_invalid_document_is_refused_with_its_place() -> None:
    for data, line, column, says in [
        (b"", 1, 1, "empty"),
        (b"{", 1, 2, "ends in the middle"),
        (b'{\n "a": 1,\n}', 2, 8, "comma too many"),
        (b"{'a': 1}", 1, 2, "double quotes"),
        (b'{"a" 1}', 1, 6, "colon"),
        (b'{"a": [1 2]}', 1, 10, "comma"),
        (
            b'{\r\n<<<<<<< ours\r\n"a": 1\r\n=======\r\n"a": 2\r\n>>>>>>> theirs\r\n}',
            2,
            1,
            "git checkout --ours",
        ),
        (b'{"a": 1\n=======\n}', 2, 1, "comma"),
        (b'{"a": tru}', 1, 7, "value"),
        (b'{"a": "abc', 1, 7, "no closing quote"),
        (b'{"a": "\\q"}', 1, 8, "backslash"),
        (b"{} x", 1, 4, "remove what follows"),
        (b"{}\0\0\0", 1, 3, "NUL"),
        (b'{"a": "\x01"}', 1, 8, "U+0001"),
        (b'{"a": "x\n"}', 1, 9, "line break"),
        (b'{"a": NaN}', 1, 7, "NaN is not a JSON number"),
        (b'{"a": 1,\n "b": 2, "a": 3}', 2, 10, "'a'"),
        (b'{"a": 1, "\\u0061": 3}', 1, 10, "'a'"),
        (b'{"a": "x\\ud800"}', 1, 9, "\\ud800"),
        (b'{"a": "\\ud83d\\ude00\\ude00"}', 1, 20, "\\ude00"),
        (b'{"\\udfff": 1}', 1, 3, "\\udfff"),
        (b'{"a": "\xff"}', 1, 8, "0xff is not valid UTF-8"),
        ("{}".encode("utf-16"), 1, 1, "UTF-16"),
        (b'\xef\xbb\xbf{"a": x}', 1, 7, "value"),
        (b'{"\xc3\xa9\xf0\x9f\x90\x9b": x}', 1, 8, "value"),
        (b"[1]", 1, 1, "a list"),
        (b"null", 1, 1, "null"),
        (b"12", 1, 1, "a number"),
    ]:
        found = problem(data)
        assert (found.path, found.line, found.column) == ("c.json", line, column)
        assert says in found.what
        assert str(found).startswith(f"c.json:{line}:{column}: ")


def test_pairs_of_surrogates_are_characters() -> None:
    assert codec.decode(rb'{"a": "\ud83d\udc1b \\ud800"}', "c.json") == {"a": "\U0001f41b \\ud800"}


def test_nesting_goes_as_deep_as_can_be_written_back() -> None:
    deepest = json.dumps(nested(codec.MAX_DEPTH)).encode()
    assert codec.decode(codec.encode(codec.decode(deepest, "c.json")), "c.json") == nested(
        codec.MAX_DEPTH
    )
    found = problem(b'{"a":' * (codec.MAX_DEPTH + 1) + b"1" + b"}" * (codec.MAX_DEPTH + 1))
    assert (found.line, found.column) == (1, 5 * codec.MAX_DEPTH + 1)
    assert "254 levels" in found.what


def test_nesting_beyond_all_measure_is_an_invalid_document() -> None:
    for opening in [b"[", b'{"a":', b'[{"a":']:
        assert "254 levels" in problem(opening * 100_000).what


def test_an_entry_may_be_as_deep_as_its_file_can_be_read_again() -> None:
    entry = {"a": nested(codec.MAX_DEPTH - 3, document=False)}
    data = b'{"history": [' + codec.encode_entry(entry) + b"]}"
    assert codec.decode(data, "c.json") == {"history": [entry]}
    with pytest.raises(InvalidInput, match="254 levels"):
        codec.encode_entry({"a": entry})


class Colour(enum.StrEnum):
    RED = "red"


class Word(str):
    pass


_CYCLE: dict[str, Any] = {}
_CYCLE["again"] = [_CYCLE]


def test_a_value_that_json_lacks_is_refused_by_its_path() -> None:
    for document, says in [
        ({"a": {"b": ["x", "\ud800"]}}, r"^a\.b\[1\]: .*surrogate"),
        ({"a": {"\udfff": 1}}, "^a: .*surrogate"),
        ({"a": [1.0, float("nan")]}, r"^a\[1\]: nan"),
        ({"a": float("inf")}, "^a: inf"),
        ({"a": {"b": float("-inf")}}, r"^a\.b: -inf"),
        ({"a": 2**64}, "^a: .*64 bits"),
        ({"a": -(2**63) - 1}, "^a: .*64 bits"),
        ({"a": {1: 2}}, "^a: the key 1"),
        ({Word("a"): 1}, "the key 'a'"),
        ({"a": {"b": {1, 2}}}, r"^a\.b: .*set"),
        ({"a": b"x"}, "^a: .*bytes"),
        ({"a": Colour.RED}, "^a: .*Colour"),
        ({"a": datetime.datetime(2025, 1, 1)}, "^a: .*datetime"),
        ({"a": object()}, "^a: .*object"),
        (_CYCLE, "254 levels"),
    ]:
        with pytest.raises(InvalidInput, match=says):
            codec.encode(document)
        with pytest.raises(InvalidInput, match=says):
            codec.encode_entry(document)
