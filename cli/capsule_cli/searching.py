"""`search`, `stats` and `reindex`.

What must stay true: what was found is shown so that it can't command the terminal, and the marks lie on what was
looked for all the same; a program gets rows or JSON that say nothing but the hits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from capsule_cli.completion import complete_id
from capsule_cli.opening import store_of
from capsule_cli.options import Mode, Role, Tags, asked, moment, usage
from capsule_cli.output import (
    console,
    in_terminal,
    one_line,
    out,
    out_json,
    out_rows,
    progress,
    say,
    short_ids,
    short_time,
)

if TYPE_CHECKING:
    from rich.text import Text

    from capsule import Found, Hit, Stats

commands = typer.Typer()

_ROLES = get_args(Role)
Branch = Literal["active", "all"]
Profile = Literal["recent", "balanced", "exact"]

#: A search mostly finds the index up to date.
_INDEXING, _A_WHILE_S = "indexing (bytes)", 0.3
#: Characters of the longest bar of a chart.
_BAR = 40


@commands.command("search")
def search(
    ctx: typer.Context,
    query: Annotated[
        list[str] | None,
        typer.Argument(metavar="[QUERY]", help='Words, "phrases", prefix*, AND, OR, NOT. Without it: every message.'),
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option(metavar="ROLE", help=f"Messages of this role ({', '.join(_ROLES)}); may be repeated."),
    ] = None,
    sender: Annotated[
        list[str] | None, typer.Option("--from", metavar="AGENT", help="Messages from this agent; may be repeated.")
    ] = None,
    ids: Annotated[
        list[str] | None,
        typer.Option("--in", metavar="ID", autocompletion=complete_id, help="In this conversation; may be repeated."),
    ] = None,
    tag: Tags = None,
    mode: Annotated[Mode | None, typer.Option(help="In conversations of this mode.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Said since: a day (UTC), a time, yesterday, or 2h, 3d, 1w ago.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Said before: likewise; a day belongs to it.")
    ] = None,
    title_only: Annotated[bool, typer.Option("--title-only", help="Look at titles and tags only.")] = False,
    branch: Annotated[Branch, typer.Option(help="Messages of all branches, or of the active one.")] = "all",
    in_tools: Annotated[bool, typer.Option("--in-tools", help="Look at tool calls and reasoning too.")] = False,
    profile: Annotated[
        Profile, typer.Option(help="What age counts: half of it is gone after 24 hours, after a week, or none at all.")
    ] = "balanced",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="So many at most.")] = 20,
    cursor: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Go on where a search with the same options ended.")
    ] = None,
) -> None:
    """Find messages, and conversations by title and tags: the best first.

    Where nothing has all the words, what has the most of them is found. Open a message where it stands with: capsule
    show ID --around MESSAGE
    """
    text = " ".join(query or ())
    for name in role or ():
        if name not in _ROLES:
            raise usage(f"{name!r} is no role; there are: {', '.join(_ROLES)}", "--role")
    with store_of(ctx) as store:
        after = moment(since, "--since") if since else None
        before = moment(until, "--until", until=True) if until else None
        with progress(_INDEXING, _A_WHILE_S) as told:
            found = store.search(
                text,
                roles=role or (),
                senders=sender or (),
                ids=[store.resolve(id) for id in ids or ()],
                tags=tag or (),
                mode=mode,
                since=after,
                until=before,
                title_only=title_only,
                branch=branch,
                in_tools=in_tools,
                profile=profile,
                limit=limit,
                cursor=cursor,
                progress=told,
            )
        if found.having:
            say(f"nothing has all {found.words} words; these have {found.having} of them")
        if asked(ctx).json:
            out_json(found.as_json())
        elif in_terminal():
            _draw(found, short_ids(store.ids()) if found.hits else {})
        else:
            out_rows(_row(hit) for hit in found.hits)


def _row(hit: Hit) -> tuple[str, ...]:
    return (hit.id, hit.message or "", hit.time, hit.role or "", hit.title, hit.snippet.text)


def _draw(found: Found, short: dict[str, str]) -> None:
    """The hits in a terminal, each with what was looked for marked."""
    from rich.table import Table
    from rich.text import Text

    if not found.hits:
        say("nothing was found")
        return
    drawn = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("id", "at", "time", "role", "what"):
        drawn.add_column(name.upper(), no_wrap=name != "what", overflow="fold")
    for hit in found.hits:
        place = "" if hit.at is None else f"@{hit.at}"
        what = Text(one_line(hit.title), style="bold" if hit.at is None else "dim")
        if hit.at is None and hit.snippet.text == hit.title:
            what = _marked(hit, "bold")
        else:
            what = Text.assemble(what, "\n", _marked(hit, ""))
        who = (hit.role or "title") + ("" if hit.active else ", other branch")
        about = (short.get(hit.id, hit.id), place, short_time(hit.time), who)
        drawn.add_row(*(Text(one_line(cell)) for cell in about), what)
    screen = console()
    screen.print(drawn)
    first = next((hit for hit in found.hits if hit.at is not None), None)
    if first is not None:
        screen.print(f"open one: capsule show {short.get(first.id, first.id)} --around @{first.at}", style="dim")
    if found.cursor:
        # A line of its own, as it is copied as a whole.
        out(f"more: --cursor {found.cursor}")


def _marked(hit: Hit, style: str) -> Text:
    """The snippet as it may be shown, in one line, with its marks."""
    from rich.text import Text

    text, marked, at = hit.snippet.text, Text(style=style), 0
    for first, last in hit.snippet.marks:
        marked.append(one_line(text[at:first]))
        marked.append(one_line(text[first:last]), style="bold reverse")
        at = last
    marked.append(one_line(text[at:]))
    return marked


@commands.command("stats")
def stats(ctx: typer.Context) -> None:
    """Count what is in the store: conversations, messages, words; by month, by role, and the largest."""
    with store_of(ctx) as store, progress(_INDEXING, _A_WHILE_S) as told:
        counted = store.stats(progress=told)
    if asked(ctx).json:
        out_json(counted.as_json())
    elif in_terminal():
        _chart(counted)
    else:
        out_rows(_stat_rows(counted))


def _stat_rows(counted: Stats) -> list[tuple[str, ...]]:
    rows = [(name, str(getattr(counted, name))) for name in _COUNTS]
    tallies = (("role", counted.by_role), ("month", counted.by_month))
    return [
        *rows,
        *(
            (what, name, str(tally.messages), str(tally.words))
            for what, named in tallies
            for name, tally in named.items()
        ),
        *(("largest", one.id, str(one.messages), str(one.words), str(one.bytes), one.title) for one in counted.largest),
    ]


_COUNTS = ("conversations", "damaged", "archived", "messages", "words", "bytes")


def _chart(counted: Stats) -> None:
    """The counts in a terminal, with bars for the months and the roles."""
    from rich.table import Table
    from rich.text import Text

    screen = console()
    screen.print("  ".join(f"{getattr(counted, name):,} {name}" for name in _COUNTS if getattr(counted, name)))
    for title, named in (("month", counted.by_month), ("role", counted.by_role)):
        most = max((tally.messages for tally in named.values()), default=0)
        if not most:
            continue
        drawn = Table(box=None, header_style="bold", pad_edge=False)
        for name in (title, "messages", "words", ""):
            drawn.add_column(name.upper(), justify="right" if name in ("messages", "words") else "left", no_wrap=True)
        for name, tally in named.items():
            bar = "█" * max(1, round(_BAR * tally.messages / most))
            drawn.add_row(Text(one_line(name)), f"{tally.messages:,}", f"{tally.words:,}", Text(bar, style="cyan"))
        screen.print()
        screen.print(drawn)
    if counted.largest:
        drawn = Table(box=None, header_style="bold", pad_edge=False)
        for name in ("largest", "messages", "words", "title"):
            right = name in ("messages", "words")
            drawn.add_column(name.upper(), justify="right" if right else "left", no_wrap=name != "title")
        for one in counted.largest:
            drawn.add_row(Text(one.id), f"{one.messages:,}", f"{one.words:,}", Text(one_line(one.title)))
        screen.print()
        screen.print(drawn)


@commands.command("reindex")
def reindex(ctx: typer.Context) -> None:
    """Build the index anew from the files. It is never necessary: the index looks after itself."""
    with store_of(ctx) as store, progress(_INDEXING) as told:
        counts = store.reindex(told)
    if asked(ctx).json:
        out_json(counts)
    else:
        named = ", ".join(f"{counts[name]:,} {name}" for name in ("conversations", "messages", "words"))
        damaged = f"; {counts['damaged']:,} damaged" if counts["damaged"] else ""
        out(f"indexed {named}{damaged}")
