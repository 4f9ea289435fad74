"""`git commit` and `git sync`: commit the store to its repository, and exchange commits with a
remote.

With `--follow` a loop commits or syncs whenever nobody has written for a while (`_AutocommitLoop`).

What must stay true: the output names what was done, also if a person has to do the rest. Then the
command has an exit code of its own.
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
    from capsule.git.commit import CommitResult, Progress
    from capsule.git.sync import SyncResult
    from capsule.store.store import CoreStore


#: Seconds without a change after which an autocommit commits by default.
QUIET = 30
#: Seconds after which the loop syncs, even if nothing changed here.
_SYNC_PERIOD_S = 300.0
#: Most seconds of one wait. Between two waits a signal can end the loop.
_WAIT_S = 0.25

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
        _run_autocommit(idle_s, syncs=syncs)
        return
    refuse_if(syncs, "is for --follow; once: capsule git sync", "--sync")
    with open_core_store() as store:
        with SignalGuard() as guard, _guarded_steps(guard) as report:
            result = git.open(store).commit(_subject(message), progress=report)
        print_answer(result.as_json(), "\n".join(_commit_lines(result)) or "nothing to commit")
    _raise_if_left_out(result)


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
    person resolves it: capsule git resolve
    """
    with open_core_store() as store:
        with SignalGuard() as guard, _guarded_steps(guard) as report:
            result = git.open(store).sync(_subject(message), unrelated=unrelated, progress=report)
        conflicts = store.conflicts.list()
        print_answer(
            result.as_json() | {"conflicts": [conflict.as_json() for conflict in conflicts]},
            "\n".join(_sync_lines(result))
            or ("nothing to commit" if result.offline or not result.remote else "up to date"),
        )
    _warn_about_remote(result)
    _raise_if_left_out(result.committed)
    if conflicts:
        text = (
            "clones changed the same field; see: capsule git resolve --list; resolve it: "
            "capsule git resolve ID"
        )
        fields = (
            f"conversation {conflict.id} {conflict.title!r}: {conflict.field}"
            for conflict in conflicts
        )
        raise CommandStopped("\n".join([text, *fields]))


def _run_autocommit(idle_s: int, *, syncs: bool) -> None:
    """Commit or sync in a loop until a signal comes, then commit the rest."""
    with open_core_store() as store, SignalGuard() as guard:
        loop = _AutocommitLoop(store, idle_s, guard, syncs=syncs)
        try:
            cursor = None
            while True:
                # An exception while it waits could leave the lock of a thread taken.
                guard.defer_signals()
                cursor = loop.wait(cursor)
                guard.allow_signals()
        except (KeyboardInterrupt, SystemExit):
            guard.finish()
            loop.end()
            raise


class _AutocommitLoop:
    """Commits or syncs when nobody has written for a while, and prints the results.

    Args:
        store: The store.
        after_s: Seconds without a write after which it acts.
        guard: The guard that a signal interrupts.
        syncs: Whether to sync instead of committing. The last commit never waits for the network.
    """

    def __init__(
        self, store: CoreStore, after_s: float, guard: SignalGuard, *, syncs: bool
    ) -> None:
        from capsule.git.commit import Autocommit

        self._clone = git.open(store)
        _ = self._clone.repository  # Raises if the store is in no repository.
        self._store = store
        self._syncs = syncs
        #: None at the end: then no step is interrupted, and there is no sync.
        self._guard: SignalGuard | None = guard
        self._timer = Autocommit(
            after_s, self._act, self._report_failure, every_s=_SYNC_PERIOD_S if syncs else None
        )
        self._reported_problems: set[str] = set()
        #: Whether the last sync could not reach the remote, and the name of the remote. Each change
        #: of it is reported once.
        self._remote_state: tuple[bool, str] | None = None

    def wait(self, cursor: str | None) -> str:
        """Wait for changes, and act when it is time. Return the cursor after the changes."""
        due_in_s = self._timer.due_in_s()
        batch = self._store.wait_for_changes(
            cursor, timeout_s=_WAIT_S if due_in_s is None else min(due_in_s, _WAIT_S)
        )
        self._timer.note_changes(batch.changes)
        self._timer.run_if_due()
        return batch.cursor

    def end(self) -> None:
        """Commit the remaining changes."""
        self._guard = None
        self._timer.run()

    def _act(self) -> None:
        """Commit or sync once, and print the result. Warn about the remote if its state has
        changed.
        """
        from capsule.git.sync import SyncResult

        # The last commit, after a signal, does not wait for the network.
        exchanges = self._syncs and self._guard is not None
        with _guarded_steps(self._guard) as report:
            if exchanges:
                result = self._clone.sync(progress=report, asks=False)
            else:
                result = SyncResult(self._clone.commit(progress=report, asks=False))
        lines = _sync_lines(result)
        if lines:
            value = result.as_json() if self._syncs else result.committed.as_json()
            print_answer(value, "\n".join(lines), line=True)
        if exchanges:
            remote_state = (bool(result.offline), result.remote)
            if remote_state != self._remote_state:
                _warn_about_remote(result)
            self._remote_state = remote_state
        for error in result.committed.invalid:
            for problem in map(str, error.problems):
                if problem not in self._reported_problems:
                    self._reported_problems.add(problem)
                    print_notice(f"not committed: {problem}")

    def _report_failure(self, error: CapsuleError) -> None:
        print_notice(f"not committed; it is tried again: {error.message}")


@contextmanager
def _guarded_steps(guard: SignalGuard | None) -> Iterator[Progress]:
    """Yield a function that reports the steps of a commit or sync. It draws a bar for long steps,
    and lets `guard`, if any, end the work between two steps.
    """
    with progress("documents") as bar:

        def report_step(step: str, completed: int, total: int) -> None:
            if guard is not None:
                guard.step(step)
            if bar is not None and total:
                bar(completed, total)

        yield report_step
    if guard is not None:
        guard.allow_signals()


def _subject(message: str | None) -> str | None:
    refuse_if(message is not None and not message.strip(), "it is empty", "--message")
    return message


def _commit_lines(result: CommitResult) -> list[str]:
    """Return the line that names a commit, if one was made."""
    return [f"committed {result.commit[:10]}: {one_line(result.subject)}"] if result.commit else []


def _sync_lines(result: SyncResult) -> list[str]:
    """Return the lines about a sync: commit, received commits, kept files, notes, pushed commits."""
    lines = _commit_lines(result.committed)
    if result.received:
        document_count = sum(len(applied.documents) for applied in result.applied)
        file_count = sum(applied.files for applied in result.applied)
        counts = with_count(document_count, "document")
        if file_count:
            counts += f", {with_count(file_count, 'other file')}"
        action = "merged" if result.merged else "received"
        commits = with_count(result.received, "commit")
        lines.append(f"{action} {commits} from {result.remote}: {counts}")
    lines += [
        f"kept {one_line(path)}, which one side deleted and the other changed"
        for path in result.kept
    ]
    lines += [one_line(note) for note in result.notes]
    for applied in result.applied:
        for path, document in applied.documents.items():
            if document.why:
                lines.append(
                    f"kept {one_line(path)}, which was deleted there: {one_line(document.why)}"
                )
            lines += [f"{one_line(path)}: {one_line(note)}" for note in document.notes]
    if result.pushed:
        lines.append(f"pushed {with_count(result.pushed, 'commit')} to {result.remote}")
    return lines


def _warn_about_remote(result: SyncResult) -> None:
    """Print a notice if the remote could not be reached or does not exist."""
    if result.offline:
        reason = result.offline.strip().splitlines()[0]
        print_notice(
            f"{result.remote} can't be reached, so nothing was exchanged: {reason}; sync again later"
        )
    elif not result.remote:
        print_notice("there is no remote to sync with; add one: git remote add origin URL")


def _raise_if_left_out(result: CommitResult) -> None:
    """Raise the error of the documents that were not committed, if there are any."""
    problems = [problem for error in result.invalid for problem in error.problems]
    if problems:
        raise InvalidDocument.of(problems)
