"""`group`: conversations of several agents, which they make, join and leave."""

from __future__ import annotations

from typing import Annotated, Literal

from capsule_cli.public import acting, acting_or_owner
from capsule_cli.shared.options import Agents, Id, With, argument, option
from capsule_cli.shared.output import one_line
from capsule_cli.shared.passing import Rows, passing

does = passing(acting)

Name = Annotated[str, argument("NAME", "The name of the group.", ...)]
_HISTORY = "Show participants the messages since they joined, or all messages."

new = does("Make a group, with the agent in it if there is one, and print its id.")(
    "groups.create",
    "{0.id}",
    opens=acting_or_owner,
    name=Name,
    with_=With,
    history=(Annotated[Literal["joined", "all"], option("--history", _HISTORY, ...)], "joined"),
)
add = does(
    "Add agents to a group, or bring back agents that left. They read the messages from now on."
)("groups.add", "{0.id}: added {agents}", opens=acting_or_owner, id=Id, agents=Agents)
leave = does("Leave a group. When the last one leaves, the group is archived.")(
    "groups.leave", "{0.id}: {agent} left", id=Id
)
set_ = does("Change the name of a group.")(
    "groups.rename",
    lambda head, **_: f"{head.id}: renamed to {one_line(head.title)!r}",
    opens=acting_or_owner,
    id=Id,
    name=Annotated[str, option("--name NAME", "Give it this name.", ...)],
)
list_ = does("List the groups that the agent is in, the latest first. Without an agent: all.")(
    "groups.list",
    Rows(
        {
            "id": "id",
            "updated": "updated_at",
            "agents": lambda head: [it.id for it in head.participants if it.is_in],
        }
        | {"title": "title"},
        "there is no group",
    ),
    opens=acting_or_owner,
)
