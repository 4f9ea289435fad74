"""Makes docs/api.md: the public names of the package `capsule`, from their docstrings and signatures.

What must stay true: nothing is listed by hand. A method that is added to `Store`, or to an object that it offers, is on
the page at the next `make docs`.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import capsule
from capsule import Store
from capsule.errors import CapsuleError
from capsule.format.fields import PARTS
from capsule.store.offered import Offered

__all__ = ["text"]

_INTRODUCTION = """\
# The Python library

<!-- Made by `make docs` from the docstrings of the package. Don't edit it here. -->

Everything that a program needs comes from the package itself: `from capsule import Store, Locked`. Open a store with
`Store.open`, and close it, or use it in a `with` block. Several threads may use a store at once. When a method that
writes returns, the write is on the disk; when it raises, nothing was written, unless the error says otherwise.

Every error that Capsule raises on purpose is a [`CapsuleError`](#errors). [troubleshooting.md](troubleshooting.md) says
what to do about each. If a method "raises as `append`", look at `append` for the list. The same goes for costs.

`id` is always the full id of a conversation; `resolve` finds it for a prefix. To "copy the file" means to copy it in
the kernel, without reading it: 50 MB took about 35 ms. To "bring the index up to date" means to scan the directory,
and to read what is new in files that changed.
"""

#: What the methods are for that the store has itself, by the class that has them.
_TITLES = {
    "CoreStore": "Open, delete and follow changes",
    "Writing": "Make a conversation, append, and change its head",
    "Reading": "Read, list and search",
}
_HEADING = re.compile(r"(Args|Attributes|Returns|Yields|Raises|Cost):(?:\s+(\S.*))?")
_ITEM = re.compile(r" {4}(\*{0,2}\w+(?:, \*{0,2}\w+)*):\s+(.*)")


def text() -> str:
    """The whole page."""
    public = {name: getattr(capsule, name) for name in capsule.__all__}
    del public["Store"]
    errors = [thing for thing in public.values() if issubclass(thing, CapsuleError)]
    others = [thing for thing in public.values() if not issubclass(thing, CapsuleError)]
    parts = [_INTRODUCTION, "## Store\n", *_described(inspect.getdoc(Store) or "")]
    for title, owner, prefix in _subjects():
        parts.append(f"## {title}\n")
        if prefix != "store.":
            parts += _described(inspect.getdoc(owner) or "")
        for base in (owner,) if prefix == "store." else reversed(owner.__mro__):
            for name in _members(base):
                parts += _method(base, name, prefix)
    parts += ["## Objects\n", "What the methods return and take.\n"]
    for thing in sorted(others, key=lambda thing: thing.__name__):
        parts += _object(thing)
    parts.append("## Errors\n")
    for error in sorted(errors, key=lambda error: (error is not CapsuleError, error.exit_code)):
        parts.append(f"### `{error.__name__}`\n")
        if error is not CapsuleError:
            parts.append(f"Exit code {error.exit_code}: {error.meaning}.\n")
        parts += _described(inspect.getdoc(error) or "")
    return "\n".join(parts).rstrip("\n") + "\n"


def _subjects() -> Iterator[tuple[str, type, str]]:
    """The subjects of the store: each with its title, the class that has its methods, and what a call begins with."""
    for owner in Store.__mro__:
        if owner.__name__ in _TITLES:
            yield _TITLES[owner.__name__], owner, "store."
    with Store.in_memory() as store:
        members = [(name, member) for owner in reversed(Store.__mro__) for name, member in vars(owner).items()]
        names = ["locks", *(name for name, member in members if isinstance(member, Offered))]
        offered = {name: getattr(store, name) for name in names}
    for name, part in offered.items():
        rooms = ("capsule.store.", "capsule.locks.", "capsule.messaging.", "capsule.sessions.")
        if not name.startswith("_") and type(part).__module__.startswith(rooms):
            yield f"store.{name}", type(part), f"store.{name}."


def _members(owner: type) -> list[str]:
    """The public methods and properties that a class itself defines and describes, in their order."""
    return [
        name
        for name, member in vars(owner).items()
        if not name.startswith("_") and _function(member) is not None and inspect.getdoc(getattr(owner, name, None))
    ]


def _function(member: Any) -> Any:
    """The function behind a method or a property; None for anything else."""
    if isinstance(member, property):
        return member.fget
    if isinstance(member, staticmethod | classmethod):
        return member.__func__
    member = getattr(member, "func", member)
    return member if inspect.isfunction(member) else None


def _is_property(owner: type, name: str) -> bool:
    member = vars(owner)[name]
    return isinstance(member, property) or hasattr(member, "func")


def _method(owner: type, name: str, prefix: str) -> list[str]:
    member = vars(owner)[name]
    prefix = "Store." if isinstance(member, classmethod | staticmethod) else prefix
    parts = [f"### `{prefix}{name}`\n"]
    if _is_property(owner, name):
        parts.append(f"A property: `{_function(member).__annotations__.get('return', 'Any')}`\n")
    else:
        waits = "await " if inspect.iscoroutinefunction(_function(member)) else ""
        parts.append(f"```python\n{waits}{prefix}{name}{_signature(_function(member))}\n```\n")
    return parts + _described(getattr(owner, name).__doc__ or "")


def _signature(function: Any) -> str:
    """The signature without `self`, a line for each argument when it is long."""
    signature = inspect.signature(function)
    shown, last = [], None
    for argument in signature.parameters.values():
        if argument.name in ("self", "cls"):
            continue
        if argument.kind is argument.KEYWORD_ONLY and last not in (argument.KEYWORD_ONLY, argument.VAR_POSITIONAL):
            shown.append("*")
        last = argument.kind
        stars = str(argument.replace(annotation=argument.empty, default=argument.empty)).partition(argument.name)[0]
        typed = f": {argument.annotation}" if argument.annotation is not argument.empty else ""
        given = "" if argument.default is argument.empty else f" = {json.dumps(argument.default)}"
        given = {" = null": " = None", " = true": " = True", " = false": " = False"}.get(given, given)
        shown.append(f"{stars}{argument.name}{typed}{given}")
    returned = signature.return_annotation
    line = f"({', '.join(shown)}) -> {returned}"
    return line if len(line) <= 90 else "(\n" + "".join(f"    {part},\n" for part in shown) + f") -> {returned}"


def _object(thing: type) -> list[str]:
    """A class that methods return: what its docstring says, its fields with their types, and its own methods."""
    described, about = {}, []
    for block in _blocks(inspect.getdoc(thing) or ""):
        if block[0] == "Attributes:":
            for item in _block(block).splitlines()[2:]:
                names, _, meaning = item.removeprefix("- ").partition(": ")
                described.update(dict.fromkeys(re.findall(r"`(\w+)`", names), meaning))
        else:
            about += [_block(block), ""]
    typed = {
        name: getattr(kind, "__forward_arg__", kind)  # A named tuple keeps the words in an object.
        for base in reversed(thing.__mro__)
        for name, kind in vars(base).get("__annotations__", {}).items()
    }
    if hasattr(thing, "model_fields"):
        told = {field.name: field.says for field in PARTS["history" if thing is capsule.Message else ""]}
        described = {name: told[field.serialization_alias] for name, field in thing.model_fields.items()}
    elif is_dataclass(thing):
        described = {field.name: described.get(field.name, "") for field in fields(thing)}
    rows = [f"- `{name}: {typed.get(name, 'Any')}` {meaning}".rstrip() for name, meaning in described.items()]
    for name in _members(thing):
        function = _function(vars(thing)[name])
        call = (
            f": {function.__annotations__.get('return', 'Any')}" if _is_property(thing, name) else _signature(function)
        )
        summary = " ".join((inspect.getdoc(getattr(thing, name)) or "").partition("\n\n")[0].split())
        rows.append(f"- `{name}{call}` {summary}")
    return [f"### `{thing.__name__}`\n", *about, *rows, ""]


def _described(docstring: str) -> list[str]:
    """A docstring of Google's form as Markdown: its sections as lists, everything else as it stands."""
    return [part for block in _blocks(docstring) for part in (_block(block), "")]


def _blocks(docstring: str) -> list[list[str]]:
    """The paragraphs and sections of a docstring, as lines."""
    blocks: list[list[str]] = [[]]
    for line in inspect.cleandoc(docstring).splitlines():
        is_beside = blocks[-1] and line[:1] not in ("", " ") and blocks[-1][-1].startswith(" ")
        if not line.strip() or _HEADING.fullmatch(line) or is_beside:
            blocks.append([])
        if line.strip():
            blocks[-1].append(line)
    return [block for block in blocks if block]


def _block(lines: list[str]) -> str:
    heading = _HEADING.fullmatch(lines[0])
    title = f"**{heading[1].replace('Args', 'Arguments')}**" if heading else lines[0]
    parts = [[title, heading[2]] if heading and heading[2] else [title]]
    for line in lines[1:]:
        if item := _ITEM.fullmatch(line):
            names = ", ".join(f"`{name.strip(' `')}`" for name in item[1].split(","))
            parts.append([f"- {names}: {item[2]}"])
        else:
            parts[-1].append(line.strip())
    texts = [" ".join(part) for part in parts]
    return texts[0] + "".join(f"\n{'' if at else chr(10)}{text}" for at, text in enumerate(texts[1:]))
