"""`git resolve`: choose a value for each field that two merged versions changed differently."""

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
