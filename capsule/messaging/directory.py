"""Which agents and projects a store has: their documents, their names, what a decision about them
depends on, and which agents are online.

`DocumentCollection` reads and edits the small documents of agents (`agents/{id}.json`) and projects
(`projects/{id}.json`), and remembers each version that it parsed. `AgentDirectory` is the guard of
the Store (`capsule.store.internals.AccessGuard`): it resolves names, and collects what a rule needs to know
(`state`). `StoreAgents` is the view of one open store, with the agent that it acts for.

What must stay true:
- An answer reflects the documents at the time of the call, whichever process or person changed
  them. Asking again costs a look at each document, and no reading. A document that cannot be read
  grants nothing.
- An edit is applied to the version that it was computed from, and keeps fields that it does not
  name. The time of the last activity alone causes at most one write a minute.
- One function decides as which agent a program acts (`acting_agent`). The rules about permissions
  are in `capsule.rules.policy`, not here.
- An error about an agent lists only agents that the store's agent may find.
- An agent is online while an instance that serves it is alive. The kernel knows that by a lock, so
  no agent stays online after a crash. An agent stays online after its wait for messages has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar, Self

from capsule import timestamps
from capsule.engines.interface import CONVERSATIONS, edit_document
from capsule.errors import CapsuleError, InvalidDocument, InvalidInput, NotFound, Refused
from capsule.format.documents.agents import GLOBAL, direct_id, is_agent_id, project_id
from capsule.format.documents.creation import CURRENT
from capsule.format.json import codec
from capsule.format.validation import AGENT, PROJECT, DocumentKind
from capsule.rules.consent import AgentProfile, PolicyInputs
from capsule.rules.policy import PolicyTarget, decide
from capsule.store.internals import AccessGuard

if TYPE_CHECKING:
    from capsule.engines.interface import DocumentVersion, Engine
    from capsule.format.documents.channels import Channel
    from capsule.format.documents.head import Head
    from capsule.store.store import CoreStore


#: The local kind of document that holds the folder in which an agent works on this machine.
KIND_OF_HOMES = "homes"
#: The one that holds where an agent can be rung.
KIND_OF_BELLS = "doorbells"
_SEEN_S = 60.0

Document = dict[str, Any]
#: Changes a document in place.
EditDocument = Callable[[Document], object]
#: Makes a document, at the time given.
MakeDocument = Callable[[str], Document]


def new_record(id: str, name: str, stamp: str) -> Document:
    """What every new document begins with; `stamp` is when it is made."""
    return {"id": id, "name": name, "version": CURRENT, "createdAt": stamp, "updatedAt": stamp}


def new_project(path: str, stamp: str) -> Document:
    """The document of the project in the folder `path`, which has the folder's name."""
    record = new_record(project_id(path), path.rpartition("/")[2] or path, stamp)
    return record | {"path": path, "lastActive": stamp, "metadata": {}, "links": {}}


class DocumentCollection:
    """The documents of one kind.

    Args:
        engine: The engine that keeps them.
    """

    kind: ClassVar[DocumentKind]
    #: The field that says when the subject of the document last did something; empty: there is
    #: none.
    seen_field: ClassVar[str] = ""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._listed: Callable[[], Iterable[str]] = self.ids
        #: The documents as they were last read: an agent may have thousands of cursors.
        self._last: dict[str, tuple[DocumentVersion, Document]] = {}

    def listing_only(self, ids: Callable[[], Iterable[str]]) -> Self:
        """The same documents, with errors that name only these."""
        other = copy(self)
        other._listed = ids
        return other

    def ids(self) -> list[str]:
        """The ids of all documents, sorted. Cost: one scan of a directory."""
        return self._engine.ids(self.kind.name)

    def exists(self, id: str) -> bool:
        """Whether there is such a document. Cost: an lstat."""
        return self.kind.is_id(id) and self._engine.exists(self.kind.name, id)

    def ensure_exists(self, id: str) -> str:
        """`id`, if there is such a document. Raises NotFound, which lists those there are. Cost: an
        lstat.
        """
        if not self.exists(id):
            raise self.missing(id)
        return id

    def missing(self, id: str) -> NotFound:
        """The error that there is no such document, which lists those there are."""
        there = ", ".join(self._listed()) or "none yet"
        return NotFound(
            f"there is no {self.kind.noun} {id[:80]!r}; the {self.kind.noun}s are: {there}", id=id
        )

    def read(self, id: str) -> Document:
        """A document, not to be changed in place. Raises NotFound, InvalidDocument.

        Cost: an lstat, and reading a small file if it changed.
        """
        document = self.find(id)
        if document is None:
            raise self.missing(id)
        return document

    def find(self, id: str) -> Document | None:
        """As `read`; None: there is no such document."""
        now = self.find_with_version(id)
        return now and now[1]

    def find_with_version(self, id: str) -> tuple[DocumentVersion, Document] | None:
        """As `find`, with the version of the document."""
        last = self._last.get(id)
        known = last and last[0]
        version = (
            self._engine.version(self.kind.name, id, known) if last or self.kind.is_id(id) else None
        )
        if version is None:
            return None
        if last is None or version is not known:
            last = self._last[id] = version, self._parsed(id, version.data)
        return last

    def _parsed(self, id: str, data: bytes) -> Document:
        last = self._last.get(id)
        if last is not None and last[0].data == data:
            return last[1]
        return self.kind.read(data, self._engine.name(self.kind.name, id))

    def object_in(self, id: str, field: str) -> Document:
        """The object in a field of a document; empty if there is none, or no such document.

        Cost: an lstat, and reading a small file if it changed.
        """
        return (self.find(id) or {}).get(field) or {}

    def parse_version(self, id: str, version: DocumentVersion | None) -> Document:
        """A version of a document, as a decision read it (`PolicyInputs.read_versions`); empty if there
        is none.
        """
        return {} if version is None else self._parsed(id, version.data)

    def edit(
        self,
        id: str,
        change: EditDocument,
        make: MakeDocument | None = None,
        last_version: DocumentVersion | None = None,
    ) -> None:
        """Change a document in place, and note that its subject was seen.

        Args:
            id: The document.
            change: Changes the document; it runs again if another program wrote it meanwhile. Of
                what the fields hold it replaces what it changes.
            make: Makes the document if there is none, at the time given; None: that is an error.
            last_version: The version of the document, if it was read just now. None: it is read.

        Raises NotFound, InvalidDocument. Cost: writing a small file, unless nothing changes.
        """

        def edit(data: bytes | None) -> bytes | None:
            now = timestamps.now()
            if data is None:
                if make is None:
                    raise self.missing(id)
                return codec.encode(self.kind.ordered(make(now)))
            before = self._parsed(id, data)
            after = {
                name: dict(value) if isinstance(value, dict) else value
                for name, value in before.items()
            }
            change(after)
            if after == before and not (
                self.seen_field and _is_stale(before.get(self.seen_field), now)
            ):
                return None
            stamps = {"updatedAt": now} | ({self.seen_field: now} if self.seen_field else {})
            return codec.encode(self.kind.ordered(after | stamps))

        version = edit_document(self._engine, self.kind.name, id, edit, last_version)
        assert version is not None  # What is not there is made.
        last = self._last.get(id)
        self._last[id] = (
            version,
            last[1] if last and last[0].data == version.data else codec.decode(version.data, id),
        )

    def delete(self, id: str) -> None:
        """Move a document to the trash. Raises NotFound. Cost: moving a small file."""
        self._engine.delete(self.kind.name, self.ensure_exists(id))


class ProjectDocuments(DocumentCollection):
    """The documents of the projects of a store."""

    kind, seen_field = PROJECT, "lastActive"


class AgentDocuments(DocumentCollection):
    """The documents of the agents of a store."""

    kind, seen_field = AGENT, "lastSeen"

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        #: When this process last looked at `lastSeen`, by agent, in seconds.
        self._noted: dict[str, float] = {}

    def record_activity(self, id: str) -> None:
        """Note that an agent did something, unless that was noted within the last minute."""
        now = time.monotonic()
        if now - self._noted.get(id, -_SEEN_S) >= _SEEN_S:
            self.edit(id, lambda document: None)
            self._noted[id] = now

    def registered_folder(self, id: str) -> str | None:
        """The folder that an agent was registered with here; a document that came from elsewhere
        may name any.

        Cost: reading a small file.
        """
        home = self._engine.local.read(KIND_OF_HOMES, id)
        return None if home is None else str(home.get("project"))

    def set_registered_folder(self, id: str, path: str) -> None:
        """Note the folder in which an agent works on this machine. Cost: as `home`, and a small
        file if it is new.
        """
        if self.registered_folder(id) != path:
            self._engine.local.edit(KIND_OF_HOMES, id, lambda _: {"project": path})


def _is_stale(seen: Any, now: str) -> bool:
    """Whether this time is more than a minute ago, or no time."""
    try:
        return timestamps.seconds_between(str(seen), now) > _SEEN_S
    except ValueError:
        return True


_NO_STATE = PolicyInputs()
#: In place of the version of a document that can't be read: what it says grants nothing.
_UNREADABLE = object()


class AgentDirectory(AccessGuard):
    """The agents and the projects of a store, and what the core asks before an agent reads or
    writes.

    Args:
        engine: The engine of the whole store.
    """

    def __init__(self, engine: Engine) -> None:
        self.agents = AgentDocuments(engine)
        self.projects = ProjectDocuments(engine)
        self._engine = engine
        self._profiles: dict[str, AgentProfile] = {}

    # -- What decisions depend on ------------------------------------------------------------------

    def profile(self, id: str) -> AgentProfile:
        """The profile of an agent. Cost: as `DocumentCollection.find`: an lstat, and reading a small file if
        it changed.
        """
        try:
            now = self.agents.find_with_version(id)
        except CapsuleError:
            return AgentProfile(id, dm="closed", discoverable="private", version=_UNREADABLE)
        if now is None:
            return AgentProfile(id)
        version, document = now
        kept = self._profiles.get(id)
        if kept is None or kept.version is not version:
            kept = self._profiles[id] = AgentProfile.of(document, version)
        return kept

    def profiles(self) -> dict[str, AgentProfile]:
        """The profiles of all agents, by their sorted ids. Cost: one scan, and reading small files
        that changed.
        """
        return {id: self.profile(id) for id in self.agents.ids() if self.agents.kind.is_id(id)}

    def visible_projects(
        self, project: str, reads: dict[tuple[str, str], Any] | None = None
    ) -> frozenset[str]:
        """The projects whose channels and agents the agents of a project see, its own included.

        A link counts while both projects have it, so that each of them can end it. `reads` takes
        the versions of what was read. Cost: as `profile`, for the project and for each that it has
        a link to.
        """
        reads = {} if reads is None else reads
        if project in ("", GLOBAL):  # They have no document.
            return frozenset({project})
        there = (
            other
            for other, link in self._links(project, reads).items()
            if _has_direction(link, "out")
        )
        return frozenset(
            {
                project,
                *(
                    other
                    for other in there
                    if _has_direction(self._links(other, reads).get(project), "in")
                ),
            }
        )

    def _links(self, project: str, reads: dict[tuple[str, str], Any]) -> Document:
        with suppress(CapsuleError):
            now = self.projects.find_with_version(project)
            reads[PROJECT.name, project] = now and now[0]
            return (now and now[1].get("links")) or {}
        return {}

    def state(
        self, subject: str | None, object: PolicyTarget | None = None, others: Iterable[str] = ()
    ) -> PolicyInputs:
        """What a decision depends on besides the object.

        Args:
            subject: The agent that asks; None: the store's owner.
            object: The conversation that it is about; None: agents.
            others: The agents that it is about: who is looked for, or who is added.

        Cost: as `profile`, for each agent that counts, and as `visible_projects` where that counts; else
        nothing.
        """
        ids = {*others}
        if subject is None or (
            object is not None and not ids and object.type not in ("direct", "channel")
        ):
            return _NO_STATE
        if object is not None and object.type == "direct":
            ids |= object.present_ids
        profiles = {id: self.profile(id) for id in {subject, *ids}}
        if object is not None:
            for id in ids - object.present_ids - {subject}:
                if (
                    profiles[id].version is None
                ):  # Nobody brings in an agent that is not registered.
                    profiles[id] = AgentProfile(id, dm="closed", discoverable="private")
        return self._state(subject, object, ids, profiles)

    def _state(
        self,
        subject: str,
        object: PolicyTarget | None,
        ids: Iterable[str],
        profiles: dict[str, AgentProfile],
    ) -> PolicyInputs:
        project, channel = profiles[subject].project, object.channel if object is not None else None
        reaches = channel is not None and (
            GLOBAL in (channel.scope, project) or channel.scope == project
        )
        is_asked = object is None or (object.type == "channel" and not reaches)
        reads = {
            (AGENT.name, id): each.version
            for id, each in profiles.items()
            if each.version is not _UNREADABLE
        }
        sight = self.visible_projects(project, reads) if is_asked else frozenset()
        hidden = (
            []
            if object is not None
            else [id for id in ids if profiles[id].discoverable == "private"]
        )
        met = frozenset(
            id for id in hidden if self._engine.exists(CONVERSATIONS, direct_id(subject, id))
        )
        return PolicyInputs(profiles, sight, met, read_versions=reads)

    def agents_found_by(self, subject: str | None) -> list[str]:
        """The ids of the agents that an agent finds, sorted; all for the store's owner. Cost: as
        `profiles`.
        """
        if subject is None:
            return self.agents.ids()
        ids = list(profiles := self.profiles())
        state = self._state(subject, None, ids, {subject: self.profile(subject)} | profiles)
        return [
            id for id in ids if decide(subject, "find", PolicyTarget(id, "agent"), state).allowed
        ]

    def agents_visible_to(self, agent: str | None) -> list[str]:
        """As `agents_found_by`, with the agent itself."""
        known = self.agents_found_by(agent)
        return known if agent is None or not self.agents.exists(agent) else sorted({agent, *known})

    def wait_for_running_writes(self, *agents: str) -> None:
        """Wait until each write has ended that was judged by what the documents said before.

        Args:
            agents: The agents whose policies changed.

        Raises StoreBusy. Cost: taking the mutex of each group, of each channel and of each direct
        of these agents.
        """
        from capsule.engines.queries import ListRequest

        for head in self._engine.queries().conversations(ListRequest()).heads:
            is_theirs = head.type == "direct" and any(
                member.id in agents for member in head.participants
            )
            if is_theirs or head.type in ("group", "channel"):
                with (
                    suppress(NotFound, InvalidDocument),
                    self._engine.transaction(CONVERSATIONS, head.id),
                ):
                    pass

    # -- Names -------------------------------------------------------------------------------------

    def resolve(self, text: str, by: str | None) -> str:
        """The id of the agent that is meant.

        Args:
            text: `name@project`, where the project is an id, a name or `global`; or a name or an id
                alone: the agent of this name in one's own project, else among those without a
                project, else in linked projects, else the agent with this id. Of several, it is the
                only one that `by` finds.
            by: The agent that asks; None: the store's owner.

        Raises:
            NotFound: There is no such agent; it lists those that `by` finds.
            InvalidInput: Several are meant; it lists those that `by` finds.

        Cost: as `profile`; for a name that is no such agent's id, as `profiles`.
        """
        name, at_sign, project = text.partition("@")
        own_project = self.profile(by).project if by is not None else ""
        if not at_sign:
            project_of_id = self.profile(name).project
            if project_of_id and own_project in ("", project_of_id):
                return name  # An id of the own project; for the owner, any id.
        candidates = [
            profile for id, profile in self.profiles().items() if name in (profile.name, id)
        ]
        if at_sign:
            matches = _in_projects(candidates, self._projects_named(project))
        else:
            matches = self._nearest(candidates, name, own_project)
        ids = [profile.id for profile in matches]
        if not ids:
            raise self.agents.listing_only(lambda: self.agents_visible_to(by)).missing(text)
        if name in ids:
            return name  # An id means its agent, also where it is the name of another one.
        if len(ids) == 1:
            return ids[0]
        visible = [id for id in self.agents_found_by(by) if id in ids]
        if len(visible) == 1:
            return visible[0]
        names = ", ".join(visible) or "you find none of them"
        raise InvalidInput(f"several agents are called {text[:80]!r}; give the id of one: {names}")

    def _nearest(
        self, candidates: list[AgentProfile], name: str, own_project: str
    ) -> list[AgentProfile]:
        """Return those of the agents with a name that an agent of a project means by it.

        The first scope with an agent of this name counts: the own project, the agents without a
        project, the linked projects. Else it is the agent with this id, in whatever project. Who
        has no project of its own (the owner, an agent without a project) means any of them.

        Args:
            candidates: The agents with the name or id `name`.
            own_project: The project of the agent that asks; empty: the store's owner asks.
        """
        if own_project:
            scopes = ([own_project], [GLOBAL], self.visible_projects(own_project))
            for projects in scopes:
                matches = _in_projects(candidates, projects)
                if matches:
                    return matches
        matches = [profile for profile in candidates if profile.id == name]
        if matches:
            return matches
        if own_project in ("", GLOBAL):
            return candidates
        return []

    def resolve_all(self, texts: Iterable[str], by: str | None) -> list[str]:
        """The ids of the agents that are to be brought into a conversation, each as `resolve` gives
        it.

        An agent is not told whether there is an agent that it does not find. So a name of nobody
        stays as it is: the rule refuses it like the id of an agent that lets nobody write to it.

        Raises InvalidInput; for the owner NotFound.
        """
        ids = []
        for text in texts:
            try:
                ids.append(self.resolve(text, by))
            except NotFound:
                if by is None:
                    raise
                ids.append(text)
        return ids

    def _projects_named(self, text: str) -> set[str]:
        """The ids of the projects that have this id or name."""
        return {text, *(id for id in self.projects.ids() if self.project_name(id) == text)}

    def project_name(self, id: str) -> str:
        """What people call a project; its id if it has no name, or can't be read. Cost: as
        `profile`.
        """
        with suppress(CapsuleError):
            return str((self.projects.find(id) or {}).get("name") or id)
        return id

    def resolve_project(self, text: str, among: Sequence[str] | None = None) -> str:
        """The id of the project that has this id or name.

        Args:
            text: The id or the name.
            among: The projects that may be meant, and that an error may name; None: all.

        Raises NotFound, InvalidInput. Cost: as `profile` for all.
        """
        there = self.projects.ids() if among is None else among
        ids = [text] if text in there else [id for id in there if self.project_name(id) == text]
        if len(ids) > 1:
            raise InvalidInput(
                f"several projects are called {text[:80]!r}; give the id of one: {', '.join(ids)}"
            )
        if not ids:
            raise self.projects.listing_only(lambda: there).missing(text)
        return ids[0]

    def conversations_named(
        self, subject: str | None, text: str, heads: Iterable[Head]
    ) -> list[str]:
        """See `capsule.store.internals.AccessGuard`. A group has its title for a name; for a channel's see
        `resolve_channels`.
        """
        channels = {
            head.id: head.channel for head in heads if head.channel and not head.channel.owner
        }
        groups = [head.id for head in heads if head.type == "group" and head.title == text]
        return groups + self.resolve_channels(subject, text, channels)

    def agent(self, subject: str | None, text: str) -> str:
        """See `capsule.store.internals.AccessGuard`. Cost: as `resolve`."""
        with suppress(NotFound):
            id = self.resolve(text, subject)
            return id if id in self.agents_visible_to(subject) else text
        return text

    def folders(self, subject: str | None) -> dict[str, str]:
        """See `capsule.store.internals.AccessGuard`. Cost: as `profiles`."""
        paths = {id: self._path_of(id) for id in self.projects.ids()}
        projects = {id: self.profile(id).project for id in self.agents_visible_to(subject)}
        return {id: path for id, project in projects.items() if (path := paths.get(project))}

    def _path_of(self, project: str) -> str:
        with suppress(CapsuleError):
            return str((self.projects.find(project) or {}).get("path") or "")
        return ""

    def resolve_channels(
        self, by: str | None, text: str, channels: Mapping[str, Channel]
    ) -> list[str]:
        """The ids of the channels that are meant by `name`, or by `name@project` with the id or
        name of a project.

        A name alone means the agent's own project, then `global`, then any other. Several: it is
        ambiguous.

        Args:
            by: The agent that asks; None: the store's owner, who has no project.
            text: The name.
            channels: The channels that it finds, by their ids.
        """
        name, at, project = text.partition("@")
        places = self._projects_named(project) if at else set()
        scopes = {
            id: it.scope
            for id, it in channels.items()
            if it.name == name and (not at or it.scope in places)
        }
        ways = (
            [project] if at else [] if by is None else [self.profile(by).project or GLOBAL, GLOBAL]
        )
        nearest = ([id for id, scope in scopes.items() if scope == way] for way in ways)
        return next(filter(None, nearest), [*scopes])

    def identity(self, text: str, folder: str | None = None) -> str | None:
        """The id of the agent that somebody acts as, by the rule of `acting_agent`.

        Args:
            text: `name@project`, or the name of an agent in the project of the folder, or an id.
            folder: The folder where it is said, without links in its path; None: none.

        Returns:
            The id, also of an agent that is not registered; None: it is still to be made in the
            folder's project.

        Raises InvalidInput. Cost: a scan of a directory; as `profile` for each agent, if a project
        is there.
        """
        if "@" in text:
            with suppress(NotFound):
                return self.resolve(text, None)
        path = folder and self.project_folder(folder)
        project = project_id(path) if path else None
        own = self.profile(text)
        agent = acting_agent(
            text, project, [own] if project in (None, own.project) else self.profiles().values()
        )
        return agent or (None if project and is_agent_id(text) else text)

    def identity_for(self, store: Any, text: str, folder: str | None) -> str:
        """See `capsule.store.internals.AccessGuard`."""
        return self.identity(text, folder) or str(store.agents.identity(text, folder))

    def project_folder(self, folder: str) -> str | None:
        """The folder of a project: this one, or the nearest one above it. Cost: one scan of a
        directory.
        """
        if not (there := {*self.projects.ids()}):
            return None
        above = list(accumulate(folder.split("/"), "{}/{}".format))
        return next((each for each in reversed(above) if each and project_id(each) in there), None)


def acting_agent(name: str, project: str | None, agents: Iterable[AgentProfile]) -> str | None:
    """The id of the agent that somebody acts as: one rule for every door.

    Args:
        name: The name or the id that is said.
        project: The project of the folder where it is said; None: the folder is in no project of
            the store.
        agents: The agents there are; those of other names do not count.

    Returns:
        The agent of this name in the project; else the agent with this id, if it is global or there
        is no project.
        None: it is to be made, in the project. So the agent of one project is never that of
            another.

    Raises InvalidInput: several agents of the project have the name.
    """
    named = [each for each in agents if name in (each.id, each.name)]
    own = [each.id for each in named if each.project == project]
    if len(own) > 1 and name not in own:
        raise InvalidInput(
            f"several agents are called {name[:80]!r}; give the id of one: {', '.join(own)}"
        )
    elsewhere = [
        each.id for each in named if each.id == name and (project is None or each.project == GLOBAL)
    ]
    return name if name in own else next(iter(own + elsewhere), None)


def _in_projects(agents: Iterable[AgentProfile], projects: Iterable[str]) -> list[AgentProfile]:
    return [profile for profile in agents if profile.project in projects]


def _has_direction(link: Any, way: str) -> bool:
    """Whether a link of a project goes out of it, or comes in."""
    return (
        isinstance(link, dict)
        and link.get("enabled") is not False
        and link.get("direction") in ("both", way)
    )


#: Seconds. So soon after a look nobody looks again: a listener may as well die right behind it.
_INSTANT_S = 0.05


class StoreAgents:
    """The agents of an open store. Each store has one: `store.inner.object_of(People)`.

    Attributes:
        directory: Who there is; the same for all stores that were opened beside one another.
        documents: The documents of the agents, with errors that name only those that the store's
            agent finds.
    """

    def __init__(self, store: CoreStore) -> None:
        guard = store.inner.guard
        assert isinstance(guard, AgentDirectory)  # It is this room's.
        self.directory = guard
        self.documents = guard.agents.listing_only(lambda: guard.agents_visible_to(store.agent))
        self._store = store
        self._lock = threading.Lock()
        self._waits = 0
        self._listening: set[str] = set()
        self._last_look_s = 0.0

    def registered_agent(self, agent: str | None) -> str:
        """The agent that a call is about. Raises NotFound if it is not registered, and as
        `StoreInternals.required_agent`.
        """
        return self.documents.ensure_exists(self._store.inner.required_agent(agent))

    def requests_of(self, agent: str) -> Document:
        """The requests of an agent: by the ids of others, when it asked for their permission. Cost:
        as `profile`.
        """
        with suppress(CapsuleError):
            return self.documents.read(agent).get("requests") or {}
        return {}

    @contextmanager
    def recording_requests(self, agent: str | None) -> Iterator[None]:
        """Note, if the body is refused for want of permission, whom an agent asks for it: see
        `Agents.requests`.

        Args:
            agent: The agent; None: the store's owner, who needs no permission.

        Raises Refused, StorageFailed. Cost: nothing; the first time that it is refused, writing a
        small file.
        """
        try:
            yield
        except Refused as error:
            for other in error.fields.get("asks", ()):
                if agent is not None and other not in self.requests_of(agent):
                    self.documents.edit(agent, partial(_add_request, other))
            raise

    def announce(self, agent: str, waits: int = 0) -> None:
        """Announce that this instance serves an agent, until the store is closed.

        Args:
            agent: The agent.
            waits: How many more of its calls wait for messages than before.

        Raises Refused, StorageFailed. Cost: making a small file, the first time; then overwriting
        it.
        """
        with self._lock:
            self._waits += waits
            about = {"agent": agent, "listening": self._waits > 0}
            self._store.engine.leases.acquire(self._store.instance_id, about)

    @contextmanager
    def listening(self, agent: str) -> Iterator[None]:
        """Announce, while the body runs, that an agent waits for messages."""
        self.announce(agent, +1)
        try:
            yield
        finally:
            self.announce(agent, -1)

    def online(self) -> dict[str, bool]:
        """The agents that are online, each with whether it listens. Cost: a look at each instance
        that is alive.
        """
        online: dict[str, bool] = {}
        self._last_look_s = time.monotonic()
        for about in self._store.engine.leases.live_instances().values():
            agent = about.get("agent")
            if isinstance(agent, str):
                online[agent] = online.get(agent, False) or about.get("listening") is True
        self._listening = {agent for agent, listens in online.items() if listens}
        return online

    def was_just_listening(self, agent: str) -> bool:
        """Whether an agent listened when this was last asked, an instant ago."""
        return agent in self._listening and time.monotonic() - self._last_look_s < _INSTANT_S


def _add_request(other: str, document: Document) -> None:
    document["requests"] = (document.get("requests") or {}) | {other: {"at": timestamps.now()}}
