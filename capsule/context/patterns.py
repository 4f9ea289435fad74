"""Whether a pattern stands in a text: asked of gigabytes a second.

What must stay true: the answer is that of the pattern, for every text. Where it stands is not told.

The engine is Rust's `regex` (https://docs.rs/regex), which looks for the letters that a pattern can't do without by
the processor's vector instructions, and never takes a time that grows with the square of a text; Python's own is fifty
times slower. It comes with pydantic, which checks strings with it. Its syntax is Python's, but for what looks around
and back; a `.` and a class match characters beyond ASCII too.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["finder"]


def finder(pattern: str) -> Callable[[str], bool]:
    """What tells whether a pattern stands anywhere in a text. Costs up to some milliseconds, and the first one 20."""
    from pydantic_core import SchemaValidator, core_schema

    schema = core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")
    return SchemaValidator(schema).isinstance_python
