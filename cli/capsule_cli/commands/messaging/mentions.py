"""`mention`: the messages that ask something of an agent by its name."""

from __future__ import annotations

from typing import Annotated, Literal

from capsule_cli.public import acting
from capsule_cli.shared.options import argument, option
from capsule_cli.shared.passing import Rows, passing

does = passing(acting)

State = Literal["open", "unread", "read", "done", "all"]
Kind = Literal["mention", "review", "action", "fyi"]

list_ = does(
    """List the messages that mention the agent, the latest first. It marks nothing read.

    A mention is read when its message is read, and done when the agent marks it as done.
    """,
)(
    "messages.mentions",
    Rows(
        {"id": "mail.id", "state": "state", "kind": "mail.mention", "from": "mail.from_"}
        | {"conversation": "mail.conversation", "text": "mail.content"},
        "there is no such mention",
    ),
    state=(
        Annotated[
            State, option("--state STATE", "Print those in this state; open: not done.", ...)
        ],
        "open",
    ),
    kind=Annotated[Kind | None, option("--kind KIND", "Print those of this kind.", ...)],
    limit=(Annotated[int, option("--limit -n N", "Print at most N.", ..., min=1)], 100),
)
Mentioning = Annotated[str, argument("ID", "The message: its id.", ...)]
done = does("Mark a mention as done.")(
    "messages.done",
    "{message}: done",
    value=lambda _, message: {"message": message, "done": True},
    message=Mentioning,
)
reopen = does("Mark a mention as not done.")(
    "messages.reopen",
    "{message}: open",
    value=lambda _, message: {"message": message, "done": False},
    message=Mentioning,
)
