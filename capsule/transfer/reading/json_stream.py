"""Read JSON from a stream: the elements of one array, the lines of a log, or one object.

Each value comes with the line where it begins. The beginning of a file decides which of the
three forms it has. An array is read through a buffer, which is filled with the next text if a value
may be cut at its end. After a damaged element, reading continues at the next object that begins
with the same keys as the elements before it.

What must stay true: the memory does not grow with the file, but only with its largest value (at
most MAX_VALUE_BYTES). Damage is reported by line and read around, and nothing here
raises for it. The input is chunks of bytes: nothing here opens a file.
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
#: The problem of a file whose last value is not complete.
END_MISSING = "the end is missing"
#: The form of a file. Empty: it has no JSON.
Shape = Literal["array", "lines", "object", ""]
#: An object, after the line where it begins.
Record = tuple[int, dict[str, Any]]
#: Gets a problem and its line.
ReportProblem = Callable[[str, int | None], None]


def _real(text: str) -> float | None:
    """Return a number. None: it is too large for JSON."""
    number = float(text)
    return number if isfinite(number) else None


def _integer(text: str) -> float | None:
    """Return a number. One of 20 characters or more may need over 64 bits, and becomes a float."""
    return int(text) if len(text) < 20 else _real(text)


def _no_constant(name: str) -> None:
    """Return None for NaN and Infinity, which JSON does not have."""


_decoder = json.JSONDecoder(
    strict=False, parse_constant=_no_constant, parse_float=_real, parse_int=_integer
)
#: A text, or a sign of the syntax. A single quotation mark: a text without an end.
_TOKEN = r'(?s)"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\],"]'
#: What may be between two elements.
_GAP = re.compile(r"[\s,\0\ufeff]*")
_SURROGATE = r"[\ud800-\udfff]"
#: The beginning of the escape of a surrogate (and of a few other characters).
_SURROGATE_ESCAPE = re.compile(r"\\u[dD]")
#: The part of a possible element that is examined, in characters.
_PREVIEW_CHARS = 4096
#: The deepest nesting that is completed. A capsule may not have more.
_MAX_COMPLETED_DEPTH = 250
#: The elements of an array with too deep nesting that are read around. All later ones are inside
#: one of them.
_MAX_DEEP_ELEMENTS = 100
#: The part of a buffer that may be read already, in characters. The position of each error is
#: counted from the beginning of the buffer.
_MAX_READ_CHARS = 1 << 15
#: An error so near to the end of a buffer may come from a cut, in characters.
_CUT_CHARS = 12
#: The sign that closes each object or list.
_ENDS = {"{": "}", "[": "]"}
#: The number of values that decide the format of a file.
_FIRST_VALUES = 50
#: The beginnings of a file in UTF-16, as some consoles write it.
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def complete_prefix(text: str) -> Any:
    """Return the value that begins with `text`, as far as it is complete. None: nothing is.

    The text is cut after its last complete part, and the open objects and lists are closed.
    """
    with suppress(ValueError, RecursionError):
        return _loaded(text)
    ends: list[str] = []
    cut = 0
    for token in re.finditer(_TOKEN, text):
        sign = token[0]
        if sign in _ENDS:
            if len(ends) == _MAX_COMPLETED_DEPTH:
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
        else:  # A whole text, which may be a key without its value.
            continue
        if not ends:  # The first value has ended.
            break
    try:
        return _loaded(text[:cut] + "".join(reversed(ends)))
    except (ValueError, RecursionError):
        return None


def _loaded_or_prefix(text: str) -> tuple[Any, Exception | None]:
    """Return a value, or the complete part of it before its first error, and the error."""
    try:
        return _loaded(text), None
    except (ValueError, RecursionError) as error:
        is_cut = "Unterm" in str(error)
        error_offset = getattr(error, "pos", 0) or len(text)
        return complete_prefix(text if is_cut else text[:error_offset]), error


@lru_cache(maxsize=4)  # Each format asks for it, of the same file.
def shape_of(head: bytes) -> Shape:
    """Return the form of a file from its beginning. Empty: it has no JSON."""
    text = _begin(head)
    if text[:1] == "[":
        return "array"
    first_line, newline, _ = text.partition("\n")
    if re.search(r"^\{", text, re.MULTILINE) is None:
        return ""
    if not newline or "\n{" in text or not text.startswith("{"):
        return "lines"
    # An object with a newline in it, or one record and lines that are damaged.
    try:
        return "lines" if isinstance(_loaded(first_line), dict) else ""
    except (ValueError, RecursionError):
        return "object"


def _begin(head: bytes) -> str:
    encoding = "utf-16" if head.startswith(_UTF16_MARKS) else "utf-8"
    return head.decode(encoding, "replace").lstrip("\ufeff\0 \t\r\n")


@lru_cache(maxsize=4)
def first_values(head: bytes) -> tuple[dict[str, Any], ...]:
    """Return the first objects of a file from its beginning, 50 at most. The last may be cut.

    All callers get the same objects, so nobody may change them.
    """
    shape = shape_of(head)
    text = _begin(head)
    if shape == "array":
        elements = _ArrayReader(iter([text]), lambda reason, line: None).elements()
        return tuple(value for _, value in islice(elements, _FIRST_VALUES))
    if shape == "object":
        lines = [text]
    else:
        lines = text.split("\n", _FIRST_VALUES)[:_FIRST_VALUES]
    values = [_loaded_or_prefix(line)[0] for line in lines if line.lstrip()[:1] == "{"]
    return tuple(value for value in values if isinstance(value, dict))


def json_records(
    chunks: Iterable[bytes], head: bytes, report_problem: ReportProblem
) -> Iterator[Record]:
    """Return the objects of a file, each with the line where it begins.

    Args:
        chunks: The content of the file.
        head: Its beginning.
        report_problem: Gets each damage with its line.
    """
    shape = shape_of(head)
    if head.startswith(_UTF16_MARKS):
        texts = codecs.iterdecode(iter(chunks), "utf-16", "replace")
        chunks = codecs.iterencode(texts, "utf-8", "replace")
    if shape == "array":
        return _ArrayReader(_texts(chunks, report_problem), report_problem).elements()
    if shape == "lines":
        return _lines(chunks, report_problem)
    return _object(chunks, report_problem)


def _loaded(text: str) -> Any:
    value = _decoder.decode(text)
    return without_surrogates(value) if "\\u" in text else value


def _decoded_at(text: str, offset: int) -> tuple[Any, int]:
    """Return the value that begins at an offset, without lone surrogates, and its end.

    Raises ValueError, or RecursionError if it is nested too deep for the decoder or for
    `without_surrogates`. From Python 3.13 on, the decoder reads much deeper values.
    """
    value, end = _decoder.raw_decode(text, offset)
    if _SURROGATE_ESCAPE.search(text, offset, end):
        value = without_surrogates(value)
    return value, end


def without_surrogates(value: Any) -> Any:
    """Return the value without lone surrogates, which no file can hold."""
    if isinstance(value, str):
        return re.sub(_SURROGATE, "\ufffd", value)
    if isinstance(value, list):
        return [without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {without_surrogates(key): without_surrogates(item) for key, item in value.items()}
    return value


def _report_too_large(report_problem: ReportProblem, line: int) -> None:
    report_problem(f"a value of more than {MAX_VALUE_BYTES >> 20} MB is refused", line)


def _object(chunks: Iterable[bytes], report_problem: ReportProblem) -> Iterator[Record]:
    """Return the one object of a file, as far as it is complete."""
    data = bytearray()
    for chunk in chunks:
        data += chunk
        if len(data) > MAX_VALUE_BYTES:
            _report_too_large(report_problem, 1)
            return
    text = "".join(_texts([bytes(data)], report_problem))
    value, error = _loaded_or_prefix(text.lstrip("\ufeff\0 \t\r\n").rstrip("\0 \t\r\n"))
    if error is not None:
        report_problem(_reason(error), getattr(error, "lineno", None))
    if isinstance(value, dict):
        yield 1, value


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deep"
    if isinstance(error, json.JSONDecodeError):
        return f"not valid JSON: {error.msg}"
    return f"not valid JSON: {error}"


def _texts(chunks: Iterable[bytes], report_problem: ReportProblem) -> Iterator[str]:
    """Return the text of chunks. Bytes that are not valid UTF-8 are replaced and reported."""
    rest = b""
    line = 1
    for chunk in chunks:
        data = rest + chunk
        rest = b""
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            # A character has up to four bytes.
            is_cut = error.end == len(data) and len(data) - error.start < 4
            if is_cut:  # The next chunk has the rest of the last character.
                rest = data[error.start :]
                data = data[: error.start]
            text = _decoded(data, line, report_problem)
        line += text.count("\n")
        yield text
    if rest:
        report_problem("not UTF-8", line)


def _decoded(data: bytes, line: int, report_problem: ReportProblem) -> str:
    """Return the text of data that begins at a line. Report its first invalid byte."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        report_problem("not UTF-8", line + data.count(b"\n", 0, error.start))
        return data.decode("utf-8", "replace")


def split_lines(
    chunks: Iterable[bytes], report_problem: ReportProblem
) -> Iterator[tuple[int, bytes]]:
    """Return the lines of a file with their numbers from 1, and their ends.

    A line that is too large is reported and skipped.
    """
    rest = b""
    line = 1
    is_skipped = False
    for chunk in chunks:
        *whole_lines, last_line = chunk.split(b"\n")
        for line_end in whole_lines:
            if not is_skipped:
                yield line, rest + line_end + b"\n"
            rest = b""
            line += 1
            is_skipped = False
        rest += last_line
        if not is_skipped and len(rest) > MAX_VALUE_BYTES:
            _report_too_large(report_problem, line)
            is_skipped = True
        if is_skipped:
            rest = b""
    if rest:
        yield line, rest


def _lines(chunks: Iterable[bytes], report_problem: ReportProblem) -> Iterator[Record]:
    """Return the objects of a file of lines."""
    keys: set[str] = set()
    for line, data in split_lines(chunks, report_problem):
        try:
            # Quick and strict. What it refuses is read again with `_decoder`.
            value = orjson.loads(data if line > 1 else data.removeprefix(codecs.BOM_UTF8))
        except ValueError:
            if data.strip(b"\0 \t\r\n\xef\xbb\xbf"):
                for repaired in _repaired(line, data, keys, report_problem):
                    yield line, repaired
            elif b"\0" in data:
                report_problem("a line of NULs", line)
            continue
        if isinstance(value, dict):
            keys = keys or set(value)
            yield line, value
        else:
            report_problem("not a JSON object", line)


def _repaired(
    line: int, data: bytes, keys: set[str], report_problem: ReportProblem
) -> Iterator[dict[str, Any]]:
    """Return the objects that can be read from a line that is no valid JSON.

    The line may have several records, or a record that another one was written over. After an
    error, an object counts as a record if it has two of `keys`, the keys of another record.
    Otherwise it may be a part of the damaged one.
    """
    text = data.decode("utf-8", "replace").replace("\0", "").strip("\ufeff \t\r\n")
    values, reason = _objects_in(text, keys)
    if line == 1 and not values and not keys:
        prefix, _ = _loaded_or_prefix(text)
        if isinstance(prefix, dict):
            values = [prefix]
    if reason and not data.endswith(b"\n"):
        reason = END_MISSING
    elif not reason and len(values) > 1:
        reason = "several records in one line"
    elif not reason:
        reason = "characters that JSON does not allow"
    report_problem(reason, line)
    yield from values


def _objects_in(text: str, keys: set[str]) -> tuple[list[dict[str, Any]], str]:
    """Return the objects in a text that count as records, and the reason of the first error.

    For `keys` see `_repaired`. The reason is empty if the text has no error.
    """
    values: list[dict[str, Any]] = []
    reason = ""
    failures = 0
    offset = text.find("{")
    while offset >= 0:
        try:
            value, end = _decoded_at(text, offset)
        except (ValueError, RecursionError) as error:
            reason = reason or _reason(error)
            failures += 1
            offset = text.find('{"', offset + 1)
            # Each object around the damage fails too.
            if not keys or failures > _MAX_COMPLETED_DEPTH:
                break
            continue
        is_record = len(keys & set(value)) > 1 and text[end : end + 1] in ("", "{")
        if not reason or is_record:
            values.append(value)
        offset = text.find("{", end)
    return values, reason


class _ArrayReader:
    """Reads the elements of one array.

    The buffer has the part of the array from the next element on, or from a little before it.
    `_line` is the line at `_counted`, an offset in the buffer up to which lines were counted.
    """

    def __init__(self, texts: Iterator[str], report_problem: ReportProblem) -> None:
        self._texts = texts
        self._report_problem = report_problem
        self._buffer = ""
        #: The offset in the buffer at which the next element may begin.
        self._offset = 0
        self._line = 1
        self._counted = 0
        #: Whether the stream may have more texts.
        self._is_open = True
        #: The first two keys of an element.
        self._keys: list[str] = []
        self._deep_elements = 0

    def elements(self) -> Iterator[Record]:
        """Return the objects of the array. Other elements and damage are reported."""
        self._find_array()
        while True:
            self._offset = _GAP.match(self._buffer, self._offset).end()  # type: ignore[union-attr]  # It matches anywhere.
            is_at_end = self._offset >= len(self._buffer)
            if is_at_end and not self._is_open:
                self._report_problem(
                    END_MISSING, self._line + self._buffer.count("\n", self._counted)
                )
                return
            if not is_at_end and self._buffer[self._offset] == "]":
                return
            if is_at_end:
                self._read_more()
                continue
            try:
                value, end = _decoded_at(self._buffer, self._offset)
            except (ValueError, RecursionError) as error:
                if self._may_be_cut(error):
                    self._read_more()
                    continue
                self._count_lines()
                if isinstance(error, RecursionError):
                    self._deep_elements += 1
                if self._deep_elements > _MAX_DEEP_ELEMENTS:
                    self._report_problem("nested too deep: the rest is left out", self._line)
                    return
                prefix = self._damaged_prefix(error)
                if prefix:
                    yield self._line, prefix
                self._find_next_element()
                continue
            self._count_lines()
            self._offset = end
            if isinstance(value, dict):
                self._keys = self._keys or list(value)[:2]
                yield self._line, value
            else:
                self._report_problem("not a JSON object", self._line)

    def _find_array(self) -> None:
        """Read up to the beginning of the array."""
        for text in self._texts:
            self._buffer += text
            if "[" in text:
                break
        self._offset = self._buffer.find("[") + 1

    def _count_lines(self) -> None:
        """Count the lines up to the next element."""
        self._line += self._buffer.count("\n", self._counted, self._offset)
        self._counted = self._offset

    def _may_be_cut(self, error: Exception) -> bool:
        """Return whether a value may only lack the text that comes after the buffer."""
        if not self._is_open or len(self._buffer) - self._offset > MAX_VALUE_BYTES:
            return False
        return _is_near_end(error, self._buffer)

    def _read_more(self) -> None:
        """Remove the read part of the buffer, and at least double the rest from the stream."""
        self._count_lines()
        texts = [self._buffer[self._offset :]]
        missing = max(len(texts[0]), 1)
        while missing > 0:
            text = next(self._texts, None)
            if text is None:
                break
            texts.append(text)
            missing -= len(text)
        self._is_open = missing <= 0
        self._buffer = "".join(texts)
        self._offset = 0
        self._counted = 0

    def _damaged_prefix(self, error: Exception) -> dict[str, Any] | None:
        """Report a damaged element, and return its complete part. None: it has none."""
        buffer = self._buffer
        offset = self._offset
        self._keys = self._keys or _first_keys(buffer[offset : offset + _PREVIEW_CHARS])
        if len(buffer) - offset > MAX_VALUE_BYTES:
            _report_too_large(self._report_problem, self._line)
            return None
        error_offset = getattr(error, "pos", offset)
        error_line = self._line + buffer.count("\n", offset, error_offset)
        self._report_problem(_reason(error), error_line)
        if "Unterm" in str(error):
            text = buffer[offset:]
        else:
            text = buffer[offset : max(error_offset, offset + 1)]
        value = complete_prefix(text)
        return value if isinstance(value, dict) else None

    def _find_next_element(self) -> None:
        """Go to the next object that begins with the first keys of the other elements."""
        first_key = f'"{re.escape(self._keys[0])}"' if self._keys else ""
        # An object after a comma or a bracket. The group begins at the object.
        start = re.compile(rf"[,\[]\s*(\{{\s*{first_key})")
        search_from = self._offset + 1
        while True:
            for match in start.finditer(self._buffer, search_from):
                offset = match.start(1)
                if self._is_element(self._buffer[offset : offset + _PREVIEW_CHARS]):
                    self._line += self._buffer.count("\n", self._offset, offset)
                    # Removing the read part copies the rest, so not after each element.
                    cut = offset if offset > _MAX_READ_CHARS else 0
                    self._buffer = self._buffer[cut:]
                    self._offset = self._counted = offset - cut
                    # More texts may follow. If not, the next read finds that out.
                    self._is_open = True
                    return
            # More of an element that begins in the last characters may follow.
            kept_from = max(search_from, len(self._buffer) - _PREVIEW_CHARS)
            text = next(self._texts, None)
            if text is None:
                self._line += self._buffer.count("\n", self._offset)
                self._offset = self._counted = len(self._buffer)
                self._is_open = False
                return
            self._line += self._buffer.count("\n", self._offset, kept_from)
            self._buffer = self._buffer[kept_from:] + text
            self._offset = 0
            search_from = 0

    def _is_element(self, text: str) -> bool:
        """Return whether the object that begins a text has the first keys of the other elements."""
        if not all(f'"{key}"' in text for key in self._keys):  # Nearly no text has them all.
            return False
        value = complete_prefix(text)
        if not isinstance(value, dict):
            return False
        return not self._keys or list(value)[: len(self._keys)] == self._keys


def _first_keys(text: str) -> list[str]:
    """Return the first two keys of the object with which a text begins, which may be damaged."""
    keys: list[str] = []
    depth = 0
    for token in re.finditer(_TOKEN, text):
        sign = token[0]
        if sign in _ENDS:
            depth += 1
        elif sign in "}]":
            depth -= 1
        elif depth == 1 and len(sign) > 1 and text[token.end() :].lstrip().startswith(":"):
            keys.append(sign[1:-1])
        if depth == 0 or len(keys) == 2:
            break
    return keys


def _is_near_end(error: Exception, buffer: str) -> bool:
    """Return whether an error is a text without end, or is near to the end of the buffer."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.msg.startswith("Unterminated") or error.pos >= len(buffer) - _CUT_CHARS
