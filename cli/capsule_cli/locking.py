"""`lock`, `unlock`, `locks`: the instance lock, held by a name across commands."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from capsule_cli.opening import holder, store_of
from capsule_cli.options import Id, asked, usage
from capsule_cli.output import in_terminal, out, out_json, say, short_ids, short_time, table

if TYPE_CHECKING:
    from capsule.locks import LockState

commands = typer.Typer()


@commands.command("lock")
def lock(ctx: typer.Context, id: Id) -> None:
    """Lock a conversation for a named holder, until `unlock`; nobody else may write it meanwhile."""
    name = holder(ctx)
    if name is None:
        raise usage(
            "a lock needs a holder that outlives the command: name one with --instance NAME, "
            "or in the environment with CAPSULE_INSTANCE=NAME",
            "--instance",
        )
    with store_of(ctx) as store:
        id = store.resolve(id)
        # Not in a `with`: the lock is to stay when the command is over.
        store.lock(id)
        head = store.head(id)
    if asked(ctx).json:
        out_json(head.as_json())
    else:
        out(f"{id}: locked for {name}; release it with: capsule unlock {id} --instance {name}")


@commands.command("unlock")
def unlock(
    ctx: typer.Context,
    id: Id,
    force: Annotated[bool, typer.Option("--force", help="Take the lock away from whoever holds it.")] = False,
) -> None:
    """Release the lock of a conversation."""
    with store_of(ctx) as store:
        id = store.resolve(id)
        released = store.unlock(id, force=force)
    if asked(ctx).json:
        out_json({"id": id, "released": released})
    else:
        out(f"{id}: {'unlocked' if released else 'was not locked'}")


@commands.command("locks")
def locks(
    ctx: typer.Context,
    orphaned: Annotated[bool, typer.Option("--orphaned", help="Only those whose holder is gone.")] = False,
) -> None:
    """List the locks, and whether their holders live: held, orphaned, or elsewhere (on another host)."""
    with store_of(ctx) as store:
        found = [state for state in store.locks() if not orphaned or state.state == "orphaned"]
    if asked(ctx).json:
        out_json([asdict(state) for state in found])
        return
    ids = short_ids(state.id for state in found) if in_terminal() else {}
    rows = [_row(state, ids) for state in found]
    table(("id", "state", "holder", "who", "since", "title"), rows, empty="no conversation is locked")
    if any(state.state == "orphaned" for state in found):
        say("an orphaned lock stands in nobody's way: the next write takes it over; or: capsule unlock ID --force")


def _row(lock: LockState, ids: dict[str, str]) -> tuple[str, ...]:
    holder = lock.name or (lock.instance[:8] if ids else lock.instance)
    id, who = ids.get(lock.id, lock.id), f"{lock.user}@{lock.host}"
    return (id, lock.state, holder, who, short_time(lock.since), lock.title)
