"""`lock`: take, release and list locks on conversations."""

from __future__ import annotations

from dataclasses import asdict

from capsule_cli.shared.global_options import global_options
from capsule_cli.shared.options import Id, flag, usage_error
from capsule_cli.shared.output import in_terminal, print_answer, print_list, print_notice, short_ids
from capsule_cli.shared.stores import instance_name, open_conversation, open_core_store


def take(id: Id) -> None:
    """Lock a conversation for a named holder until it is released. Nobody else can write to it
    meanwhile.
    """
    name = instance_name()
    if name is None:
        raise usage_error(
            "a lock needs a holder that outlives the command: name one with --instance NAME, "
            "or in the environment with CAPSULE_INSTANCE=NAME",
            "--instance",
        )
    with open_conversation(id) as (store, conversation_id):
        # Not in a `with`: the lock stays after the command.
        store.locks.take(conversation_id)
        head = store.head(conversation_id)
    release_command = f"capsule lock release {conversation_id} --instance {name}"
    print_answer(
        head.as_json(),
        f"{conversation_id}: locked for {name}; release it with: {release_command}",
    )


def release(
    id: Id, force: bool = flag("--force", "Release it even if another holder has it.")
) -> None:
    """Release the lock of a conversation."""
    with open_conversation(id) as (store, conversation_id):
        was_locked = store.locks.release(conversation_id, force=force)
    print_answer(
        {"id": conversation_id, "released": was_locked},
        f"{conversation_id}: {'unlocked' if was_locked else 'was not locked'}",
    )


def list_(orphaned: bool = flag("--orphaned", "List only locks whose holder is dead.")) -> None:
    """List the locks, and say whether each holder is alive: held, orphaned, or elsewhere (on
    another host).
    """
    with open_core_store() as store:
        locks = list(store.locks.list())
        ids = store.ids() if in_terminal() else []
    if orphaned:
        locks = [lock for lock in locks if lock.state == "orphaned"]
    holders = short_ids(lock.instance for lock in locks) if in_terminal() else {}
    rows = [
        (
            lock.id,
            lock.state,
            lock.name or holders.get(lock.instance, lock.instance),
            f"{lock.user}@{lock.host}",
            lock.since,
            lock.title,
        )
        for lock in locks
    ]
    columns = ("id", "state", "holder", "who", "since", "title")
    value = [asdict(lock) for lock in locks]
    print_list(value, columns, rows, "no conversation is locked", ids=ids)
    if not global_options.json and any(lock.state == "orphaned" for lock in locks):
        print_notice(
            "an orphaned lock blocks nobody: the next write takes it over; or run: capsule "
            "lock release ID --force"
        )
