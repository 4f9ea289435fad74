"""Agents: their ids, what a second registration keeps, and who is online."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema  # type: ignore[import-untyped, unused-ignore]
import pytest

from capsule import InvalidInput, NotFound, Refused, Store
from capsule.errors import Remedy
from capsule.format import schema
from capsule.format.json import codec
from capsule.format.validation import AGENT, PROJECT
from capsule.messaging.directory import StoreAgents
from tests.processes import Child

LISTENS = """
with Store.open(sys.argv[1]) as store:
    store.agents.register("bob")
    say()
    say([mail.content for mail in store.messages.listen(agent="bob", timeout_s=float(sys.argv[2])).messages])
    hear()
"""


@pytest.fixture
def memory() -> Iterator[Store]:
    with Store.in_memory() as store:
        yield store


@pytest.mark.parametrize(
    ("folder", "id"),
    [
        ("/home/My Project", "my-project"),
        ("/home/Straße_Ærø", "strasse-aero"),
        ("/home/Проект", "proekt"),
        ("/home/项目", "xiangmu"),
        ("/home/!?", "agent"),
        ("/", "agent"),
        ("/" + "x" * 200, "x" * 53),
    ],
)
def test_an_id_is_made_of_the_name_of_the_folder(memory: Store, folder: str, id: str) -> None:
    assert memory.agents.register(project=folder).id == id


def test_a_folder_always_gives_the_same_id_and_another_one_of_its_name_another_id(
    memory: Store,
) -> None:
    one, other = (memory.agents.register(project=f"/{root}/app").id for root in ("a", "b"))
    assert one == "app" != other
    assert other.startswith("app-")
    memory.agents.forget(one)
    assert memory.agents.register(project="/b/app").id == other
    assert memory.agents.register(project="/a/app").id == one


def test_what_registration_writes_is_valid_by_the_schema(memory: Store) -> None:
    memory.agents.register(project="/home/anna/api")
    memory.agents.register("bob")
    kinds = [(kind, id) for kind in (AGENT, PROJECT) for id in memory.engine.ids(kind.name)]
    assert len(kinds) == 3
    for kind, id in kinds:
        data = memory.engine.read(kind.name, id)
        assert kind.problems_of(data, id) == []
        jsonschema.validate(
            codec.decode(data, id), schema.schema(kind.part), cls=jsonschema.Draft202012Validator
        )


def test_an_agent_without_a_folder_is_not_taken_over_by_a_folder_of_its_name(memory: Store) -> None:
    memory.agents.register("app")
    assert memory.agents.register(project="/a/app").id != "app"


def test_the_agents_of_a_folder_are_those_of_the_nearest_project_around_it(memory: Store) -> None:
    for id, project in (("anna", "/a"), ("bob", "/a/b"), ("carl", "/a/b"), ("dora", None)):
        memory.agents.register(id, project)
    assert [memory.agents.at(folder) for folder in ("/a/bb/c", "/a/b/c", "/a", "/")] == [
        ["anna"],
        ["bob", "carl"],
        ["anna"],
        [],
    ]


def test_registering_again_changes_only_what_is_given(memory: Store) -> None:
    first = memory.agents.register("anna", "/a", name="Anna")
    memory.agents.set_status("anna", "reviewing")
    memory.agents.set_notifications("anna", False)
    again = memory.agents.register("anna")
    assert (again.name, again.project_path, again.status_message) == ("Anna", "/a", "reviewing")
    assert (again.notifications, again.created_at) == (False, first.created_at)
    assert memory.agents.register("anna", description="reviews").description == "reviews"


def test_an_id_that_an_agent_of_another_project_has_gives_another_agent_of_this_name(
    memory: Store,
) -> None:
    one, other = (memory.agents.register("anna", f"/{folder}") for folder in "ab")
    assert one.id == "anna" != other.id and one.name == other.name == "anna"
    assert (one.project_path, other.project_path) == ("/a", "/b") and one.project != other.project
    for folder, agent in (("/a", one), ("/b", other)):
        assert memory.agents.register("anna", folder).id == agent.id
        assert memory.agents.identity("anna", folder) == agent.id
    assert [project.path for project in memory.projects.list()] == ["/a", "/b"]
    shown, there = (
        memory.projects.get("a").as_json(),
        memory.inner.object_of(StoreAgents).directory.projects.read(memory.projects.get("a").id),
    )
    assert (
        shown == {name: there.get(name, {}) for name in shown}
        and {"createdAt", "metadata"} <= shown.keys()
    )


def test_only_the_owner_moves_an_agent_and_nothing_else_does(memory: Store) -> None:
    memory.agents.register("anna")
    with pytest.raises(InvalidInput) as stays:
        memory.agents.register("anna", "/a")
    assert stays.value.remedy == Remedy("move", "anna")
    assert memory.agents.ensure("anna", "/a") == memory.agents.identity("anna", "/a") == "anna"
    assert memory.agents.register("anna").project == "global"
    with pytest.raises(Refused):
        memory.beside(agent="anna").agents.move("anna", "/a")
    for folder in "ab":
        anna = memory.agents.move("anna", f"/{folder}")
        assert (anna.id, anna.project_path, anna.project) == (
            "anna",
            f"/{folder}",
            memory.projects.get(folder).id,
        )
        assert memory.agents._documents.registered_folder("anna") == f"/{folder}"
    assert memory.agents.register("anna", "/a").id != "anna"
    with pytest.raises(InvalidInput, match="already"):
        memory.agents.move("anna", "/a")


def test_a_program_without_a_name_acts_as_the_one_agent_of_its_folder_or_as_one_of_the_folders_name(
    memory: Store,
) -> None:
    assert memory.agents.ensure(None, "/a/app") == "app" == memory.agents.ensure(None, "/a/app/src")
    memory.agents.register("anna", "/a/web")
    assert memory.agents.ensure(None, "/a/web") == "anna"
    for name, id in ((None, "home"), ("bob", "bob")):
        assert memory.agents.ensure(name, "/home", is_project=False) == id
        assert memory.agents.get(id).project == "global"


def test_an_id_without_underscores_makes_the_names_of_directs_unambiguous(memory: Store) -> None:
    for id in ("a_b", "-a", "A", "", "a" * 61):
        with pytest.raises(InvalidInput):
            memory.agents.register(id)
    for id in ("a", "b-c", "a-b", "c"):
        memory.agents.register(id)
    sent = [
        memory.messages.send("hi", agent=one, to=other)
        for one, other in (("a", "b-c"), ("a-b", "c"))
    ]
    assert len({each.conversation for each in sent}) == 2


def test_a_store_that_acts_for_an_agent_changes_no_other(memory: Store) -> None:
    memory.agents.register("anna")
    bob = memory.beside(agent="bob")
    bob.agents.register("bob")
    assert bob.agents.set_status(None, "here").status_message == "here"
    for change in (
        lambda: bob.agents.set_status("anna", "gone"),
        lambda: bob.agents.forget("anna"),
    ):
        with pytest.raises(Refused):
            change()
    with pytest.raises(Refused):
        bob.messages.send("as anna", agent="anna", to="bob")
    assert [agent.id for agent in bob.agents.list()] == ["anna", "bob"]


def test_an_unknown_agent_is_an_error_that_names_those_there_are(memory: Store) -> None:
    memory.agents.register("anna")
    for ask in (memory.agents.get, memory.messages.pointer, memory.agents.serve):
        with pytest.raises(NotFound, match="anna"):
            ask("nobody")


def state(store: Store) -> tuple[bool, bool]:
    bob = store.agents.get("bob")
    return bob.online, bob.listening


def test_an_agent_listens_while_it_waits_and_stays_online_after_a_wait(
    store: Store, child: Callable[..., Child]
) -> None:
    bob = child(LISTENS, store.root, 60)
    bob.hear()
    while state(store) != (True, True):
        pass
    store.agents.register("anna")
    store.messages.send("hi", agent="anna", to="bob")
    assert bob.hear() == ["hi"]
    assert state(store) == (True, False)
    bob.say()
    bob.end()
    assert state(store) == (False, False)


def test_an_agent_stays_online_when_its_wait_times_out(
    store: Store, child: Callable[..., Child]
) -> None:
    bob = child(LISTENS, store.root, 0.01)
    bob.hear()
    assert bob.hear() == []
    assert state(store) == (True, False)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.files
def test_nobody_stays_online_after_a_crash(
    store: Store, child: Callable[..., Child], number: int
) -> None:
    bob = child(LISTENS, store.root, 60)
    bob.hear()
    while state(store) != (True, True):
        pass
    bob.signal(number)
    bob.end()
    assert state(store) == (False, False)
    assert store.agents.get("bob").last_seen


def test_an_agent_in_the_file_system_is_a_file_that_a_person_may_edit(
    root: Path, store: Store
) -> None:
    store.agents.register("bob", "/home/bob")
    path = root / "agents" / "bob.json"
    path.write_text(path.read_text().replace('"name": "bob"', '"name": "Robert", "team": "red"'))
    assert store.agents.register("bob").name == "Robert"
    store.agents.set_status("bob", "busy")
    assert '"team": "red"' in path.read_text()
