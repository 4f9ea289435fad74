"""`search`, `store stats` and `store reindex`: query the index, count its contents, and rebuild it.

What must stay true: a stored text can't command the terminal that shows it, and its marks are on
the right words. A program gets only hits, as rows or JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from capsule.format.text.escaping import one_line
from capsule_cli.shared.options import (
    Mode,
    Role,
    Tags,
    argument,
    complete_id,
    flag,
    option,
    parse_filter,
    parse_time,
    refuse_if,
)
from capsule_cli.shared.output import (
    global_options,
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
    from collections.abc import Mapping, Sequence

    from capsule import Found, Hit, Stats
    from capsule.engines.queries import Tally

Branch = Literal["active", "all"]
Profile = Literal["recent", "balanced", "exact"]

_INDEXING = "indexing (bytes)"
#: The totals that `stats` prints, as attributes of its result.
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
    cursor: str | None = option(
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
            f"{name!r} is not a role; the roles are: {', '.join(get_args(Role))}",
            "--role",
        )
    since_time = parse_time(since, "--since") if since else None
    until_time = parse_time(until, "--until", until=True) if until else None
    with open_core_store() as store:
        with progress(_INDEXING) as report:
            page = store.search(
                " ".join(query or ()),
                roles=role or (),
                senders=sender or (),
                ids=[store.resolve(id) for id in ids or ()],
                tags=tag or (),
                mode=mode,
                since=since_time,
                until=until_time,
                title_only=title_only,
                branch=branch,
                in_tools=in_tools,
                profile=profile,
                where=parse_filter(where, topic, thread),
                limit=limit,
                cursor=cursor,
                progress=report,
            )
        if page.having:
            print_notice(f"nothing has all {page.words} words; these have {page.having} of them")
        if global_options.json or not in_terminal():
            _print_for_program(page)
        else:
            _print_for_person(page, list(store.ids()))


def _print_for_program(page: Found) -> None:
    """Print the hits as JSON or rows. The JSON has the command that shows each hit."""
    value = page.as_json()
    rows = []
    for hit, item in zip(page.hits, value["hits"], strict=True):
        item["open"] = f"capsule show {hit.id}"
        if hit.message:
            item["open"] += f" --around {hit.message}"
        cells = (hit.id, hit.message, hit.time, hit.role, hit.title, hit.snippet.text)
        rows.append([cell or "" for cell in cells])
    print_list(value, (), rows, "")


def _print_for_person(page: Found, ids: list[str]) -> None:
    """Print the hits in a terminal, each with its snippet below, in which the words are marked.

    Args:
        page: The hits.
        ids: The ids of all conversations, from which short ids are made.
    """
    rows = []
    for hit in page.hits:
        role = hit.role or "title"
        if not hit.active:
            role += ", other branch"
        position = "" if hit.at is None else f"@{hit.at}"
        rows.append((hit.id, position, hit.time, role, hit.title))
    snippets = ["  " + _marked(hit) for hit in page.hits]
    columns = ("id", "at", "time", "role", "title")
    print_table(columns, rows, empty="nothing was found", ids=ids, below=snippets)
    first = next((hit for hit in page.hits if hit.at is not None), None)
    if first is not None:
        short_id = short_ids([*ids, first.id])[first.id]
        print_text(styled(f"open one: capsule show {short_id} --around @{first.at}", 2))
    if page.cursor:
        # In a line of its own, because a person copies it as a whole.
        print_text(f"more: --after {page.cursor}")


def _marked(hit: Hit) -> str:
    """Return the snippet in one line, safe for a terminal, with its words marked."""
    text = hit.snippet.text
    parts: list[str] = []
    end = 0
    for mark_start, mark_end in hit.snippet.marks:
        parts.append(one_line(text[end:mark_start]))
        parts.append(styled(one_line(text[mark_start:mark_end]), 1, 7))
        end = mark_end
    parts.append(one_line(text[end:]))
    return "".join(parts)


def stats() -> None:
    """Count what is in the store: conversations, messages, words; by role, month, program and
    agent; the largest.

    With --json by day too. The number of tokens is an estimate.
    """
    with open_core_store() as store, progress(_INDEXING) as report:
        totals = store.stats(progress=report)
        ids = store.ids() if in_terminal() else []
    groups = {
        "role": totals.by_role,
        "month": totals.by_month,
        "program": totals.by_source,
        "agent": totals.by_sender,
    }
    if in_terminal() and not global_options.json:
        _print_stats_for_person(totals, groups, ids)
        return
    rows: list[tuple[str, ...]] = [(name, str(getattr(totals, name))) for name in _COUNTS]
    for group, tallies in groups.items():
        for name, tally in tallies.items():
            rows.append((group, name, str(tally.messages), str(tally.words)))
    for top in totals.largest:
        counts = (str(top.messages), str(top.words), str(top.bytes))
        rows.append(("largest", top.id, *counts, top.title))
    print_list(totals.as_json(), (), rows, "")


def _print_stats_for_person(
    totals: Stats, groups: Mapping[str, Mapping[str, Tally]], ids: Sequence[str]
) -> None:
    """Print the totals in a line, a table for each group, and a table of the largest."""
    counts = [(name, getattr(totals, name)) for name in _COUNTS]
    print_text("  ".join(f"{count:,} {name}" for name, count in counts if count))
    for group, tallies in groups.items():
        if group == "agent" and not tallies:
            continue
        rows = [
            (name, f"{tally.messages:,}", f"{tally.words:,}") for name, tally in tallies.items()
        ]
        columns = (group, "messages", "words")
        print_table(columns, rows, last=group, empty=f"no message, so no {group}")
    largest = [(top.id, f"{top.messages:,}", f"{top.words:,}", top.title) for top in totals.largest]
    largest_columns = ("id", "messages", "words", "title")
    print_table(largest_columns, largest, empty="there is no conversation yet", ids=ids)


def reindex() -> None:
    """Rebuild the index from the files. This is never necessary, because the index keeps itself up
    to date.
    """
    with open_core_store() as store, progress(_INDEXING) as report:
        counts = store.reindex(report)
    names = ("conversations", "messages", "words")
    text = "indexed " + ", ".join(f"{counts[name]:,} {name}" for name in names)
    if counts["damaged"]:
        text += f"; {counts['damaged']:,} damaged"
    print_answer(counts, text)
