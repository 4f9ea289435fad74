"""The commands of `capsule git`, and the past versions for `show --at`.

What must stay true: the output names what was done, also if a person has to do the rest. Then
`setup` and `status` exit with 1, and `commit` and `sync` with an exit code of their own. With
`--follow`, a loop commits or syncs whenever nobody has written for a while (`_AutocommitLoop`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import orjson

from capsule import git
from capsule.errors import CapsuleError, InvalidDocument, InvalidInput
from capsule_cli.exits import SignalGuard
from capsule_cli.shared.options import (
    DryRun,
    Id,
    Limit,
    argument,
    complete_id,
    flag,
    option,
    parse_duration,
    refuse_if,
)
from capsule_cli.shared.output import (
    CommandStopped,
    global_options,
    in_terminal,
    one_line,
    print_answer,
    print_json,
    print_list,
    print_notice,
    print_rows,
    print_safe_bytes,
    progress,
    styled,
    with_count,
    with_progress,
)
from capsule_cli.shared.programs import paged
from capsule_cli.shared.stores import open_conversation, open_core_store

if TYPE_CHECKING:
    from capsule.format.merge.annotations import Conflict
    from capsule.git.clone_setup import RepositoryStatus, SetupStep
    from capsule.git.commit import CommitResult, Progress
    from capsule.git.history import PastVersion, TimelineStep
    from capsule.git.sync import SyncResult
    from capsule.store.store import CoreStore


# -- git setup, git teardown, git status -----------------------------------------------------------


def setup(
    everywhere: bool = flag(
        "--global", "Add the programs to your own configuration of git, for all your clones."
    ),
) -> None:
    """Set this clone up for conversations: attributes, ignored files, git's configuration, a
    pre-commit hook.

    Every clone needs this once. The exit code is 1 if you have to do something by hand.
    """
    with open_core_store() as store:
        steps = git.open(store).setup(everywhere=everywhere)
    _print_steps(steps, ok=not any(step.todo for step in steps))


def teardown(
    everywhere: bool = flag(
        "--global", "Remove the programs from your own configuration of git too."
    ),
) -> None:
    """Remove only what `setup` added. Report what stays, and why."""
    with open_core_store() as store:
        steps = git.open(store).teardown(everywhere=everywhere)
    _print_steps(steps)


def status() -> None:
    """Report whether this clone is set up, what changed since the last commit, and what to do; exit
    1 when there is something to do."""
    with open_core_store() as store:
        status = git.open(store).status()
    print_answer(
        status.as_json(), "\n".join(map(one_line, _status_lines(status))), ok=status.is_fine
    )


def _print_steps(steps: Sequence[SetupStep], *, ok: bool = True) -> None:
    """Print the steps of a setup or teardown. `ok` is false if a person has to do something."""
    lines = [] if steps else ["nothing of Capsule is set up here"]
    place_names = {
        "repository": "git's configuration of this repository",
        "yours": "your own configuration of git",
    }
    for step in steps:
        place = place_names.get(step.where, step.where)
        lines.append(f"{one_line(place)}: {one_line(step.what)}")
        if step.todo:
            lines.append(f"  to do: {one_line(step.todo)}")
    if any(step.changed and step.kind in ("attributes", "ignore") for step in steps):
        advice = "commit .gitattributes and .gitignore, so that other clones get them too"
        lines.append(f"{advice}: capsule git commit")
    print_answer([step.as_json() for step in steps], "\n".join(lines), ok=ok)


def _status_lines(status: RepositoryStatus) -> Iterator[str]:
    """Yield the findings with what to do, and a summary of the clone."""
    for todo, findings in groupby(status.findings, lambda finding: finding.todo):
        yield from (finding.what for finding in findings)
        yield f"  {todo}"
    place = status.top
    if status.folder:
        place += f", folder {status.folder}"
    branch = "no branch is checked out"
    if status.branch:
        branch = f"branch {status.branch}"
        if status.upstream:
            branch += f", which follows {status.upstream}"
    verdict = "this clone is set up" if status.is_fine else "something is to be done"
    yield f"{verdict}: {place}; {branch}"


# -- git commit, git sync --------------------------------------------------------------------------

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


# -- git log, git diff, git restore ----------------------------------------------------------------

_REVISION = (
    "a commit as git names it, or a date or time (UTC) like 2025-01-31: the last commit up to then"
)


def log(id: Id, limit: Limit = None) -> None:
    """List the changes of a conversation with their authors, commit by commit, the latest first."""
    with open_core_store() as store:
        clone = git.open(store)
        length = 0

        def row(step: TimelineStep) -> tuple[str, str, str, str]:
            nonlocal length
            words = "; ".join(step.words) + (f": {step.damaged}" if step.damaged else "")
            if step.commit is None:
                return ("", "", "not committed yet", words)
            length = length or len(clone.repository.short(step.commit.hash))
            time = step.commit.at  # With the zone it was made in: for a person, to the minute.
            time = f"{time[:16].replace('T', ' ')} {time[19:]}" if in_terminal() else time
            return (step.commit.hash[:length], time, step.commit.author, words)

        with closing(clone.log(clone.resolve(id), limit=limit)) as steps:
            if not global_options.json and not in_terminal():
                for step in steps:
                    print_rows([row(step)])
                return
            timeline = list(with_progress("reading", steps))
        with paged():
            columns = ("commit", "when", "author", "what")
            print_list(
                [step.as_json() for step in timeline],
                columns,
                map(row, timeline),
                "git has no version of it",
                last="what",
            )


def diff(
    id: Id,
    old_revision: str = argument("REV", f"The earlier version: {_REVISION}.", ...),
    new_revision: str | None = argument(
        "REV", "The later version, likewise. Without it: the present conversation."
    ),
) -> None:
    """Print what changed between two versions of a conversation in git, in the form of a chat.

    With --json: the messages added, edited and removed, and the fields that changed.
    """
    with open_core_store() as store:
        clone = git.open(store)
        difference = clone.diff(clone.resolve(id), old_revision, new_revision)
        if global_options.json:
            print_json(difference.as_json())
            return
        with paged():
            print_safe_bytes(difference.text(coloured=styled("x", 1) != "x"))


def past_of(store: CoreStore, id: str, revision: str, *, announce: bool) -> PastVersion:
    """Return a past version of a conversation, which may be deleted now. With `announce`, name its
    commit on stderr.
    """
    clone = git.open(store)
    version = clone.version(clone.resolve(id), revision)
    if announce:
        print_notice(one_line(_version_text(version)))
    return version


def _version_text(version: PastVersion) -> str:
    return f"as of commit {version.label}, {version.commit.at}, by {version.commit.author}"


def restore(
    id: Id,
    revision: str = option("--at REV", f"The version: {_REVISION}.", ...),
    dry_run: DryRun = False,
) -> None:
    """Bring an earlier version of a conversation back from git, as a new write."""
    with open_core_store() as store:
        clone = git.open(store)
        restored = clone.restore(clone.resolve(id), revision, dry_run=dry_run)
    value = restored.as_json()
    version_text = _version_text(restored.version)
    text = f"{'would be' if dry_run else 'is'} {version_text}: {'; '.join(restored.changes)}"
    if not restored.changes:
        text = f"already has this version, {version_text}; nothing was changed"
    if restored.kept:
        text += f"; the former version is kept as {one_line(restored.kept)}"
    print_answer(value, f"conversation {value['id']} {one_line(value['title'])!r} {text}")


# -- git resolve -----------------------------------------------------------------------------------


def _list(id: str | None) -> None:
    with open_core_store() as store:
        conflicts = store.conflicts.list(store.resolve(id) if id is not None else None)
        ids = store.ids() if in_terminal() else []
    rows = []
    for conflict in conflicts:
        # In a terminal the title is left out, because the value needs the space.
        title = "" if in_terminal() else conflict.title
        for number, (value, time) in enumerate(conflict.values, 1):
            mark = "stands" if value == conflict.kept else ""
            cells = (conflict.field, str(number), _value_text(value), time or "", mark)
            rows.append((conflict.id, title, *cells))
    columns = ("id", "title", "field", "n", "value", "set at", "")
    answer = [conflict.as_json() for conflict in conflicts]
    print_list(answer, columns, rows, "there are no conflicts", last="value", ids=ids)


def resolve(
    id: str | None = argument(
        "ID",
        "The conversation. With --list: only its conflicts.",
        autocompletion=complete_id,
    ),
    field: str | None = argument(
        "FIELD",
        "The field. Without it: every field with a conflict, one after the other. With --keep or "
        "--value there must be only one.",
    ),
    keep: int | None = option("--keep N", "Take the N-th of its values, from 1.", min=1),
    value: str | None = option(
        "--value TEXT", "Take this value. Write it as JSON if the values are not texts."
    ),
    lists: bool = flag(
        "--list", "List the conflicting fields with their values, and resolve none."
    ),
) -> None:
    """Resolve a field that two merged versions changed differently. At a terminal it asks which
    value to keep.
    """
    if lists:
        refuse_if(
            keep is not None or value is not None,
            "it resolves nothing; leave out --keep and --value",
            "--list",
        )
        _list(id)
        return
    refuse_if(id is None, "name the conversation, or give --list", "ID")
    assert id is not None
    refuse_if(keep is not None and value is not None, "give --keep or --value, not both", "--value")
    with open_conversation(id) as (store, conversation_id):
        resolved: list[dict[str, Any]] = []
        for field_conflict in _matching_conflicts(
            store, conversation_id, field, must_be_one=keep is not None or value is not None
        ):
            try:
                chosen = _chosen_value(field_conflict, keep, value)
            except CommandStopped:
                if not resolved:
                    raise
                # The earlier answers are already written, one after the other.
                fields = ", ".join(one_line(entry["field"]) for entry in resolved)
                raise CommandStopped(
                    f"{one_line(field_conflict.field)} was left; resolved before it: {fields}"
                ) from None
            store.conflicts.resolve(conversation_id, field_conflict.field, chosen)
            resolved.append({"field": field_conflict.field, "value": chosen})
        remaining = [conflict.as_json() for conflict in store.conflicts.list(conversation_id)]
    done = "\n".join(
        f"{conversation_id}: {one_line(entry['field'])} is {_value_text(entry['value'])}"
        for entry in resolved
    )
    # The names in the JSON are public, and older than those of the variables.
    print_answer({"id": conversation_id, "settled": resolved, "left": remaining}, done)
    if remaining and not global_options.json:
        print_notice(
            f"{len(remaining)} more to resolve; list them with: capsule git resolve {conversation_id} --list"
        )


def _matching_conflicts(
    store: CoreStore, id: str, field: str | None, *, must_be_one: bool
) -> list[Conflict]:
    """Return the conflicts of a field, or all if `field` is None.

    Raises InvalidInput: none matches, or several match and `must_be_one` is set.
    """
    conflicts = store.conflicts.list(id)
    names = ", ".join(one_line(conflict.field) for conflict in conflicts)
    if not conflicts:
        raise InvalidInput(f"conversation {id} has nothing to resolve")
    matching = [conflict for conflict in conflicts if field in (None, conflict.field)]
    if not matching:
        raise InvalidInput(
            f"conversation {id} has no conflict in {one_line(field or '')!r}, only: {names}"
        )
    if must_be_one and len(matching) > 1:
        raise InvalidInput(
            f"conversation {id} has conflicts in several fields; name one of: {names}"
        )
    return matching


def _chosen_value(conflict: Conflict, keep: int | None, value: str | None) -> Any:
    """Return the value that was chosen, by its number or as typed. A typed value is JSON, unless
    the values are texts.

    Raises:
        InvalidInput: There is no such value, or there is nobody to ask.
        CommandStopped: The person chose none.
    """
    if value is None:
        number = _ask_for_number(conflict) if keep is None else keep
        if not 1 <= number <= len(conflict.values):
            raise InvalidInput(
                f"{conflict.field} has {len(conflict.values)} values; there is no number {number}"
            )
        chosen, _time = conflict.values[number - 1]
        return chosen
    if all(other is None or isinstance(other, str) for other, _ in conflict.values):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        raise InvalidInput(
            f"the values of {conflict.field} are not texts, so --value must be valid JSON"
        ) from None


def _ask_for_number(conflict: Conflict) -> int:
    import typer

    if not sys.stdin.isatty():
        raise InvalidInput(
            f"choose the value of {conflict.field} with --keep N or --value TEXT; list the "
            "values with: capsule git resolve --list"
        )
    print_notice(f'{conflict.field} of conversation {conflict.id} "{one_line(conflict.title)}":')
    for number, (value, time) in enumerate(conflict.values, 1):
        print_notice(
            f"  {number}  "
            f"{_value_text(value)}{f'  ({time})' if time else ''}{'  stands' if value == conflict.kept else ''}"
        )
    choice = typer.prompt(
        f"Which value? 1-{len(conflict.values)}, or q to leave the conflict", default="q", err=True
    )
    if not str(choice).isdecimal():
        raise CommandStopped("nothing was changed")
    return int(choice)


def _value_text(value: Any) -> str:
    """Return a value in one line. None, which stands for a field that is absent, is `null`."""
    return one_line(value if isinstance(value, str) else orjson.dumps(value).decode())
