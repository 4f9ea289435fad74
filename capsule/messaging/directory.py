"""The agents and projects of a store: their documents, their names, the inputs of decisions about
them, and which agents are online.

`DocumentCollection` reads and edits the small documents of agents (`agents/{id}.json`) and projects
(`projects/{id}.json`), and remembers each version that it parsed. `AgentDirectory` is the guard of
the Store (`capsule.store.internals.AccessGuard`): it resolves names, and collects the inputs of a
rule (`state`). `StoreAgents` is the view of one open store, with the agent that it acts for.

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
from capsule.format.documents.creation import FORMAT_VERSION
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


#: The local kind of document that holds the folder where an agent works on this machine.
KIND_OF_HOMES = "homes"
#: The one that holds where an agent can be rung.
KIND_OF_BELLS = "doorbells"
#: So long after it was noted, the last activity of an agent or a project is noted again.
_ACTIVITY_INTERVAL_S = 60.0

Document = dict[str, Any]
#: Changes a document in place.
EditDocument = Callable[[Document], object]
#: Makes a document. Takes the time now.
MakeDocument = Callable[[str], Document]


def new_record(id: str, name: str, stamp: str) -> Document:
    """Return the first fields of a new document. `stamp` is the time now."""
    return {
        "id": id,
        "name": name,
        "version": FORMAT_VERSION,
        "createdAt": stamp,
        "updatedAt": stamp,
    }


def new_project(path: str, stamp: str) -> Document:
    """Return the document of a project in the folder `path`. It is named like the folder."""
    record = new_record(project_id(path), path.rpartition("/")[2] or path, stamp)
    return record | {"path": path, "lastActive": stamp, "metadata": {}, "links": {}}


class _ThreadReads(threading.local):
    """The versions that this thread has read in a block of `reading_once`. None: it is in none."""

    versions: dict[str, DocumentVersion | None] | None = None


class DocumentCollection:
    """The documents of one kind. Each version that was parsed is kept until another one is read.

    Args:
        engine: The engine that keeps them.
    """

    kind: ClassVar[DocumentKind]
    #: The field with the time of the last activity. Empty: this kind has none.
    activity_field: ClassVar[str] = ""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: Returns the ids that an error may list.
        self._visible_ids: Callable[[], Iterable[str]] = self.ids
        #: The last version of each document that was read. An agent may have thousands of cursors.
        self._cache: dict[str, tuple[DocumentVersion, Document]] = {}
        self._reads = _ThreadReads()

    def listing_only(self, ids: Callable[[], Iterable[str]]) -> Self:
        """Return a collection of the same documents whose errors list only some ids."""
        collection = copy(self)
        collection._visible_ids = ids
        return collection

    def ids(self) -> list[str]:
        """Return the ids of all documents, sorted. Cost: one scan of a directory."""
        return self._engine.ids(self.kind.name)

    @contextmanager
    def reading_once(self) -> Iterator[None]:
        """Read each document at most once while the body runs, in this thread.

        For a call that decides and writes. The versions that it decides by become the read set of
        the write, which is refused if one of them has changed. `read_again` is called then.
        """
        if self._reads.versions is not None:
            yield
            return
        self._reads.versions = {}
        try:
            yield
        finally:
            self._reads.versions = None

    def read_again(self) -> None:
        """Read each document again that this thread has read in its block of `reading_once`."""
        if self._reads.versions is not None:
            self._reads.versions = {}

    def _present_version(self, id: str, cached: DocumentVersion | None) -> DocumentVersion | None:
        """Return the present version of a document. `cached` is returned if it is that version."""
        versions = self._reads.versions
        if versions is None:
            return self._engine.version(self.kind.name, id, cached)
        if id not in versions:
            versions[id] = self._engine.version(self.kind.name, id, cached)
        return versions[id]

    def exists(self, id: str) -> bool:
        """Return whether a document exists. Cost: an lstat."""
        if not self.kind.is_id(id):
            return False
        if self._reads.versions is None:
            return self._engine.exists(self.kind.name, id)
        with suppress(InvalidDocument):
            return self._present_version(id, self._cached_version(id)) is not None
        return True

    def _cached_version(self, id: str) -> DocumentVersion | None:
        cached = self._cache.get(id)
        return None if cached is None else cached[0]

    def ensure_exists(self, id: str) -> str:
        """Return `id` if the document exists, else raise NotFound. Cost: an lstat."""
        if not self.exists(id):
            raise self.missing(id)
        return id

    def missing(self, id: str) -> NotFound:
        """Return the error for a document that does not exist. It lists those that do."""
        noun = self.kind.noun
        visible_ids = ", ".join(self._visible_ids()) or "none yet"
        return NotFound(f"there is no {noun} {id[:80]!r}; the {noun}s are: {visible_ids}", id=id)

    def read(self, id: str) -> Document:
        """Return a document. It must not be changed in place. Raises NotFound, InvalidDocument.

        Cost: an lstat, and reading a small file if it changed.
        """
        document = self.find(id)
        if document is None:
            raise self.missing(id)
        return document

    def find(self, id: str) -> Document | None:
        """Return a document as `read` does, or None."""
        found = self.find_with_version(id)
        if found is None:
            return None
        return found[1]

    def find_with_version(self, id: str) -> tuple[DocumentVersion, Document] | None:
        """Return a document as `find` does, with its version."""
        cached = self._cache.get(id)
        if cached is None and not self.kind.is_id(id):
            return None
        last_version = cached[0] if cached is not None else None
        version = self._present_version(id, last_version)
        if version is None:
            return None
        if cached is None or version is not last_version:
            cached = version, self._parse(id, version.data)
            self._cache[id] = cached
        return cached

    def _parse(self, id: str, data: bytes) -> Document:
        cached = self._cache.get(id)
        if cached is not None and cached[0].data == data:
            return cached[1]
        return self.kind.read(data, self._engine.name(self.kind.name, id))

    def object_in(self, id: str, field: str) -> Document:
        """Return the object in a field of a document. Empty: no such field or document.

        Cost: an lstat, and reading a small file if it changed.
        """
        return (self.find(id) or {}).get(field) or {}

    def parse_version(self, id: str, version: DocumentVersion | None) -> Document:
        """Return the document in a version, as a decision read it (`PolicyInputs.read_versions`).

        Empty: there is no version.
        """
        if version is None:
            return {}
        return self._parse(id, version.data)

    def edit(
        self,
        id: str,
        change: EditDocument,
        make: MakeDocument | None = None,
        last_version: DocumentVersion | None = None,
    ) -> None:
        """Change a document, and note the time as that of the last activity.

        Args:
            id: The document.
            change: Changes the document in place. It runs again if another program wrote the
                document meanwhile. The objects in the fields are copies. What is in those is
                shared with the version before, and must be replaced instead of changed.
            make: Makes the document if there is none. None: that is an error.
            last_version: The version of the document, if it was read just now. None: it is read.

        Raises NotFound, InvalidDocument. Cost: writing a small file, unless nothing changes.
        """

        def edit(data: bytes | None) -> bytes | None:
            now = timestamps.now()
            if data is None:
                if make is None:
                    raise self.missing(id)
                return codec.encode(self.kind.ordered(make(now)))
            old = self._parse(id, data)
            new = dict(old)
            for name, value in old.items():
                if isinstance(value, dict):
                    new[name] = dict(value)
            change(new)
            if new == old and not self._is_activity_outdated(old, now):
                return None
            new["updatedAt"] = now
            if self.activity_field:
                new[self.activity_field] = now
            return codec.encode(self.kind.ordered(new))

        version = edit_document(self._engine, self.kind.name, id, edit, last_version)
        assert version is not None  # A document that does not exist is made.
        cached = self._cache.get(id)
        if cached is not None and cached[0].data == version.data:
            document = cached[1]
        else:
            document = codec.decode(version.data, id)
        self._cache[id] = version, document
        if self._reads.versions is not None:
            self._reads.versions[id] = version

    def _is_activity_outdated(self, document: Document, now: str) -> bool:
        """Return whether the last activity was noted more than a minute ago, or never."""
        if not self.activity_field:
            return False
        try:
            age_s = timestamps.seconds_between(str(document.get(self.activity_field)), now)
        except ValueError:
            return True
        return age_s > _ACTIVITY_INTERVAL_S

    def delete(self, id: str) -> None:
        """Move a document to the trash. Raises NotFound. Cost: moving a small file."""
        self._engine.delete(self.kind.name, self.ensure_exists(id))
        if self._reads.versions is not None:
            self._reads.versions[id] = None


class ProjectDocuments(DocumentCollection):
    """The documents of the projects of a store."""

    kind = PROJECT
    activity_field = "lastActive"


class AgentDocuments(DocumentCollection):
    """The documents of the agents of a store."""

    kind = AGENT
    activity_field = "lastSeen"

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        #: When this process last noted the activity of each agent, in monotonic seconds.
        self._last_noted_s: dict[str, float] = {}

    def record_activity(self, id: str) -> None:
        """Note that an agent did something, unless that was noted within the last minute."""
        now_s = time.monotonic()
        last_noted_s = self._last_noted_s.get(id, -_ACTIVITY_INTERVAL_S)
        if now_s - last_noted_s >= _ACTIVITY_INTERVAL_S:
            self.edit(id, lambda document: None)
            self._last_noted_s[id] = now_s

    def registered_folder(self, id: str) -> str | None:
        """Return the folder that an agent was registered with on this machine. None: it was not.

        The agent's document does not say it: it may come from another machine and name any folder.

        Cost: reading a small file.
        """
        home = self._engine.local.read(KIND_OF_HOMES, id)
        if home is None:
            return None
        return str(home.get("project"))

    def set_registered_folder(self, id: str, path: str) -> None:
        """Record the folder where an agent works on this machine.

        Cost: reading a small file, and writing it if the folder is new.
        """
        if self.registered_folder(id) != path:
            self._engine.local.edit(KIND_OF_HOMES, id, lambda _: {"project": path})


_NO_INPUTS = PolicyInputs()
#: In place of the version of a document that can't be read. Such a document grants nothing.
_UNREADABLE = object()


class AgentDirectory(AccessGuard):
    """The agents and the projects of a store: resolves their names, and collects the inputs of the
    rules.

    Args:
        engine: The engine of the whole store.
    """

    def __init__(self, engine: Engine) -> None:
        self.agents = AgentDocuments(engine)
        self.projects = ProjectDocuments(engine)
        self._engine = engine
        self._profiles: dict[str, AgentProfile] = {}

    @contextmanager
    def reading_once(self) -> Iterator[None]:
        """Read each agent and project at most once while the body runs, in this thread. See
        `DocumentCollection.reading_once`.
        """
        with self.agents.reading_once(), self.projects.reading_once():
            yield

    def read_again(self) -> None:
        """See `capsule.store.internals.AccessGuard`."""
        self.agents.read_again()
        self.projects.read_again()

    # -- What decisions depend on ------------------------------------------------------------------

    def profile(self, id: str) -> AgentProfile:
        """Return the profile of an agent. An agent whose document can't be read is closed and
        private.

        Cost: an lstat, and reading a small file if it changed.
        """
        try:
            found = self.agents.find_with_version(id)
        except CapsuleError:
            return AgentProfile(id, dm="closed", discoverable="private", version=_UNREADABLE)
        if found is None:
            return AgentProfile(id)
        version, document = found
        profile = self._profiles.get(id)
        if profile is None or profile.version is not version:
            profile = AgentProfile.from_document(document, version)
            self._profiles[id] = profile
        return profile

    def profiles(self) -> dict[str, AgentProfile]:
        """Return the profiles of all agents, by their sorted ids.

        Cost: one scan, and reading small files that changed.
        """
        return {id: self.profile(id) for id in self.agents.ids() if self.agents.kind.is_id(id)}

    def visible_projects(
        self, project: str, read_versions: dict[tuple[str, str], Any] | None = None
    ) -> frozenset[str]:
        """Return the projects whose channels and agents the agents of a project see, its own
        included.

        A link counts while both projects have it, so that each of them can end it.

        Args:
            project: The project.
            read_versions: Is filled with the versions of the documents that were read.

        Cost: as `profile`, for the project and for each project that it has a link to.
        """
        if read_versions is None:
            read_versions = {}
        visible = {project}
        if project in ("", GLOBAL):  # They have no document.
            return frozenset(visible)
        for other, link in self._links(project, read_versions).items():
            if not _has_direction(link, "out"):
                continue
            reverse_link = self._links(other, read_versions).get(project)
            if _has_direction(reverse_link, "in"):
                visible.add(other)
        return frozenset(visible)

    def _links(self, project: str, read_versions: dict[tuple[str, str], Any]) -> Document:
        """Return the links of a project. Empty: it has none, or can't be read."""
        try:
            found = self.projects.find_with_version(project)
        except CapsuleError:
            return {}
        if found is None:
            read_versions[PROJECT.name, project] = None
            return {}
        version, document = found
        read_versions[PROJECT.name, project] = version
        return document.get("links") or {}

    def state(
        self, subject: str | None, target: PolicyTarget | None = None, others: Iterable[str] = ()
    ) -> PolicyInputs:
        """Collect what a decision depends on besides its target.

        Args:
            subject: The agent that asks. None: the store's owner.
            target: The conversation that the decision is about. None: it is about agents.
            others: The agents that it is about, or that the action adds.

        Cost: as `profile`, for each agent that counts, and as `visible_projects` where that counts.
        Otherwise nothing.
        """
        ids = {*others}
        if subject is None:
            return _NO_INPUTS
        if target is not None and not ids and target.type not in ("direct", "channel"):
            return _NO_INPUTS
        if target is not None and target.type == "direct":
            ids |= target.present_ids
        profiles = {id: self.profile(id) for id in {subject, *ids}}
        if target is not None:
            for id in ids - target.present_ids - {subject}:
                if profiles[id].version is None:  # Nobody may add an agent that is not registered.
                    profiles[id] = AgentProfile(id, dm="closed", discoverable="private")
        return self._inputs(subject, target, ids, profiles)

    def _inputs(
        self,
        subject: str,
        target: PolicyTarget | None,
        ids: Iterable[str],
        profiles: dict[str, AgentProfile],
    ) -> PolicyInputs:
        """Return the inputs for these profiles, with the linked projects and the direct contacts if
        the decision depends on them.
        """
        read_versions: dict[tuple[str, str], Any] = {}
        for id, profile in profiles.items():
            if profile.version is not _UNREADABLE:
                read_versions[AGENT.name, id] = profile.version
        project = profiles[subject].project
        visible_projects: frozenset[str] = frozenset()
        if target is None or _depends_on_links(target, project):
            visible_projects = self.visible_projects(project, read_versions)
        direct_contacts = set()
        if target is None:
            for id in ids:
                is_private = profiles[id].discoverable == "private"
                if is_private and self._engine.exists(CONVERSATIONS, direct_id(subject, id)):
                    direct_contacts.add(id)
        return PolicyInputs(
            profiles, visible_projects, frozenset(direct_contacts), read_versions=read_versions
        )

    def agents_found_by(self, subject: str | None) -> list[str]:
        """Return the ids of the agents that an agent may find, sorted. For the store's owner: all.

        Cost: as `profiles`.
        """
        if subject is None:
            return self.agents.ids()
        profiles = self.profiles()
        inputs = self._inputs(subject, None, profiles, {subject: self.profile(subject)} | profiles)
        return [
            id
            for id in profiles
            if decide(subject, "find", PolicyTarget(id, "agent"), inputs).allowed
        ]

    def agents_visible_to(self, agent: str | None) -> list[str]:
        """Return the agents that an agent may find, and itself."""
        ids = self.agents_found_by(agent)
        if agent is None or not self.agents.exists(agent):
            return ids
        return sorted({agent, *ids})

    def wait_for_running_writes(self, *agents: str) -> None:
        """Wait for each write that is running and was decided by the former versions of documents.

        Args:
            agents: The agents whose policies changed.

        Raises StoreBusy. Cost: taking the mutex of each group, of each channel and of each direct
        of these agents.
        """
        from capsule.engines.queries import ListRequest

        for head in self._engine.queries().conversations(ListRequest()).heads:
            is_direct_of_them = head.type == "direct" and any(
                member.id in agents for member in head.participants
            )
            if is_direct_of_them or head.type in ("group", "channel"):
                with (
                    suppress(NotFound, InvalidDocument),
                    self._engine.transaction(CONVERSATIONS, head.id),
                ):
                    pass

    # -- Names -------------------------------------------------------------------------------------

    def resolve(self, text: str, by: str | None) -> str:
        """Return the id of the agent that a name means.

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
        """Return the ids of the agents that are to be added to a conversation, as `resolve` does.

        An agent must not learn whether there is an agent that it may not find. So an unknown name
        stays as it is, and the rule refuses it like the id of an agent that lets nobody write to
        it.

        Raises InvalidInput. For the owner also NotFound.
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
        """Return the ids of the projects that have this id or name."""
        return {text, *(id for id in self.projects.ids() if self.project_name(id) == text)}

    def project_name(self, id: str) -> str:
        """Return the name of a project, or its id if it has none or can't be read.

        Cost: as `profile`.
        """
        with suppress(CapsuleError):
            return str((self.projects.find(id) or {}).get("name") or id)
        return id

    def resolve_project(self, text: str, among: Sequence[str] | None = None) -> str:
        """Return the id of the project that has this id or name.

        Args:
            text: The id or the name.
            among: The projects that may be meant, and that an error may list. None: all.

        Raises NotFound, InvalidInput. Cost: as `profile` for all.
        """
        project_ids = self.projects.ids() if among is None else among
        if text in project_ids:
            return text
        ids = [id for id in project_ids if self.project_name(id) == text]
        if len(ids) > 1:
            raise InvalidInput(
                f"several projects are called {text[:80]!r}; give the id of one: {', '.join(ids)}"
            )
        if not ids:
            raise self.projects.listing_only(lambda: project_ids).missing(text)
        return ids[0]

    def conversations_named(
        self, subject: str | None, text: str, heads: Iterable[Head]
    ) -> list[str]:
        """See `capsule.store.internals.AccessGuard`. The name of a group is its title. For channels
        see `resolve_channels`.
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
            if id in self.agents_visible_to(subject):
                return id
        return text

    def folders(self, subject: str | None) -> dict[str, str]:
        """See `capsule.store.internals.AccessGuard`. Cost: as `profiles`."""
        paths = {id: self._path_of(id) for id in self.projects.ids()}
        folders = {}
        for id in self.agents_visible_to(subject):
            path = paths.get(self.profile(id).project)
            if path:
                folders[id] = path
        return folders

    def _path_of(self, project: str) -> str:
        with suppress(CapsuleError):
            return str((self.projects.find(project) or {}).get("path") or "")
        return ""

    def resolve_channels(
        self, by: str | None, text: str, channels: Mapping[str, Channel]
    ) -> list[str]:
        """Return the ids of the channels that a name means. Several: it is ambiguous.

        Args:
            by: The agent that asks. None: the store's owner, who has no project.
            text: `name@project`, with the id or the name of a project, or a name alone. A name
                alone means a channel of the agent's own project, else a global one, else any.
            channels: The channels that it may find, by their ids.
        """
        name, at_sign, project = text.partition("@")
        scopes = {id: channel.scope for id, channel in channels.items() if channel.name == name}
        preferred_scopes: list[str] = []
        if at_sign:
            named_projects = self._projects_named(project)
            scopes = {id: scope for id, scope in scopes.items() if scope in named_projects}
            preferred_scopes = [project]  # An id means its project, before others of this name.
        elif by is not None:
            preferred_scopes = [self.profile(by).project or GLOBAL, GLOBAL]
        for preferred_scope in preferred_scopes:
            ids = [id for id, scope in scopes.items() if scope == preferred_scope]
            if ids:
                return ids
        return list(scopes)

    def identity(self, text: str, folder: str | None = None) -> str | None:
        """Return the id of the agent that a program acts as, by the rule of `acting_agent`.

        Args:
            text: `name@project`, or the name of an agent in the project of the folder, or an id.
            folder: The folder where the program runs, without links in its path. None: none.

        Returns:
            The id, also of an agent that is not registered. None: the agent has yet to be made in
            the project of the folder.

        Raises InvalidInput. Cost: a scan of a directory, and as `profile` for each agent if the
        folder is in a project.
        """
        if "@" in text:
            with suppress(NotFound):
                return self.resolve(text, None)
        path = folder and self.project_folder(folder)
        project = project_id(path) if path else None
        profile_of_id = self.profile(text)
        candidates: Iterable[AgentProfile] = [profile_of_id]
        if project not in (None, profile_of_id.project):
            candidates = self.profiles().values()
        agent = acting_agent(text, project, candidates)
        if agent is not None:
            return agent
        if project is not None and is_agent_id(text):
            return None
        return text

    def identity_for(self, store: Any, text: str, folder: str | None) -> str:
        """See `capsule.store.internals.AccessGuard`."""
        return self.identity(text, folder) or str(store.agents.identity(text, folder))

    def project_folder(self, folder: str) -> str | None:
        """Return the folder of the project that a folder is in: itself, or the nearest one above.

        Cost: one scan of a directory.
        """
        project_ids = {*self.projects.ids()}
        if not project_ids:
            return None
        folders = list(accumulate(folder.split("/"), "{}/{}".format))
        for ancestor in reversed(folders):
            if ancestor and project_id(ancestor) in project_ids:
                return ancestor
        return None


def acting_agent(name: str, project: str | None, agents: Iterable[AgentProfile]) -> str | None:
    """Return the id of the agent that a program acts as. All doors use this rule.

    Args:
        name: The name or the id that was given.
        project: The project of the folder where the program runs. None: the folder is in no
            project of the store.
        agents: The agents of the store. Only those of this name or id count.

    Returns:
        The agent of this name in the project. Else the agent with this id, if it is global or there
        is no project. None: it is to be made in the project. So a program never acts as an agent of
        another project.

    Raises InvalidInput: several agents of the project have the name.
    """
    candidates = [profile for profile in agents if name in (profile.id, profile.name)]
    ids_in_project = [profile.id for profile in candidates if profile.project == project]
    if name in ids_in_project:
        return name
    if len(ids_in_project) > 1:
        ids = ", ".join(ids_in_project)
        raise InvalidInput(f"several agents are called {name[:80]!r}; give the id of one: {ids}")
    if ids_in_project:
        return ids_in_project[0]
    for profile in candidates:
        if profile.id == name and (project is None or profile.project == GLOBAL):
            return name
    return None


def _in_projects(agents: Iterable[AgentProfile], projects: Iterable[str]) -> list[AgentProfile]:
    return [profile for profile in agents if profile.project in projects]


def _depends_on_links(target: PolicyTarget, project: str) -> bool:
    """Return whether only a link between projects can put a conversation in reach of a project."""
    if target.type != "channel":
        return False
    channel = target.channel
    if channel is None:
        return True
    return GLOBAL not in (channel.scope, project) and channel.scope != project


def _has_direction(link: Any, direction: str) -> bool:
    """Return whether a link of a project is enabled and has a direction: `in` or `out`."""
    if not isinstance(link, dict) or link.get("enabled") is False:
        return False
    return link.get("direction") in ("both", direction)


#: For so many seconds the last answer about who listens is used again. A listener may die at any
#: time after an answer anyway.
_INSTANT_S = 0.05


class StoreAgents:
    """The agents of an open store. Each store has one: `store.inner.object_of(StoreAgents)`.

    Attributes:
        directory: The agents and projects, the same for all stores that were opened beside one
            another.
        documents: The documents of the agents. Errors list only those that the store's agent may
            find.
    """

    def __init__(self, store: CoreStore) -> None:
        guard = store.inner.guard
        assert isinstance(guard, AgentDirectory)  # It is this room's.
        self.directory = guard
        self.documents = guard.agents.listing_only(lambda: guard.agents_visible_to(store.agent))
        self._store = store
        self._thread_lock = threading.Lock()
        #: How many calls of this store wait for messages.
        self._waiting_calls = 0
        #: The agents that listened at `_last_look_s`, in monotonic seconds.
        self._listening: set[str] = set()
        self._last_look_s = 0.0

    def registered_agent(self, agent: str | None) -> str:
        """Return the agent that a call is about: the given one, or the one that the store acts for.

        Raises NotFound if it is not registered, and the errors of `StoreInternals.required_agent`.
        """
        return self.documents.ensure_exists(self._store.inner.required_agent(agent))

    def requests_of(self, agent: str) -> Document:
        """Return the requests of an agent for permission to write, by the ids of the others.

        Cost: as `AgentDirectory.profile`.
        """
        with suppress(CapsuleError):
            return self.documents.read(agent).get("requests") or {}
        return {}

    @contextmanager
    def recording_requests(self, agent: str | None) -> Iterator[None]:
        """Record a request for permission if the block is refused because one is missing. See
        `Agents.requests`.

        Args:
            agent: The agent. None: the store's owner, who needs no permission.

        Raises Refused, StorageFailed. Cost: nothing. The first time that it is refused: writing a
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
            waits: How many more of its calls wait for messages than before. It may be negative.

        Raises Refused, StorageFailed. Cost: making a small file the first time, then overwriting
        it.
        """
        with self._thread_lock:
            self._waiting_calls += waits
            details = {"agent": agent, "listening": self._waiting_calls > 0}
            self._store.engine.leases.acquire(self._store.instance_id, details)

    @contextmanager
    def listening(self, agent: str) -> Iterator[None]:
        """Announce that an agent waits for messages, until the end of the block."""
        self.announce(agent, +1)
        try:
            yield
        finally:
            self.announce(agent, -1)

    def online(self) -> dict[str, bool]:
        """Return the agents that are online, each with whether it listens.

        Cost: a look at each instance that is alive.
        """
        online: dict[str, bool] = {}
        self._last_look_s = time.monotonic()
        for details in self._store.engine.leases.live_instances().values():
            agent = details.get("agent")
            if isinstance(agent, str):
                is_listening = details.get("listening") is True
                online[agent] = is_listening or online.get(agent, False)
        self._listening = {agent for agent, listens in online.items() if listens}
        return online

    def was_just_listening(self, agent: str) -> bool:
        """Return whether an agent listened when `online` was called less than 50 ms ago."""
        return agent in self._listening and time.monotonic() - self._last_look_s < _INSTANT_S


def _add_request(other: str, document: Document) -> None:
    document["requests"] = (document.get("requests") or {}) | {other: {"at": timestamps.now()}}
