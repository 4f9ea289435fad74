"""The agents of a store: who there is, what is known of each, and whom each lets write to it.

What must stay true: an agent is told of the agents that it finds, and of no others. When a stricter
policy is acknowledged, no write that was judged by the old one is still under way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast, get_args

from capsule import timestamps
from capsule.errors import InvalidInput, NotFound, Refused
from capsule.format.documents.agents import direct_id
from capsule.format.documents.members import Member
from capsule.messaging.people.documents import KIND_OF_BELLS, KIND_OF_HOMES, Document
from capsule.messaging.people.people import People
from capsule.messaging.people.registration import Registration
from capsule.rules.consent import DISCOVERABLE, DM_POLICIES, consent
from capsule.rules.policy import Action, Object, Profile, ensure, may

if TYPE_CHECKING:
    from capsule.messaging.people.contacts import Agent, Contact, Permission


class Agents(Registration):
    """The agents of a store: people and programs that exchange messages."""

    def names(self) -> list[str]:
        """List the ids of the agents, sorted: for an agent, its own and those of the agents that it
        finds.

        Raises Refused, StorageFailed. Cost: one scan of a directory; for an agent, also a look at
        each document.
        """
        return self._directory.known_to(self._store.agent)

    def get(self, id: str) -> Agent:
        """Look up an agent.

        Args:
            id: Its id; or, if no agent has it, a name or `name@project`, as the store's agent means
                it.

        Raises:
            NotFound: There is no such agent, or an agent asks that does not find it.
            InvalidInput: Several agents have the name.
            InvalidDocument: Its file does not parse.

        Cost: reading a small file, and a look at each instance that is alive; for a name, also at
        each document.
        """
        me, named = self._store.agent, id
        id = id if self._documents.exists(id) else self._directory.resolve(id, me)
        if (
            me != id
            and not may(
                me, "find", Object(id, "agent"), self._directory.state(me, None, [id])
            ).allowed
        ):
            raise self._documents.missing(named)
        return self._agent(id, self._people.online())

    def may(
        self,
        action: str,
        *,
        agent: str | None = None,
        conversation: str | None = None,
        other: str | None = None,
    ) -> Permission:
        """Ask the rule whether an agent may do something, and why not. Nothing is done or noted.

        Args:
            action: What it would do, by a word of the rule: `read`, `append`, `edit`, `rename`,
                `join`, `invite`, `message` and so on. Who holds a lock is no matter of this rule.
            agent: The agent; None: the one that the store acts for.
            conversation: Where it would do it: a channel, or any conversation as `Store.resolve`
                takes it.
            other: The agent that it is about: whom it would add, invite or readmit there; without a
                conversation, whom it would find, or what it would do in the direct of the two.

        Raises:
            NotFound: There is no such agent or conversation, or the store's agent does not find it.
            InvalidInput: There is no such action, or neither a conversation nor another agent is
                given.
            Refused: The store acts for another agent.
            InvalidDocument: The conversation does not parse.

        Cost: as `get`, and reading the beginning of the conversation's file.
        """
        from capsule.messaging.people.contacts import Permission

        me = self._people.known(agent)
        if action not in get_args(Action):
            raise InvalidInput(
                f"{action[:40]!r} is no action; it is one of {', '.join(get_args(Action))}"
            )
        others = () if other is None else (self.get(other).id,)
        if conversation is not None:
            object = self._object(conversation)
        elif not others:
            raise InvalidInput("say where the agent would do it, or which other agent it is about")
        elif action in ("find", "manage", "delete", "move"):
            object = Object(others[0], "agent")
        else:
            object = Object(
                direct_id(me, others[0]), "direct", tuple(map(Member, sorted({me, *others})))
            )
        state_of = self._store.inner.acting(me).inner.state_of
        asks_them = conversation is not None and action in ("add", "invite", "readmit")
        is_agent = object.type == "agent"
        state = state_of(None if is_agent else object, others if asks_them or is_agent else ())
        said = may(me, cast("Action", action), object, state)
        hint = said.hint if isinstance(said.hint, str) else said.hint(state_of)
        return Permission(
            said.allowed, said.reason, f"{me} is not told that it exists" if said.hidden else hint
        )

    def _object(self, conversation: str) -> Object:
        """A conversation that the store's agent finds, as the rule sees it. Raises NotFound,
        InvalidDocument.
        """
        from capsule.messaging.channels import Channels

        with suppress(NotFound):
            conversation = self._store.inner.part(Channels).resolve(conversation, self._store.agent)
        id = self._store.resolve(conversation)
        with suppress(Refused):  # It finds a channel that it may not read.
            self._store.engine.head(id)
        return Object.of(self._store.inner.whole.head(id)[0])

    # -- Who may write to it -----------------------------------------------------------------------

    def policy(
        self, id: str | None = None, *, dm: str | None = None, discoverable: str | None = None
    ) -> Agent:
        """Say who may write to an agent, and who finds it. What is not given stays as it is.

        Args:
            id: The agent; None: the one that the store acts for.
            dm: Who may write to it directly: `open`, `restricted` (whom it allows) or `closed`.
            discoverable: Who finds it: `public`, `project` or `private`.

        Raises:
            NotFound: There is no such agent.
            InvalidInput: There is no such policy.
            Refused: The store acts for another agent.
            StoreBusy: A writer holds a conversation; the policy is changed.

        Cost: writing a small file, and taking the mutex of each conversation that the policy is
        about: no write that the old policy let through comes later.
        """
        for value, choices in ((dm, DM_POLICIES), (discoverable, DISCOVERABLE)):
            if value not in (None, *choices):
                raise InvalidInput(
                    f"{value[:40]!r} is no policy; it is one of {', '.join(choices)}"
                )
        given = {
            field: value
            for field, value in (("dmPolicy", dm), ("discoverable", discoverable))
            if value
        }
        return self._edit(
            self._store.inner.subject(id),
            lambda document: document.update(given),
            decides=bool(given),
        )

    def allow(self, *, agent: str | None = None, other: str, reason: str | None = None) -> Agent:
        """Let another agent write to a restricted one.

        Args:
            agent: The agent that is written to; None: the one that the store acts for.
            other: The other agent: its id, or its name as `name@project`.
            reason: The reason, for people.

        Raises:
            NotFound: There is no such agent.
            InvalidInput: Both are the same agent, or several have this name.
            Refused: The store acts for another agent.
            StoreBusy: A writer holds a conversation; the word is written.

        Cost: writing a small file, and taking the mutex of each conversation that it is about.
        """
        return self._say(agent, other, {"permission": "allow", "reason": reason})

    def block(self, *, agent: str | None = None, other: str, reason: str | None = None) -> Agent:
        """Let two agents write to each other no more. What was said stays readable.

        Args:
            agent: The agent that blocks; None: the one that the store acts for.
            other, reason: As `allow` takes them.

        Raises:
            NotFound: There is no such agent.
            InvalidInput: Both are the same agent, or several have this name.
            Refused: The store acts for another agent.
            StoreBusy: A writer holds a conversation; the word is written.

        Cost: writing a small file, and taking the mutex of each conversation that it is about.
        """
        return self._say(agent, other, {"permission": "block", "reason": reason})

    def _say(self, agent: str | None, other: str, entry: Document | None) -> Agent:
        id = self._store.inner.subject(agent)
        is_gone = (
            entry is None and other in self._directory.profile(id).entries
        )  # Perhaps the agent was forgotten.
        whom = other if is_gone else self._directory.resolve(other, id)
        if whom == id:
            raise InvalidInput(f"{id} needs no permission to write to itself")
        said = {} if entry is None else {whom: entry | {"at": timestamps.now()}}

        def change(document: Document) -> None:
            document["dm"] = {
                key: value for key, value in (document.get("dm") or {}).items() if key != whom
            } | said

        return self._edit(id, change, decides=True)

    def requests(self, agent: str | None = None) -> Sequence[Contact]:
        """List the agents that wanted to write to a restricted one and that it has neither allowed
        nor blocked.

        Args:
            agent: The restricted agent; None: the one that the store acts for.

        Raises NotFound, Refused, InvalidDocument. Cost: a look at each document.
        """
        me = self._directory.profile(self._people.known(agent))
        others = (
            other
            for other in self._directory.agents.ids()
            if other not in me.entries and me.dm == "restricted"
        )
        asking = self._contacts(
            me, (other for other in others if me.id in self._people.asked(other))
        )
        return sorted(asking, key=lambda contact: contact.asked_at)

    def discover(self, agent: str | None = None) -> Sequence[Contact]:
        """List the agents that an agent finds, and whether the two may write to each other.

        Args:
            agent: The agent that looks; None: the one that the store acts for.

        Raises NotFound, Refused, InvalidDocument. Cost: a look at each document.
        """
        me = self._directory.profile(self._people.known(agent))
        return self._contacts(me, self._directory.found_by(me.id))

    def _contacts(self, me: Profile, others: Iterable[str]) -> Sequence[Contact]:
        from capsule.messaging.people.contacts import Agent, Contact

        presence = self._people.online()
        return [
            Contact(
                Agent.of(self._directory.agents.read(other), presence, is_known=False),
                consent(me, self._directory.profile(other)),
                self._people.asked(other).get(me.id, {}).get("at") or "",
            )
            for other in others
        ]

    def set_status(self, agent: str | None, text: str, *, busy: bool | None = None) -> Agent:
        """Say in a few words what an agent does.

        Args:
            agent: The agent; None: the one that the store acts for.
            text: The words; empty: nothing.
            busy: Whether it is busy; None: as it is.

        Raises NotFound, InvalidInput, Refused. Cost: writing a small file.
        """
        return self._set(
            agent, statusMessage=text or None, **({} if busy is None else {"busy": busy})
        )

    def set_notifications(self, agent: str | None, on: bool) -> Agent:
        """Switch on or off that the files of an agent's project say what waits for it while it is
        away.

        Args:
            agent: The agent; None: the one that the store acts for.
            on: Whether they do.

        Raises NotFound, Refused. Cost: writing a small file.
        """
        return self._set(agent, notifications=on)

    def _set(self, agent: str | None, **fields: Any) -> Agent:
        return self._edit(
            self._store.inner.subject(agent), lambda document: document.update(fields)
        )

    def _edit(
        self, id: str, change: Callable[[Document], object], *, decides: bool = False
    ) -> Agent:
        """Change a document. If that decides on writes, wait for those that were let through
        before.

        It waits too if nothing changes: another process may have made the change, and wait still.
        """
        self._ensure_manages(self._documents.known(id))
        self._documents.edit(id, change)
        if decides:
            self._directory.drain(id)
        return self.get(id)

    def forget(
        self, id: str | None = None, *, agent: str | None = None, other: str | None = None
    ) -> None:
        """Forget an agent, or what one says of another.

        The document of an agent goes to the trash, with its folder and its doorbells on this
        machine, and its notices out of its project. Its conversations stay.

        Args:
            id: The agent to forget.
            agent: In place of it, the agent that takes back what it says; None: the one that the
                store acts for.
            other: The agent that it allowed or blocked.

        Raises NotFound, InvalidInput, and Refused if an agent wants to forget one. Cost: moving a
        small file; for an entry, as `policy`.
        """
        if other is not None:
            self._say(agent, other, None)
            return
        if id is None:
            raise InvalidInput("say which agent to forget, or of which other one")
        ensure(may(self._store.agent, "delete", Object(id, "agent")), id)
        from capsule.messaging import notices

        notices.withdraw(self._store, self._documents.known(id))
        self._documents.delete(id)
        for kind in (KIND_OF_HOMES, KIND_OF_BELLS):
            self._store.engine.machine.delete(kind, id)

    def serve(self, agent: str | None = None) -> None:
        """Announce that this instance serves an agent: it is online until the store is closed or
        the process ends.

        Args:
            agent: The agent; None: the one that the store acts for.

        Raises NotFound, Refused, StorageFailed. Cost: making a small file, the first time.
        """
        id = self._people.known(agent)
        self._store.inner.acting(id).inner.part(People).announce(id)

    def at(self, folder: str) -> Sequence[str]:
        """Look up the agents of a folder: those whose project it is, or the nearest one above it
        that is one's.

        Args:
            folder: The folder, without links in its path.

        Raises InvalidDocument. Cost: reading a small file for each agent.
        """
        by_project: dict[str, list[str]] = {}
        for id in self.names():
            by_project.setdefault(self._documents.read(id).get("projectPath") or "", []).append(id)
        above = accumulate(os.path.abspath(folder).split("/"), "{}/{}".format)
        return next(
            (by_project[each] for each in reversed(list(above)) if each and each in by_project), []
        )

    def list(self) -> list[Agent]:
        """List the agents, in the order of their ids: for an agent, itself and those that it finds.

        Raises InvalidDocument. Cost: a look at each document, and reading those that changed.
        """
        presence = self._people.online()
        return [self._agent(id, presence) for id in self.names()]

    def _agent(self, id: str, presence: dict[str, bool]) -> Agent:
        from capsule.messaging.people.contacts import Agent

        return Agent.of(
            self._documents.read(id), presence, is_known=self._store.agent in (None, id)
        )
