"""What merges left to be settled: `git resolve`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import orjson
import typer

from capsule.errors import InvalidInput
from capsule_cli.completion import complete_id
from capsule_cli.shared.global_options import global_options
from capsule_cli.shared.options import argument, flag, option, refuse_if
from capsule_cli.shared.output import (
    CommandStopped,
    in_terminal,
    one_line,
    print_answer,
    print_list,
    print_notice,
)
from capsule_cli.shared.stores import open_conversation, open_core_store

if TYPE_CHECKING:
    from capsule.format.merge.annotations import Conflict
    from capsule.store.store import CoreStore


def _list(id: str | None) -> None:
    with open_core_store() as store:
        conflicts = store.conflicts.list(store.resolve(id) if id is not None else None)
        ids = store.ids() if in_terminal() else []
    rows = [
        (
            conflict.id,
            "" if in_terminal() else conflict.title,  # For a person the value is worth more.
            conflict.field,
            str(number),
            _shown(value),
            at or "",
            "stands" if value == conflict.kept else "",
        )
        for conflict in conflicts
        for number, (value, at) in enumerate(conflict.values, 1)
    ]
    columns = ("id", "title", "field", "n", "value", "set at", "")
    value = [conflict.as_json() for conflict in conflicts]
    print_list(value, columns, rows, "there are no conflicts", last="value", ids=ids)


def resolve(
    id: str | None = argument(
        "ID",
        "The conversation. With --list: only its conflicts.",
        autocompletion=complete_id,
    ),
    field: str | None = argument(
        "FIELD", "The field. You may leave it out if only one field has a conflict."
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
    with open_conversation(id) as (store, id):
        settled = []
        for dispute in _meant(store, id, field, only_one=keep is not None or value is not None):
            chosen = _chosen(dispute, keep, value)
            store.conflicts.resolve(id, dispute.field, chosen)
            settled.append({"field": dispute.field, "value": chosen})
        left = [conflict.as_json() for conflict in store.conflicts.list(id)]
    done = "\n".join(
        f"{id}: {one_line(entry['field'])} is {_shown(entry['value'])}" for entry in settled
    )
    print_answer({"id": id, "settled": settled, "left": left}, done)
    if left and not global_options.json:
        print_notice(
            f"{len(left)} more to resolve; list them with: capsule git resolve {id} --list"
        )


def _meant(store: CoreStore, id: str, field: str | None, *, only_one: bool) -> list[Conflict]:
    """The disputes to settle. Raises InvalidInput: There are none, or more than the one that was to
    be named.
    """
    conflicts = store.conflicts.list(id)
    names = ", ".join(one_line(dispute.field) for dispute in conflicts)
    if not conflicts:
        raise InvalidInput(f"conversation {id} has nothing to resolve")
    meant = [dispute for dispute in conflicts if field in (None, dispute.field)]
    if not meant:
        raise InvalidInput(
            f"conversation {id} has no conflict in {one_line(field or '')!r}, only: {names}"
        )
    if only_one and len(meant) > 1:
        raise InvalidInput(
            f"conversation {id} has conflicts in several fields; name one of: {names}"
        )
    return meant


def _chosen(dispute: Conflict, keep: int | None, value: str | None) -> Any:
    """The value that was chosen: as typed (JSON, unless the values are texts), or by its number.

    Raises:
        InvalidInput: The choice is none of the values, or nobody can be asked.
        Stopped: The person doesn't want to decide.
    """
    if value is None:
        number = _ask(dispute) if keep is None else keep
        if not 1 <= number <= len(dispute.values):
            raise InvalidInput(
                f"{dispute.field} has {len(dispute.values)} values; there is no number {number}"
            )
        return dispute.values[number - 1][0]
    if all(other is None or isinstance(other, str) for other, _ in dispute.values):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        raise InvalidInput(
            f"the values of {dispute.field} are not texts, so --value must be valid JSON"
        ) from None


def _ask(dispute: Conflict) -> int:
    if not sys.stdin.isatty():
        raise InvalidInput(
            f"choose the value of {dispute.field} with --keep N or --value TEXT; list the "
            "values with: capsule git resolve --list"
        )
    print_notice(f'{dispute.field} of conversation {dispute.id} "{one_line(dispute.title)}":')
    for number, (value, at) in enumerate(dispute.values, 1):
        print_notice(
            f"  {number}  "
            f"{_shown(value)}{f'  ({at})' if at else ''}{'  stands' if value == dispute.kept else ''}"
        )
    choice = typer.prompt(
        f"Which value? 1-{len(dispute.values)}, or q to leave the conflict", default="q", err=True
    )
    if not str(choice).isdecimal():
        raise CommandStopped("nothing was changed")
    return int(choice)


def _shown(value: Any) -> str:
    return one_line(value if isinstance(value, str) else orjson.dumps(value).decode())
