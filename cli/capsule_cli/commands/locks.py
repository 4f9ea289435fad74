"""`lock`, `unlock`, `locks`: the instance lock, held by a name across commands."""

from __future__ import annotations

from dataclasses import asdict

import typer

from capsule_cli.shared.asked import asked
from capsule_cli.shared.opening import conversation, holder, store_of
from capsule_cli.shared.options import Id, flag, usage
from capsule_cli.shared.output import answer, in_terminal, listing, say

commands = typer.Typer()


@commands.command("lock")
def lock(id: Id) -> None:
    """Lock a conversation for a named holder until `unlock`. Nobody else can write to it meanwhile."""
    name = holder()
    if name is None:
        raise usage(
            "a lock needs a holder that outlives the command: name one with --instance NAME, "
            "or in the environment with CAPSULE_INSTANCE=NAME",
            "--instance",
        )
    with conversation(id) as (store, id):
        # Not in a `with`: the lock is to stay when the command is over.
        store.locks.take(id)
        head = store.head(id)
    answer(head.as_json(), f"{id}: locked for {name}; release it with: capsule unlock {id} --instance {name}")


@commands.command("unlock")
def unlock(id: Id, force: bool = flag("--force", "Take the lock away from whoever holds it.")) -> None:
    """Release the lock of a conversation."""
    with conversation(id) as (store, id):
        released = store.locks.release(id, force=force)
    answer({"id": id, "released": released}, f"{id}: {'unlocked' if released else 'was not locked'}")


@commands.command("locks")
def locks(orphaned: bool = flag("--orphaned", "List only locks whose holder is gone.")) -> None:
    """List the locks, and say whether each holder is alive: held, orphaned, or elsewhere (on another host)."""
    with store_of() as store:
        found = [state for state in store.locks.list() if not orphaned or state.state == "orphaned"]
    instances = slice(8 if in_terminal() else None)
    rows = [
        (lock.id, lock.state, lock.name or lock.instance[instances], f"{lock.user}@{lock.host}", lock.since, lock.title)
        for lock in found
    ]
    columns = ("id", "state", "holder", "who", "since", "title")
    listing([asdict(state) for state in found], columns, rows, "no conversation is locked")
    if not asked.json and any(state.state == "orphaned" for state in found):
        say("an orphaned lock stands in nobody's way: the next write takes it over; or: capsule unlock ID --force")
