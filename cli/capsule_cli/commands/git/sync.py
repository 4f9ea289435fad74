"""`git commit` and `git sync`: the store into its repository, and from clone to clone.

What must stay true: the output says what was done even when something is left to a person, which
has an exit code of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from capsule import git
from capsule.errors import CapsuleError, InvalidDocument
from capsule_cli.shared.options import flag, option, parse_duration, refuse_if
from capsule_cli.shared.output import (
    CommandStopped,
    one_line,
    print_answer,
    print_notice,
    progress,
    with_count,
)
from capsule_cli.shared.stores import open_core_store
from capsule_cli.signals import SignalGuard

if TYPE_CHECKING:
    from capsule.git.commits.commit import CommitResult
    from capsule.git.commits.operation import Progress
    from capsule.git.commits.sync import SyncResult
    from capsule.store.store import CoreStore


#: How many seconds without a change an autocommit waits for by default.
QUIET = 30
#: How often one that syncs asks the remote, though nothing changed here.
_EVERY_S = 300.0
#: How often it looks whether it was asked to end, while it waits.
_LOOK_S = 0.25

_MESSAGE = "Give the commit this subject. Without it, the subject says what changed."
Message = Annotated[str | None, option("--message -m TEXT", _MESSAGE, ...)]


def commit(
    message: Message = None,
    follow: bool = flag(
        "--follow -f", "Continue until Ctrl-C, and commit whenever nobody has written for a while."
    ),
    idle: str = option(
        "--idle DURATION",
        "With --follow: commit when nobody has written for this long.",
        f"{QUIET}s",
    ),
    syncs: bool = flag(
        "--sync", "With --follow: sync instead of committing, and every five minutes in any case."
    ),
) -> None:
    """Commit only changes of the store: conversations, agents, capsule.toml, .gitattributes.

    The commit contains no half-written message and no lock. Other staged files stay staged. The
    message says what changed. A file that doesn't parse is named and left out (exit code 5); the
    rest is committed.

    With --follow it prints a line for each commit, or a JSON object. If somebody writes without a
    pause, it commits after twenty times the time of --idle. It reports what it can't commit yet,
    and tries again. At the end, by Ctrl-C (exit code 130) or SIGTERM (143), it commits the
    remaining changes.
    """
    idle_s = parse_duration(idle, "--idle", unit="s")
    refuse_if(idle_s < 1, "the least is 1s", "--idle")
    if follow:
        refuse_if(message is not None, "each commit gets its own subject", "--message")
        _autocommit(idle_s, syncs=syncs)
        return
    refuse_if(syncs, "is for --follow; once: capsule git sync", "--sync")
    with open_core_store() as store:
        with SignalGuard() as ending, _shown(ending) as steps:
            done = git.open(store).commit(_subject(message), progress=steps)
        print_answer(done.as_json(), "\n".join(_of_commit(done)) or "nothing to commit")
    _leave(done)


def sync(
    message: Message = None,
    unrelated: bool = flag(
        "--allow-unrelated-histories",
        "Merge even with a remote that has no history in common with this repository.",
    ),
) -> None:
    """Commit, merge the branch's remote, and push. Repeat this if somebody else pushed first.

    It can run while people and programs write, and keeps their messages and their locks. A remote
    that can't be reached is no error. Conversations always merge. If other files can't be merged,
    nothing changes (exit code 9). If two clones changed the same field, the exit code is 1 until a
    person settles it: capsule git resolve
    """
    with open_core_store() as store:
        with SignalGuard() as ending, _shown(ending) as steps:
            done = git.open(store).sync(_subject(message), unrelated=unrelated, progress=steps)
        disputed = store.conflicts.list()
        print_answer(
            done.as_json() | {"conflicts": [conflict.as_json() for conflict in disputed]},
            "\n".join(_of_sync(done))
            or ("nothing to commit" if done.offline or not done.remote else "up to date"),
        )
    _warn_of(done)
    _leave(done.committed)
    if disputed:
        said = (
            "clones changed the same field; see: capsule git resolve --list; resolve it: "
            "capsule git resolve ID"
        )
        fields = (
            f"conversation {conflict.id} {conflict.title!r}: {conflict.field}"
            for conflict in disputed
        )
        raise CommandStopped("\n".join([said, *fields]))


def _autocommit(idle_s: int, *, syncs: bool) -> None:
    with open_core_store() as store, SignalGuard() as ending:
        auto = _AutocommitLoop(store, idle_s, ending, syncs=syncs)
        try:
            since = None
            while True:
                # An exception in the midst of waiting could leave a thread's lock behind.
                ending.defer_signals()
                since = auto.wait(since)
                ending.allow_signals()
        except (KeyboardInterrupt, SystemExit):
            ending.finish()
            auto.end()
            raise


class _AutocommitLoop:
    """Commits, or syncs, when nobody has written for a while, and says what it did.

    Args:
        after_s: How long nobody must have written, in seconds.
        syncs: Whether it syncs instead, but for the end, which waits for no network.
    """

    def __init__(
        self, store: CoreStore, after_s: float, ending: SignalGuard, *, syncs: bool
    ) -> None:
        from capsule.git.commits.commit import Autocommit

        self._clone = git.open(store)
        _ = self._clone.repository  # Without one it does not begin.
        self._store, self._syncs = store, syncs
        self._ending: SignalGuard | None = ending
        self._timer = Autocommit(
            after_s, self._act, self._failed, every_s=_EVERY_S if syncs else None
        )
        self._named: set[str] = set()
        #: Whether the remote could not be reached the last time, and which it was: each change of
        #: that is said once.
        self._alone: tuple[bool, str] | None = None

    def wait(self, since: str | None) -> str:
        """Wait for changes, and act when it is time. Returns: the cursor after the changes."""
        due_in_s = self._timer.due_in_s()
        news = self._store.wait_for_changes(
            since, timeout_s=_LOOK_S if due_in_s is None else min(due_in_s, _LOOK_S)
        )
        self._timer.heard(news.changes)
        self._timer.act_if_due()
        return news.cursor

    def end(self) -> None:
        """Commit what is left."""
        self._ending = None
        self._timer.act()

    def _act(self) -> None:
        from capsule.git.commits.sync import SyncResult

        exchanges = self._syncs and self._ending is not None
        with _shown(self._ending) as steps:
            if exchanges:
                done = self._clone.sync(progress=steps, asks=False)
            else:
                done = SyncResult(self._clone.commit(progress=steps, asks=False))
        if lines := _of_sync(done):
            print_answer(
                (done if self._syncs else done.committed).as_json(), "\n".join(lines), line=True
            )
        if exchanges:
            alone = bool(done.offline), done.remote
            if alone != self._alone:
                _warn_of(done)
            self._alone = alone
        for problem in (
            str(problem) for error in done.committed.invalid for problem in error.problems
        ):
            if problem not in self._named:
                self._named.add(problem)
                print_notice(f"not committed: {problem}")

    def _failed(self, error: CapsuleError) -> None:
        print_notice(f"not committed; it is tried again: {error.message}")


@contextmanager
def _shown(ending: SignalGuard | None) -> Iterator[Progress]:
    """A bar for the steps of a commit or sync that take long; `ending`, if any, ends it between two
    of them.
    """
    with progress("documents") as bar:

        def show(step: str, done: int, total: int) -> None:
            if ending is not None:
                ending.step(step)
            if bar is not None and total:
                bar(done, total)

        yield show
    if ending is not None:
        ending.allow_signals()


def _subject(message: str | None) -> str | None:
    refuse_if(message is not None and not message.strip(), "it is empty", "--message")
    return message


def _of_commit(done: CommitResult) -> list[str]:
    return [f"committed {done.commit[:10]}: {one_line(done.subject)}"] if done.commit else []


def _of_sync(done: SyncResult) -> list[str]:
    lines = _of_commit(done.committed)
    if done.received:
        documents = [brought for applied in done.applied for brought in applied.documents.values()]
        files = sum(applied.files for applied in done.applied)
        parts = [
            with_count(len(documents), "document"),
            *([with_count(files, "other file")] if files else []),
        ]
        how = "merged" if done.merged else "received"
        lines.append(
            f"{how} {with_count(done.received, 'commit')} from {done.remote}: {', '.join(parts)}"
        )
    lines += [
        f"kept {one_line(path)}, which one side deleted and the other changed" for path in done.kept
    ]
    lines += [one_line(note) for note in done.notes]
    for applied in done.applied:
        for path, brought in applied.documents.items():
            if brought.why:
                lines.append(
                    f"kept {one_line(path)}, which was deleted there: {one_line(brought.why)}"
                )
            lines += [f"{one_line(path)}: {one_line(note)}" for note in brought.notes]
    if done.pushed:
        lines.append(f"pushed {with_count(done.pushed, 'commit')} to {done.remote}")
    return lines


def _warn_of(done: SyncResult) -> None:
    if done.offline:
        reason = done.offline.strip().splitlines()[0]
        print_notice(
            f"{done.remote} can't be reached, so nothing was exchanged: {reason}; sync again later"
        )
    elif not done.remote:
        print_notice("there is no remote to sync with; add one: git remote add origin URL")


def _leave(done: CommitResult) -> None:
    """End with the error of what was left out, when something was."""
    problems = [problem for error in done.invalid for problem in error.problems]
    if problems:
        raise InvalidDocument.of(problems)
