"""`git commit`, `git autocommit` and `git sync`: the store into its repository, and from clone to clone.

What must stay true: what was done is told even when something is left to a person; and what is left to them has an
exit code of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from capsule import git
from capsule.errors import CapsuleError, InvalidDocument
from capsule_cli.shared.asked import asked
from capsule_cli.shared.opening import store_of
from capsule_cli.shared.options import flag, option, refuse
from capsule_cli.shared.output import Stopped, answer, counted, one_line, out, out_json, progress, say
from capsule_cli.signals import Ending

if TYPE_CHECKING:
    from capsule import Store
    from capsule.engines.changes import Changes
    from capsule.git.commits.commit import Committed
    from capsule.git.commits.operation import Progress
    from capsule.git.commits.sync import Synced


commands = typer.Typer()

#: What an autocommit waits for when it isn't told.
QUIET = 30
#: How often one that syncs asks the remote, though nothing changed here.
_EVERY_S = 300.0
#: How often it looks whether it was asked to end, while it waits.
_LOOK_S = 0.25

Message = Annotated[
    str | None,
    typer.Option(
        "--message",
        "-m",
        metavar="TEXT",
        help="Give the commit this subject. Without it, the subject says what changed.",
    ),
]


@commands.command("commit")
def commit(message: Message = None) -> None:
    """Commit what changed in the store, and nothing else: conversations, agents, capsule.toml, .gitattributes.

    The commit holds no half-written message and no lock. What you staged of other files stays staged. The message says
    what changed. A file that doesn't parse is named and left out (exit code 5); the rest is committed.
    """
    with store_of() as store:
        with Ending() as ending, _shown(ending) as steps:
            done = git.open(store).commit(_subject(message), progress=steps)
        answer(done.as_json(), "\n".join(_of_commit(done)) or "nothing to commit")
    _leave(done)


@commands.command("sync")
def sync(
    message: Message = None,
    unrelated: bool = flag(
        "--allow-unrelated-histories", "Merge even with a remote that has no history in common with this repository."
    ),
) -> None:
    """Commit, merge what the branch's remote has, and push; again if somebody else pushed first.

    It can run while people and programs write, and keeps their messages and their locks. A remote that can't be
    reached is no error. Conversations always merge. If other files can't be merged, nothing changes (exit code 9). If
    two clones changed the same field, the exit code is 1 until a person settles it: capsule git conflicts
    """
    with store_of() as store:
        with Ending() as ending, _shown(ending) as steps:
            done = git.open(store).sync(_subject(message), unrelated=unrelated, progress=steps)
        disputed = store.conflicts.list()
        answer(
            done.as_json() | {"conflicts": [one.as_json() for one in disputed]},
            "\n".join(_of_sync(done)) or ("nothing to commit" if done.offline or not done.remote else "up to date"),
        )
    _warn_of(done)
    _leave(done.committed)
    if disputed:
        said = "clones changed the same differently here; see: capsule git conflicts; settle it: capsule git resolve"
        raise Stopped("\n".join([said, *(f"conversation {one.id} {one.title!r}: {one.field}" for one in disputed)]))


@commands.command("autocommit")
def autocommit(
    after: int = option("--after SECONDS", "Commit when nobody has written for this long.", QUIET, min=1),
    syncs: bool = flag("--sync", "Sync instead of committing, and every five minutes in any case."),
) -> None:
    """Commit whenever nobody has written for a while, until Ctrl-C (exit code 130) or SIGTERM (143).

    If somebody writes without a pause, it commits after twenty times this long. It reports what it can't commit yet,
    and tries again. At the end it commits what is left. It prints a line for each commit; with --json a JSON object.
    """
    with store_of() as store, committing(store, after, syncs=syncs) as waiting:
        since = None
        while True:
            since = waiting(since, None).cursor


#: Waits for the changes after a cursor (None: from now on) in some conversations (None: in all).
Waiting = Callable[[str | None, list[str] | None], "Changes"]


@contextmanager
def committing(
    store: Store, after_s: float, *, syncs: bool = False, tells: Callable[[str], None] | None = None
) -> Iterator[Waiting]:
    """What commits by itself while the body waits with it; a signal that ends the body has it commit what is left.

    Args:
        after_s: How long nobody must have written, in seconds.
        syncs: Whether it syncs instead, but for the end, which waits for no network.
        tells: Called with what was done, a line each; None: it goes to stdout, as JSON where that was asked for.
    """
    from capsule.git.commits.autocommit import Autocommit
    from capsule.git.commits.sync import Synced

    clone = git.open(store)
    _ = clone.repository  # Without one it does not begin.
    named: set[str] = set()
    #: Whether the remote could not be reached the last time, and which it was: each change of that is said once.
    alone: tuple[bool, str] | None = None
    last = False

    def act() -> None:
        nonlocal alone
        exchanges = syncs and not last
        with _shown(None if last else ending) as steps:
            if exchanges:
                done = clone.sync(progress=steps, asks=False)
            else:
                done = Synced(clone.commit(progress=steps, asks=False))
        lines = _of_sync(done)
        if asked.json and lines and tells is None:
            out_json((done if syncs else done.committed).as_json(), line=True)
        elif tells is not None or not asked.json:
            for line in lines:
                (tells or out)(line)
        if exchanges:
            if (bool(done.offline), done.remote) != alone:
                _warn_of(done)
            alone = (bool(done.offline), done.remote)
        for problem in (str(problem) for error in done.committed.invalid for problem in error.problems):
            if problem not in named:
                named.add(problem)
                say(f"not committed: {problem}")

    def failed(error: CapsuleError) -> None:
        say(f"not committed; it is tried again: {error.message}")

    def changes(since: str | None, ids: list[str] | None = None) -> Changes:
        while True:
            ending.busy()  # An exception in the midst of waiting could leave a thread's lock behind.
            due_in_s = auto.due_in_s()
            timeout_s = _LOOK_S if due_in_s is None else min(due_in_s, _LOOK_S)
            found = store.wait_for_changes(since, ids=ids, timeout_s=timeout_s)
            auto.heard(found.changes)
            auto.act_if_due()
            ending.rest()
            if found.changes:
                return found
            since = found.cursor

    with Ending() as ending:
        auto = Autocommit(after_s, act, failed, every_s=_EVERY_S if syncs else None)
        try:
            yield changes
        except (KeyboardInterrupt, SystemExit):
            last = True
            ending.finish()
            auto.act()
            raise


@contextmanager
def _shown(ending: Ending | None) -> Iterator[Progress]:
    """A bar for the steps of a commit or sync that take long; `ending`, if any, ends it between two of them."""
    with progress("documents") as bar:

        def show(step: str, done: int, total: int) -> None:
            if ending is not None:
                ending.step(step)
            if bar is not None and total:
                bar(done, total)

        yield show
    if ending is not None:
        ending.rest()


def _subject(message: str | None) -> str | None:
    refuse(message is not None and not message.strip(), "it is empty", "--message")
    return message


def _of_commit(done: Committed) -> list[str]:
    return [f"committed {done.commit[:10]}: {one_line(done.subject)}"] if done.commit else []


def _of_sync(done: Synced) -> list[str]:
    """What a sync did, a line each."""
    lines = _of_commit(done.committed)
    if done.received:
        documents = [brought for applied in done.applied for brought in applied.documents.values()]
        files = sum(applied.files for applied in done.applied)
        what = [counted(len(documents), "document"), *([counted(files, "other file")] if files else [])]
        how = "merged" if done.merged else "received"
        lines.append(f"{how} {counted(done.received, 'commit')} from {done.remote}: {', '.join(what)}")
    lines += [f"kept {one_line(path)}, which one side deleted and the other changed" for path in done.kept]
    lines += [one_line(note) for note in done.notes]
    for applied in done.applied:
        for path, brought in applied.documents.items():
            if brought.why:
                lines.append(f"kept {one_line(path)}, which was deleted there: {one_line(brought.why)}")
            lines += [f"{one_line(path)}: {one_line(note)}" for note in brought.notes]
    if done.pushed:
        lines.append(f"pushed {counted(done.pushed, 'commit')} to {done.remote}")
    return lines


def _warn_of(done: Synced) -> None:
    if done.offline:
        reason = done.offline.strip().splitlines()[0]
        say(f"{done.remote} can't be reached, so nothing was exchanged: {reason}; sync again when it can be")
    elif not done.remote:
        say("there is no remote to exchange with; add one: git remote add origin URL")


def _leave(done: Committed) -> None:
    """End with the error of what was left out, when something was."""
    problems = [problem for error in done.invalid for problem in error.problems]
    if problems:
        raise InvalidDocument.of(problems)
