"""JSON out of a stream: the elements of one large array, the lines of a log, or one object, each
with its line.

What must stay true: no more than one value and one chunk is in memory. What is damaged is reported
by line and read around, and nothing here raises for it. Pure: it takes chunks of bytes.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from math import isfinite
from typing import Any, Literal

import orjson

#: The largest value (a line, an element, a file with one object) that is read, in bytes.
MAX_VALUE_BYTES = 64 << 20
#: What is reported of a file whose last value is not complete.
END_MISSING = "the end is missing"
Shape = Literal["array", "lines", "object", ""]
Record = tuple[int, dict[str, Any]]
#: Takes what is wrong, and the line.
ReportProblem = Callable[[str, int | None], None]


def _real(text: str) -> float | None:
    return number if isfinite(number := float(text)) else None


_decoder = json.JSONDecoder(
    strict=False,
    parse_constant=lambda name: (
        None
    ),  # NaN has no place in JSON, nor has a number that is too large.
    parse_float=_real,
    parse_int=lambda text: int(text) if len(text) < 20 else _real(text),
)
_TOKEN = r'(?s)"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\],"]'
_GAP = re.compile(r"[\s,\0\ufeff]*")
_LONE = r"[\ud800-\udfff]"
#: So much of a possible element is looked at, in characters.
_LOOK = 4096
#: So many objects and lists inside each other are completed: more than a capsule may have is of no
#: use.
_DEEPEST = 250
#: So many elements of one array that are nested too deep are read around: what comes then lies in
#: one of them.
_MOST_DEEP = 100
#: So many characters of a buffer may be read already: the place of each error is counted from its
#: beginning.
_SPENT = 1 << 15
_ENDS = {"{": "}", "[": "]"}
#: So many values tell the format of a file.
_FIRST = 50
#: How a file in UTF-16 begins, as some consoles write it.
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def complete_prefix(text: str) -> Any:
    """The value that begins with `text`, as far as it is complete there. None: nothing is."""
    with suppress(ValueError, RecursionError):
        return _loaded(text)
    ends: list[str] = []
    cut = 0
    for token in re.finditer(_TOKEN, text):
        sign = token[0]
        if sign in _ENDS:
            if len(ends) == _DEEPEST:
                break
            ends.append(_ENDS[sign])
            cut = token.end()
        elif sign in "}]":
            if not ends or ends[-1] != sign:
                break
            ends.pop()
            cut = token.end()
        elif sign == ",":
            cut = token.start()
        elif sign == '"':
            break
        else:
            continue
        if not ends:
            break
    try:
        return _loaded(text[:cut] + "".join(reversed(ends)))
    except (ValueError, RecursionError):
        return None


def _sound(text: str) -> tuple[Any, Exception | None]:
    """A value, or what is complete of it before its first fault, and the fault."""
    try:
        return _loaded(text), None
    except (ValueError, RecursionError) as error:
        is_cut = "Unterm" in str(error)
        return complete_prefix(
            text if is_cut else text[: getattr(error, "pos", 0) or len(text)]
        ), error


@lru_cache(maxsize=4)  # Each format asks for it, of the same file.
def shape_of(head: bytes) -> Shape:
    """What the file that begins so consists of; empty: not of JSON."""
    text = _begin(head)
    if text[:1] == "[":
        return "array"
    first, newline, _ = text.partition("\n")
    if re.search(r"^\{", text, re.MULTILINE) is None:
        return ""
    if not newline or "\n{" in text or not text.startswith("{"):
        return "lines"
    try:
        return "lines" if isinstance(_loaded(first), dict) else ""
    except (ValueError, RecursionError):
        return "object"


def _begin(head: bytes) -> str:
    return head.decode("utf-16" if head.startswith(_UTF16) else "utf-8", "replace").lstrip(
        "\ufeff\0 \t\r\n"
    )


@lru_cache(maxsize=4)
def first_values(head: bytes) -> tuple[dict[str, Any], ...]:
    """The first objects of a file that begins so, not to be changed; the last one may be cut."""
    shape, text = shape_of(head), _begin(head)
    if shape == "array":
        return tuple(
            value for _, value in islice(_elements(iter([text]), lambda reason, line: None), _FIRST)
        )
    lines = [text] if shape == "object" else text.split("\n", _FIRST)[:_FIRST]
    values = [_sound(line)[0] for line in lines if line.lstrip()[:1] == "{"]
    return tuple(value for value in values if isinstance(value, dict))


def json_records(chunks: Iterable[bytes], head: bytes, tell: ReportProblem) -> Iterator[Record]:
    """The objects of a file, each with the line at which it begins.

    `head` is the beginning of the file, and `tell` takes each damage.
    """
    shape = shape_of(head)
    if head.startswith(_UTF16):
        chunks = codecs.iterencode(
            codecs.iterdecode(iter(chunks), "utf-16", "replace"), "utf-8", "replace"
        )
    if shape == "array":
        return _elements(_texts(chunks, tell), tell)
    return _lines(chunks, tell) if shape == "lines" else _object(chunks, tell)


def _loaded(text: str) -> Any:
    value = _decoder.decode(text)
    return without_surrogates(value) if "\\u" in text else value


def without_surrogates(value: Any) -> Any:
    """The value without halves of characters, which no file can hold."""
    if isinstance(value, str):
        return re.sub(_LONE, "\ufffd", value)
    if isinstance(value, list):
        return [without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {without_surrogates(key): without_surrogates(item) for key, item in value.items()}
    return value


def _too_large(tell: ReportProblem, line: int) -> None:
    tell(f"a value of more than {MAX_VALUE_BYTES >> 20} MB is refused", line)


def _object(chunks: Iterable[bytes], tell: ReportProblem) -> Iterator[Record]:
    data = bytearray()
    for chunk in chunks:
        data += chunk
        if len(data) > MAX_VALUE_BYTES:
            return _too_large(tell, 1)
    text = "".join(_texts([bytes(data)], tell)).lstrip("\ufeff\0 \t\r\n").rstrip("\0 \t\r\n")
    value, fault = _sound(text)
    if fault is not None:
        tell(_reason(fault), getattr(fault, "lineno", None))
    if isinstance(value, dict):
        yield 1, value


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deep"
    return (
        f"no valid JSON: {error.msg}"
        if isinstance(error, json.JSONDecodeError)
        else f"no valid JSON: {error}"
    )


def _texts(chunks: Iterable[bytes], tell: ReportProblem) -> Iterator[str]:
    """The text of chunks. What is not valid UTF-8 is replaced and reported."""
    rest, line = b"", 1
    for chunk in chunks:
        data = rest + chunk
        try:
            text, rest = data.decode(), b""
        except UnicodeDecodeError as error:
            at = (
                error.start if error.end == len(data) and len(data) - error.start < 4 else len(data)
            )
            rest = data[at:]
            try:
                text = data[:at].decode()
            except UnicodeDecodeError as wrong:
                tell("not UTF-8", line + data.count(b"\n", 0, wrong.start))
                text = data[:at].decode("utf-8", "replace")
        line += text.count("\n")
        yield text
    if rest:
        tell("not UTF-8", line)


def split_lines(chunks: Iterable[bytes], tell: ReportProblem) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers from 1, and their ends. One that is too large is
    reported and skipped.
    """
    rest, line, is_skipped = b"", 1, False
    for chunk in chunks:
        *whole, last = chunk.split(b"\n")
        for part in whole:
            if not is_skipped:
                yield line, rest + part + b"\n"
            rest, line, is_skipped = b"", line + 1, False
        rest += last
        if is_skipped or len(rest) > MAX_VALUE_BYTES:
            if not is_skipped:
                _too_large(tell, line)
            rest, is_skipped = b"", True
    if rest:
        yield line, rest


def _lines(chunks: Iterable[bytes], tell: ReportProblem) -> Iterator[Record]:
    keys: set[str] = set()
    for line, data in split_lines(chunks, tell):
        try:
            value = orjson.loads(data if line > 1 else data.removeprefix(codecs.BOM_UTF8))
        except ValueError:
            if data.strip(b"\0 \t\r\n\xef\xbb\xbf"):
                yield from ((line, value) for value in _mended(line, data, keys, tell))
            elif b"\0" in data:
                tell("a line of NULs", line)
            continue
        if isinstance(value, dict):
            keys = keys or set(value)
            yield line, value
        else:
            tell("no JSON object", line)


def _mended(
    line: int, data: bytes, keys: set[str], tell: ReportProblem
) -> Iterator[dict[str, Any]]:
    """The objects that can be read of a line that is no valid JSON: several, or what another one
    was written over.

    The keys of another record tell a record from what is in one.
    """
    text = data.decode("utf-8", "replace").replace("\0", "").strip("\ufeff \t\r\n")
    at, values, reason, failures = 0, [], "", 0
    while (at := text.find("{", at)) >= 0:
        try:
            value, end = _decoder.raw_decode(text, at)
            if not reason or (len(keys & set(value)) > 1 and text[end : end + 1] in ("", "{")):
                values.append(without_surrogates(value))
            at = end
        except (ValueError, RecursionError) as error:
            reason, failures = reason or _reason(error), failures + 1
            at = text.find('{"', at + 1)
            if (
                at < 0 or not keys or failures > _DEEPEST
            ):  # It fails for each object around what is damaged.
                break
    if line == 1 and not values and not keys and isinstance(value := _sound(text)[0], dict):
        values = [value]
    if reason and not data.endswith(b"\n"):
        reason = END_MISSING
    tell(
        reason
        or (
            "several records in one line"
            if len(values) > 1
            else "characters that JSON does not have"
        ),
        line,
    )
    yield from values


def _elements(texts: Iterator[str], tell: ReportProblem) -> Iterator[Record]:
    buffer, line, counted, is_open = "", 1, 0, True
    keys: list[str] = []
    deep = 0
    for begin in texts:
        buffer += begin
        if "[" in begin:
            break
    at = buffer.find("[") + 1
    while True:
        at = _GAP.match(buffer, at).end()  # type: ignore[union-attr]  # It matches anywhere.
        ended = at < len(buffer) and buffer[at] == "]"
        if ended or (at >= len(buffer) and not is_open):
            break
        error: Exception | None = None
        if at < len(buffer):
            try:
                value, end = _decoder.raw_decode(buffer, at)
            except (ValueError, RecursionError) as wrong:
                error = wrong
        if at >= len(buffer) or (
            is_open and _may_be_cut(error, buffer) and len(buffer) - at <= MAX_VALUE_BYTES
        ):
            line, counted = line + buffer.count("\n", counted, at), 0
            more, wanted = [buffer[at:]], max(len(buffer) - at, 1)
            while wanted > 0 and (text := next(texts, None)) is not None:
                more.append(text)
                wanted -= len(text)
            is_open = wanted <= 0
            buffer, at = "".join(more), 0
            continue
        line, counted = line + buffer.count("\n", counted, at), at
        if error is None:
            at = end
            if isinstance(value, dict):
                keys = keys or list(value)[:2]
                yield (
                    line,
                    without_surrogates(value) if buffer.find("\\ud", counted, end) >= 0 else value,
                )
            else:
                tell("no JSON object", line)
            continue
        deep += isinstance(error, RecursionError)
        if deep > _MOST_DEEP:
            return tell("nested too deep: the rest is left out", line)
        keys = keys or _keys(buffer[at : at + _LOOK])
        if len(buffer) - at > MAX_VALUE_BYTES:
            _too_large(tell, line)
        else:
            place = getattr(error, "pos", at)
            tell(_reason(error), line + buffer.count("\n", at, place))
            value = complete_prefix(
                buffer[at:] if "Unterm" in str(error) else buffer[at : max(place, at + 1)]
            )
            if isinstance(value, dict) and value:
                yield line, value
        buffer, at, line, is_open = _next_element(buffer, at, line, keys, texts)
        counted = at
    if not ended:
        tell(END_MISSING, line + buffer.count("\n", counted))


def _keys(text: str) -> list[str]:
    """The first two keys of the object with which a text begins, which may be damaged."""
    keys, depth = list[str](), 0
    for token in re.finditer(_TOKEN, text):
        sign = token[0]
        depth += (sign in _ENDS) - (sign in "}]")
        if depth == 1 and len(sign) > 1 and text[token.end() :].lstrip().startswith(":"):
            keys.append(sign[1:-1])
        if depth == 0 or len(keys) == 2:
            break
    return keys


def _may_be_cut(error: Exception | None, buffer: str) -> bool:
    """Whether a value may only lack what comes after the buffer."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.msg.startswith("Unterminated") or error.pos >= len(buffer) - 12


def _next_element(
    buffer: str, at: int, line: int, keys: list[str], texts: Iterator[str]
) -> tuple[str, int, int, bool]:
    """The place after a damaged element at which the next one begins: one with the same
    first keys.
    """
    first = f'"{re.escape(keys[0])}"' if keys else ""
    start = re.compile(rf"[,\[]\s*(\{{\s*{first})")
    begin = at + 1
    while True:
        for match in start.finditer(buffer, begin):
            place = match.start(1)
            look = buffer[place : place + _LOOK]
            value = (
                complete_prefix(look) if all(f'"{key}"' in look for key in keys) else None
            )  # Nearly none has them all.
            if isinstance(value, dict) and list(value)[: max(len(keys), 1)] == (
                keys or list(value)[:1]
            ):
                line, spent = line + buffer.count("\n", at, place), place if place > _SPENT else 0
                return buffer[spent:], place - spent, line, True
        keep = max(
            begin, len(buffer) - _LOOK
        )  # An element that begins here may show more of itself.
        text = next(texts, None)
        if text is None:
            return buffer, len(buffer), line + buffer.count("\n", at), False
        line += buffer.count("\n", at, keep)
        buffer, at, begin = buffer[keep:] + text, 0, 0
