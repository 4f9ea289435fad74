"""`search`, `stats` and `reindex`.

What must stay true: what was found is shown so that it can't command the terminal, and the marks
lie on what was looked for all the same; a program gets rows or JSON that say nothing but the hits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from capsule.format.text.escaping import one_line
from capsule_cli.completion import complete_id
from capsule_cli.shared.global_options import global_options
from capsule_cli.shared.options import (
    Mode,
    Role,
    Tags,
    argument,
    flag,
    option,
    parse_filter,
    parse_time,
    refuse_if,
)
from capsule_cli.shared.output import (
    in_terminal,
    print_answer,
    print_list,
    print_notice,
    print_table,
    print_text,
    progress,
    short_ids,
    styled,
)
from capsule_cli.shared.stores import open_core_store

if TYPE_CHECKING:
    from capsule import Found, Hit


Branch = Literal["active", "all"]
Profile = Literal["recent", "balanced", "exact"]

_INDEXING = "indexing (bytes)"
#: What is counted in all.
_COUNTS = ("conversations", "damaged", "archived", "messages", "words", "tokens", "bytes")


def search(
    query: list[str] | None = argument(
        "QUERY", 'Words, "phrases", prefix*, AND, OR, NOT. Without it: every message.'
    ),
    role: list[str] | None = option(
        "--role user|assistant|system|tool", "Find messages of this role. Repeatable."
    ),
    sender: list[str] | None = option("--from AGENT", "Find messages from this agent. Repeatable."),
    ids: list[str] | None = option(
        "--in ID", "Search in this conversation. Repeatable.", autocompletion=complete_id
    ),
    tag: Tags = None,
    mode: Mode | None = option("--mode", "Search in conversations of this mode."),
    since: str | None = option(
        "--since WHEN",
        "Find messages of this time or later: a day (UTC), a time, yesterday, or 2h, 3d, 1w ago.",
    ),
    until: str | None = option(
        "--until WHEN",
        "Find messages before this time, written in the same way. A day is included.",
    ),
    title_only: bool = flag("--title-only", "Search titles and tags only."),
    branch: Branch = option("--branch", "Search all branches, or only the active one.", "all"),
    in_tools: bool = flag("--in-tools", "Search tool calls and reasoning too."),
    profile: Profile = option(
        "--profile",
        "Choose how age counts: it halves the weight every 24 hours, every week, or never.",
        "balanced",
    ),
    topic: str | None = option("--topic TOPIC", "Find messages of this topic."),
    thread: str | None = option(
        "--thread MESSAGE", "Find messages in the thread that this message began."
    ),
    where: str | None = option(
        "--where JSON",
        """Find messages whose fields fit this filter: '{"confidence": {"$gte": 0.5}}'.""",
    ),
    limit: int = option("--limit -n N", "Show at most N.", 20, min=1),
    after: str | None = option(
        "--after CURSOR", "Continue where an earlier search with the same options ended."
    ),
) -> None:
    """Find messages, and conversations by their title and tags, the best match first.

    If nothing has all the words, it finds the messages with the most of them. To show a message
    with its neighbours: capsule show ID --around MESSAGE
    """
    for name in role or ():
        refuse_if(
            name not in get_args(Role),
            f"{name!r} is no role; there are: {', '.join(get_args(Role))}",
            "--role",
        )
    with open_core_store() as store:
        with progress(_INDEXING) as steps:
            page = store.search(
                " ".join(query or ()),
                roles=role or (),
                senders=sender or (),
                ids=[store.resolve(id) for id in ids or ()],
                tags=tag or (),
                mode=mode,
                since=parse_time(since, "--since") if since else None,
                until=parse_time(until, "--until", until=True) if until else None,
                title_only=title_only,
                branch=branch,
                in_tools=in_tools,
                profile=profile,
                where=parse_filter(where, topic, thread),
                limit=limit,
                cursor=after,
                progress=steps,
            )
        if page.having:
            print_notice(f"nothing has all {page.words} words; these have {page.having} of them")
        if global_options.json or not in_terminal():
            value = page.as_json()
            for hit, shown in zip(page.hits, value["hits"], strict=True):
                shown["open"] = f"capsule show {hit.id}" + (
                    f" --around {hit.message}" if hit.message else ""
                )
            cells = (
                (it.id, it.message, it.time, it.role, it.title, it.snippet.text) for it in page.hits
            )
            print_list(value, (), ([cell or "" for cell in row] for row in cells), "")
        else:
            _draw(page, list(store.ids()))


def _draw(page: Found, ids: list[str]) -> None:
    """Print the hits in a terminal, each with its snippet below, in which the words are marked."""
    rows = []
    for hit in page.hits:
        role = (hit.role or "title") + ("" if hit.active else ", other branch")
        rows.append((hit.id, "" if hit.at is None else f"@{hit.at}", hit.time, role, hit.title))
    below = ["  " + _marked(hit) for hit in page.hits]
    print_table(
        ("id", "at", "time", "role", "title"), rows, empty="nothing was found", ids=ids, below=below
    )
    for hit in page.hits:
        if hit.at is not None:
            print_text(
                styled(
                    f"open one: capsule show {short_ids([*ids, hit.id])[hit.id]} --around "
                    f"@{hit.at}",
                    2,
                )
            )
            break
    if page.cursor:
        # A line of its own, as it is copied as a whole.
        print_text(f"more: --after {page.cursor}")


def _marked(hit: Hit) -> str:
    """The snippet as it may be shown, in one line, with its marks."""
    text, parts, at = hit.snippet.text, list[str](), 0
    for first, last in hit.snippet.marks:
        parts += [one_line(text[at:first]), styled(one_line(text[first:last]), 1, 7)]
        at = last
    return "".join([*parts, one_line(text[at:])])


def stats() -> None:
    """Count what is in the store: conversations, messages, words; by role, month, program and
    agent; the largest.

    With --json by day too. The number of tokens is an estimate.
    """
    with open_core_store() as store, progress(_INDEXING) as bar:
        counted = store.stats(progress=bar)
        ids = store.ids() if in_terminal() else []
    named = {"role": counted.by_role, "month": counted.by_month}
    named |= {"program": counted.by_source, "agent": counted.by_sender}
    if in_terminal() and not global_options.json:
        print_text(
            "  ".join(
                f"{getattr(counted, name):,} {name}" for name in _COUNTS if getattr(counted, name)
            )
        )
        for group, tallies in named.items():
            if group == "agent" and not tallies:
                continue
            rows = [
                (name, f"{tally.messages:,}", f"{tally.words:,}") for name, tally in tallies.items()
            ]
            print_table(
                (group, "messages", "words"), rows, last=group, empty=f"no message, so no {group}"
            )
        largest = [
            (tally.id, f"{tally.messages:,}", f"{tally.words:,}", tally.title)
            for tally in counted.largest
        ]
        print_table(
            ("id", "messages", "words", "title"),
            largest,
            empty="there is no conversation yet",
            ids=ids,
        )
        return
    lines: list[tuple[str, ...]] = [(name, str(getattr(counted, name))) for name in _COUNTS]
    for group, tallies in named.items():
        lines += [
            (group, name, str(tally.messages), str(tally.words)) for name, tally in tallies.items()
        ]
    for top in counted.largest:
        lines.append(
            ("largest", top.id, str(top.messages), str(top.words), str(top.bytes), top.title)
        )
    print_list(counted.as_json(), (), lines, "")


def reindex() -> None:
    """Rebuild the index from the files. This is never necessary, because the index keeps itself up
    to date.
    """
    with open_core_store() as store, progress(_INDEXING) as bar:
        counts = store.reindex(bar)
    named = ", ".join(f"{counts[name]:,} {name}" for name in ("conversations", "messages", "words"))
    damaged = f"; {counts['damaged']:,} damaged" if counts["damaged"] else ""
    print_answer(counts, f"indexed {named}{damaged}")
