"""Plans, and the actions that they consist of: how each finds what it changes, and how it changes
it.

What must stay true: an action goes through the public methods of the store, as the agent whose file
declares it, so that the rule of who may do what decides, in the mutex of each write. The module
decides nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from capsule.engines.interface import CONVERSATIONS
from capsule.errors import CapsuleError, NotFound, Problem
from capsule.format.documents.new import CURRENT
from capsule.format.json import codec
from capsule.messaging.channels import Channels
from capsule.messaging.people.agents import Agents
from capsule.messaging.people.people import People
from capsule.messaging.people.projects import Projects

if TYPE_CHECKING:
    from capsule.store.store import CoreStore

Kind = Literal["register", "agent", "entry", "link", "channel", "member"]
Key = tuple[Kind, str, str]


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that is changed.

    Attributes:
        kind: `register` an agent; a field of an `agent`; the `entry` of an agent about another; a
            `link`, by which the agents of a project see those of another; a field of a `channel`,
            made by its `access`; a `member` of one.
        on: The id of the agent, project or channel that is changed.
        other: The field, or the id of the other agent or project.
        before, after: The value before and after; None: it is not there. A channel is then
            archived.
        by: The agent that does it, as its file declares it; None: the store's owner.
        file: The file that declares it; empty: an earlier apply is taken back.
        outcome: `planned`, `done` or `refused`.
        reason: Why it is refused.
    """

    kind: Kind
    on: str
    other: str
    before: Any
    after: Any
    by: str | None = None
    file: str = ""
    outcome: Literal["planned", "done", "refused"] = "planned"
    reason: str = ""

    @property
    def key(self) -> Key:
        """What is changed."""
        return self.kind, self.on, self.other

    def refused(self, reason: str) -> Action:
        """The action, refused."""
        return replace(self, outcome="refused", reason=reason)

    def done(self, store: CoreStore) -> Action:
        """The action after an attempt to do it. A refused one is not tried."""
        if self.outcome != "refused":
            try:
                _do(store, self)
            except CapsuleError as error:
                return self.refused(error.message)
            return replace(self, outcome="done")
        return self


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes that bring a store in line with its files, and what became of them.

    Attributes:
        actions: The actions in their order.
        snapshot: What the files declare.
        problems: What is wrong with files of agents. Such a file counts for nothing.
        number: Its number in the history; 0: it was not applied.
        time: When it was applied; empty: it was not.
    """

    actions: tuple[Action, ...]
    snapshot: Mapping[str, Any]
    problems: tuple[Problem, ...] = ()
    number: int = 0
    time: str = ""

    def having(self, outcome: str) -> list[Action]:
        """The actions with this outcome."""
        return [action for action in self.actions if action.outcome == outcome]

    def as_json(self) -> dict[str, Any]:
        """The plan as `--json` prints it, and as it is recorded."""
        digest = hashlib.sha256(codec.encode(dict(self.snapshot))).hexdigest()
        return {"version": CURRENT, "hash": f"sha256:{digest}"} | asdict(self)


def state_of(store: CoreStore, key: Key) -> Any:
    """The present value of what an action changes; None: it is not there.
    Raises InvalidDocument.
    """
    (kind, on, other), people = key, store.inner.part(People)
    if kind == "link":
        return other in people.directory.sight(on) or None
    if kind == "entry":
        return people.directory.profile(on).entries.get(other)
    try:
        if kind == "agent":
            description = people.documents.read(on).get("description") or ""
            return (
                description
                if other == "description"
                else getattr(people.directory.profile(on), other)
            )
        head = store.head(store.inner.part(Channels).resolve(on))
    except NotFound:
        return None
    if kind == "member":
        return any(member.id == other and member.is_in for member in head.participants) or None
    if head.archived or head.channel is None:
        return None
    if other == "description":
        return head.description or ""
    return getattr(head.channel, "is_default" if other == "default" else other)


def has_left(store: CoreStore, key: Key) -> bool:
    """Whether it is a member of a channel that has left by itself: no file brings it back."""
    kind, on, other = key
    if kind != "member" or not store.engine.exists(CONVERSATIONS, on):
        return False
    return any(
        each.id == other and each.opted_out_at and not each.is_in
        for each in store.head(on).participants
    )


def _do(store: CoreStore, action: Action) -> None:
    on, other, after, acting = action.on, action.other, action.after, store.inner.acting(action.by)
    directory = store.inner.part(People).directory
    # An id may be the name of another agent, for `on`.
    whom = f"{other}@{directory.profile(other).project}"
    agents, mine = store.inner.part(Agents), acting.inner.part(Agents)
    channels, projects = store.inner.part(Channels), store.inner.part(Projects)
    match action.kind, other, after:
        case "register", _, _:
            agents.register(on, after["project"], name=after["name"])
        case "agent", "description", _:
            mine._set(on, description=after)  # To register it would join default channels too.
        case "agent", _, _:
            mine.policy(on, **{other: after})
        case "entry", _, None:
            mine.forget(agent=on, other=whom)
        case "entry", _, _:
            (mine.allow if after == "allow" else mine.block)(
                agent=on, other=whom, reason=action.file or None
            )
        case "link", _, True:
            projects.link(on, other, direction="both" if on in directory.sight(other) else "out")
        case "link", _, _ if on in directory.sight(other):
            projects.link(on, other, direction="in")
        case "link", _, _:
            projects.unlink(on, other)
        case "channel", "access", None:
            channels.update(on, archived=True)
        case "channel", "access", _:
            try:
                channels.update(on, access=after, archived=False)
            except NotFound:
                _, scope, name = on.split("_")
                channels.create(name, scope=scope, access=after)
        case "channel", _, _:
            channels.update(on, **{other: after})
        case "member", _, None if action.by is not None:
            acting.inner.part(Channels).leave(on)
        case "member", _, None:
            channels.remove(on, other)
        case "member", _, _ if action.by is not None:
            acting.inner.part(Channels).join(on, agent=action.by, source="frontmatter")
        case _:
            channels.invite(on, [other])
