"""Makes docs/api/: what a program can call, from the signatures and docstrings of the package, by
griffe.

What must stay true: nothing is listed by hand but the page where it stands. A method that is added
to `Store`, or to an object that it offers, is there at the next `make docs`, and so is each type of
Capsule that a signature names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

from capsule.format.documents.head import json_name
from capsule.format.fields import PARTS

__all__ = ["pages"]

_INTRODUCTION = """\
A program imports everything from the package itself: `from capsule import Store, Locked`. Open a store with
`Store.open`, and close it, or use it in a `with` block. Several threads may use a store at once. When a method that
writes returns, the write is on the disk. When it raises, nothing was written, unless the error says otherwise.

Every error that Capsule raises on purpose is a [`CapsuleError`](errors.md). [troubleshooting.md](../troubleshooting.md)
has the way out of each. If a method "raises as `append`", `append` has the list of its errors. The same holds for
costs.

`id` is always the full id of a conversation. `resolve` returns it for a prefix. To "copy the file" means to copy it in
the kernel, without reading it: 50 MB took about 35 ms. To "bring the index up to date" means to scan the directory,
and to read the new parts of changed files.

`store.inner`, `store.engine` and `store.queries` are for packages that extend Capsule, and may change.
"""

#: The pages: a title and the contents: members of `Store`, and functions of modules. The page of
#: conversations has the members of `Store` that no page names. The types follow at the end.
_PAGES = {
    "index": (
        "The Python library",
        (
            "init open in_memory beside read_settings set_settings instance_id release flush close "
            "room"
        ),
    ),
    "conversations": ("Conversations", ""),
    "search-and-watch": (
        "Search and watch",
        (
            "list facets search stats ids heads resolve reindex changes watch wait_for_changes "
            "await_changes remember_own"
        ),
    ),
    "messaging": (
        "Messages between agents",
        "agents projects channels groups messages notes configuration",
    ),
    "sessions": ("Sessions", "sessions"),
    "transfer": ("Import and export", "import_ export transfer.registry.formats"),
    "context": (
        "Project context",
        "context context.capture.capture context.drift.check context.drift.diff",
    ),
    "git": ("Conversations under git", "git.open conflicts incoming"),
    "models": ("The models of a conversation", ""),
    "errors": ("Errors", ""),
    "values": ("Values that methods take and return", ""),
}
#: The page of a type, by the first of these prefixes of its path below the package.
_TYPES = {name: name for name in ("messaging", "sessions", "transfer", "context", "git", "errors")}
_TYPES |= {"public": "index", "store.store": "index", "format.models": "models", "": "values"}
#: The members of a store for packages that extend Capsule, not for programs.
_INSIDE = ("inner", "engine", "queries")
#: The types whose fields the format describes, with their names in `PARTS`. The types of their
#: fields follow from them.
_PARTS = {
    "capsule.format.models.Capsule": "",
    "capsule.format.documents.head.Head": "metadata",
    "capsule.sessions.registry.AgentSetup": "registry.agents",
    "capsule.sessions.registry.ChannelPlace": "registry.places",
    "capsule.sessions.registry.Wiring": "registry.wirings",
    "capsule.sessions.registry.SessionRecord": "registry.sessions",
    "capsule.sessions.registry.Question": "registry.questions",
}
_MADE = "<!-- Made by `make docs` from the docstrings of the package. Don't edit it here. -->\n"
_ROOT = Path(__file__).resolve().parents[1]


def pages() -> Iterator[tuple[str, str]]:
    """The name of each page's file, and its text."""
    return (
        (f"{page}.md", "\n".join(parts).rstrip("\n") + "\n")
        for page, parts in _Reference().pages().items()
    )


class _Reference:
    """The pages while they are made."""

    def __init__(self) -> None:
        self._package: Any = griffe.load("capsule", search_paths=[_ROOT], resolve_aliases=True)
        self._members = {
            name: member
            for name, member in _public(self._package["public.Store"])
            if name not in _INSIDE
        }
        #: The page of each member of `Store`, and of each function.
        self._home = dict.fromkeys(self._members, "conversations")
        self._home |= {name: page for page, (_, names) in _PAGES.items() for name in names.split()}
        #: The classes of the objects that a store offers, with their names there.
        self._objects = {
            kind.path: name
            for name, member in self._members.items()
            for kind in self._types(member)
            if not _is_call(member) and "NamedTuple" not in map(str, kind.bases)
        }
        #: The paths of the types that pages name, with their parts of the format.
        self._named = dict(_PARTS)

    def pages(self) -> dict[str, list[str]]:
        pages = {page: [f"# {title}\n", _MADE] for page, (title, _) in _PAGES.items()}
        pages["index"] += [_INTRODUCTION, *self._type("capsule.public.Store")]
        paths = {name: path for path, name in self._objects.items()}
        for name, page in self._home.items():
            if name in paths:
                pages[page] += self._type(paths[name])
            elif (member := self._members.get(name)) is None:
                module, _, function = f"capsule.{name}".rpartition(".")
                call = self._call(
                    f"from {module} import {function}\n\n{function}", self._package[name]
                )
                pages[page] += [f"## `capsule.{name}`\n", *call]
            elif _is_call(member):
                call = f"{'Store' if 'classmethod' in member.labels else 'store'}.{name}"
                pages[page] += [f"## `{call}`\n", *self._call(call, member)]
        errors = self._package["errors"].classes.values()
        self._named |= {error.path: "" for error in errors if "exit_code" in error.all_members}
        types: dict[str, list[str]] = {}
        while path := next((path for path in self._named if path not in types), ""):
            types[path] = self._type(path)
        for path in sorted(types, key=lambda path: path.rpartition(".")[2]):
            pages[self._place(path)[0]] += types[path]
        return pages

    def _place(self, path: str) -> tuple[str, str]:
        """The page of a type, and its heading there."""
        if name := self._objects.get(path):
            return self._home[name], f"store.{name}"
        below = path.removeprefix("capsule.")
        return next(
            page for start, page in _TYPES.items() if below.startswith(start)
        ), below.rpartition(".")[2]

    def _type(self, path: str) -> list[str]:
        """A class with its fields and methods, or another name of a type."""
        kind, heading = self._package[path.removeprefix("capsule.")], self._place(path)[1]
        parts = [f"## `{heading}`\n"]
        if not kind.is_class:
            return [
                *parts,
                f"{_text(f'Another name of `{_code(kind.value)}`. {self._see(kind)}')}\n",
            ]
        if "exit_code" in kind.all_members and kind.name != "CapsuleError":
            code, meaning = (kind.all_members[name].value for name in ("exit_code", "meaning"))
            parts.append(
                f"Exit code {code}: {meaning[1:-1]}. It has the attributes of a `CapsuleError`, "
                "too.\n"
            )
        parts += _described(kind)
        if "__call__" in kind.members:
            parts += self._call(heading, kind.members["__call__"])
        members = [
            item
            for item in _public(kind)
            if item[0] not in _INSIDE and "classmethod" not in item[1].labels
        ]
        if kind.name == "Store":  # Its methods stand on several pages.
            members = [item for item in members if not _is_call(item[1])]
        elif kind.name == "CoreStore" or "exit_code" in kind.all_members:
            members = [
                item for item in members if item[0] in kind.members and kind.name != "CoreStore"
            ]
        calls = [
            item
            for item in members
            if _is_call(item[1]) and (path in self._objects or not _is_short(item[1]))
        ]
        parts += self._rows(kind, [item for item in members if item not in calls])
        for name, member in calls:
            parts += [f"### `{heading}.{name}`\n", *self._call(f"{heading}.{name}", member)]
        return parts

    def _rows(self, kind: Any, members: list[tuple[str, Any]]) -> list[str]:
        """A line for each field, and for each method that a line describes."""
        meanings = {
            name: text
            for title, items in _sections(kind)
            if title == "Attributes"
            for name, text in items
        }
        if (part := self._named.get(kind.path)) or kind.name == "Capsule":
            meanings = {
                field.name: field.description for field in (*PARTS[""], *PARTS.get(part, ()))
            } | meanings
            for name, member in members:
                self._named |= {
                    other.path: f"{part}.{json_name(name)}".lstrip(".")
                    for other in self._types(member)
                }
        lines = []
        for name, member in members:
            meaning = (
                meanings.get(name)
                or meanings.get(json_name(name))
                or (member.docstring and member.docstring.value)
            )
            text = _text(f"{meaning or ''} {self._see(member)}")
            lines.append(f"- `{_signature(name, member)}`{text and ': '}{text}\n")
        return ["".join(lines)] if lines else []

    def _call(self, call: str, member: Any) -> list[str]:
        """The signature of a function or a property, and what it does."""
        see = [f"{see}\n"] if (see := self._see(member)) else []
        return [f"```python\n{_signature(call, member)}\n```\n", *_described(member), *see]

    def _see(self, member: Any) -> str:
        """Links to the types of Capsule that a member names."""
        links = {}
        for kind in self._types(member):
            if kind.path not in self._objects:
                self._named.setdefault(kind.path, "")
            page, heading = self._place(kind.path)
            links[kind.path] = f"[`{kind.name}`]({page}.md#{heading.lower().replace('.', '')})"
        return f"See {', '.join(links.values())}." if links else ""

    def _types(self, member: Any) -> Iterator[Any]:
        """The types of Capsule that a member names."""
        annotations = [getattr(member, "annotation", None) or getattr(member, "value", None)]
        if member.is_function:
            annotations = [
                *(parameter.annotation for parameter in member.parameters),
                member.returns,
            ]
        for annotation in annotations:
            for name in (
                annotation.iterate(flat=True) if isinstance(annotation, griffe.Expr) else ()
            ):
                path = name.canonical_path if isinstance(name, griffe.ExprName) else ""
                kind = (
                    _target(self._package[path.removeprefix("capsule.")])
                    if path.startswith("capsule.")
                    else None
                )
                if kind and (
                    kind.is_class or (kind.is_attribute and "TypeVar" not in str(kind.value))
                ):
                    yield kind


def _sections(thing: Any) -> Iterator[tuple[str, Any]]:
    """The sections of a docstring: each with its title, and its text or its items."""
    options: dict[str, Any] = {"warnings": False, "returns_multiple_items": False}
    for section in griffe.parse_google(thing.docstring, **options) if thing.docstring else ():
        title, value = section.kind.value.title(), section.value
        if title == "Text":
            yield from (("", paragraph) for paragraph in value.split("\n\n"))
        elif title == "Admonition":
            yield value.kind.title(), f"{section.title or ''} {value.description}"
        elif title in ("Returns", "Yields"):
            yield title, value[0].description
        else:  # Of `a, b: ...`, griffe takes `b` for the type of `a,`.
            named = [(getattr(item, "name", ","), item) for item in value]
            named = [
                (name + str(item.annotation) if name[-1] == "," else name, item)
                for name, item in named
            ]
            yield (
                title,
                [
                    (name, item.description)
                    for names, item in named
                    for name in re.findall(r"\w+", names)
                ],
            )


def _described(thing: Any) -> list[str]:
    """The docstring as Markdown; of a class without its attributes, and without the arguments that
    make one.
    """
    parts = []
    for title, said in _sections(thing):
        if isinstance(said, str):
            parts.append(f"**{title}** {_text(said)}\n" if title else f"{_text(said)}\n")
        elif not thing.is_class:
            title = title.replace("Parameters", "Arguments")
            parts.append(
                "\n".join(
                    [f"**{title}**\n", *(f"- `{name}`: {_text(text)}" for name, text in said), ""]
                )
            )
    return parts


def _text(text: str) -> str:
    """A paragraph on one line; a sentence on errors or the cost begins in bold."""
    return re.sub(r"(?:^|(?<=\. ))(Raises|Cost)\b:?", r"**\1**", " ".join(text.split()))


def _signature(call: str, member: Any) -> str:
    """A field as it is declared, or the call of a function, with a line for each argument when it
    is long.
    """
    if not member.is_function:
        is_default = "class-attribute" in member.labels and "(" not in str(member.value or "(")
        return f"{call}: {_code(member.annotation)}" + (
            f" = {_code(member.value)}" if is_default else ""
        )
    line = _code(
        ("await " if "async" in member.labels else "")
        + member.signature(return_type=True, name=call)
    )
    if len(line.rpartition("\n")[2]) <= 100:
        return line
    start, _, rest = line.partition("(")
    given, _, returned = rest.rpartition(")")
    arguments = re.split(r", (?=\*|\w+(?::| =|=))", given)
    return f"{start}(\n" + "".join(f"    {argument},\n" for argument in arguments) + f"){returned}"


def _code(expression: Any) -> str:
    return str(expression).replace("'", '"')


def _public(kind: Any) -> list[tuple[str, Any]]:
    """The public methods and fields of a class, those of its bases first."""
    members = [
        (name, _target(member)) for name, member in kind.all_members.items() if name[0] != "_"
    ]
    return [
        (name, member)
        for name, member in members
        if _is_call(member) or (member.annotation and "instance-attribute" in member.labels)
    ]


def _target(member: Any) -> Any:
    return member.final_target if member.is_alias else member


def _is_call(member: Any) -> bool:
    return member.is_function or "property" in member.labels


def _is_short(member: Any) -> bool:
    return member.docstring is None or "\n\n" not in member.docstring.value
