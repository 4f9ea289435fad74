"""With --as AGENT every command reads and changes what that agent may, and nothing else."""

from __future__ import annotations

import pytest

from capsule import Store
from capsule.sessions.events import Route, destinations_event, inbound_message
from capsule.sessions.registry import Registry, SessionRecord
from capsule.sessions.rules.messages import claim, pick, receive
from capsule.sessions.session import Session
from tests.core.cli.conftest import Program
from tests.core.store.making import branched, channel

#: Commands about one conversation: what a program is told by them that acts for somebody who does
#: not take part.
REFUSED = [
    *(
        "show team",
        "show team --all",
        "branch list team",
        "show team --raw",
        "show team --json",
        "show team --last 1",
    ),
    *(
        "show --last=10 team",
        "show --for-model team",
        "history team",
        "append team x",
        "send x --conversation team",
        "set team --title=x",
    ),
    *(
        "set team --add-tag=x",
        "set --pin team",
        "set --archive team",
        "set team --pin",
        "edit team x --which @0",
        "branch switch team @1",
    ),
    *(
        "branch regenerate team x",
        "branch fork team",
        "branch trim team --yes",
        "summarize team x",
        "context show team",
        "store migrate team",
    ),
    *(
        "mcp servers list team",
        "lock take team --instance night",
        "lock release team --force",
        "delete team --yes",
    ),
    *(
        "group leave team",
        "group set team --name=x",
        "group add team eve",
        "channel join team",
        "channel leave team",
        "channel mute team",
    ),
    *(
        "channel members team",
        "channel topics team",
        "channel invite eve --channel team",
        "channel show team",
        "channel set --archive team",
    ),
    *("send x --channel team", "listen --timeout 0s --conversation team"),
]
#: What only a person does.
OF_A_PERSON = [
    *(
        "git log team",
        "git commit",
        "git status",
        "show team --at HEAD",
        "doctor",
        "trash purge --yes",
        "store validate",
    ),
    *("mcp tokens list", "mcp tokens add anna", "agent forget anna --yes"),
]


PRIVATE = "channel_global_private"


@pytest.fixture
def team(capsule: Program) -> None:
    with Store.open(capsule.root) as store:
        for agent in ("anna", "eve"):
            store.agents.register(agent)
        branched(store, "team", "anna")
        channel(store, PRIVATE, "anna", access="private")


@pytest.mark.usefixtures("team")
@pytest.mark.parametrize("id", ["team", PRIVATE])
def test_a_conversation_that_the_agent_is_not_in_is_answered_as_one_that_is_not_there(
    capsule: Program, id: str
) -> None:
    before = capsule.file(id).read_bytes()
    for words in REFUSED:
        asked = [words.replace("team", there).split() for there in (id, "channel_global_gone")]
        answers = [capsule(*ask, "--as", "eve", expect=3) for ask in asked]
        assert answers[0].stdout == answers[1].stdout == "", words
        assert answers[0].stderr == answers[1].stderr.replace("channel_global_gone", id), words
        assert capsule.file(id).read_bytes() == before, words


@pytest.mark.usefixtures("team")
def test_history_in_git_and_the_care_of_the_store_are_a_persons(capsule: Program) -> None:
    for words in OF_A_PERSON:
        assert "anna" in capsule(*words.split(), "--as", "anna", expect=6).stderr, words


#: What reaches others than the session of the agent does, or changes what they see of it.
BEYOND = [
    *(
        "send x --to eve",
        "send x --to carl",
        "append direct_bot_eve x",
        "append plan x",
        "set plan --title=x",
        "set plan --add-tag=x",
    ),
    *(
        "new x",
        "group new x --with eve",
        "channel new x",
        "channel join lobby",
        "channel invite eve --channel desk",
    ),
    *(
        "agent status x",
        "agent allow eve",
        "agent register --project .",
        "agent set bot --project .",
    ),
    *(
        "send x --to anna --as eve",
        "worker allow bot eve",
        "mcp tokens list",
        "worker host",
        "worker run --agent eve -- true",
    ),
    "mcp --http 0",
]


def test_a_command_of_a_session_reaches_whom_the_session_may_reach(
    capsule: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(capsule.root) as store:
        for agent in ("anna", "bot", "carl", "eve"):
            store.agents.register(agent)
        store.agents.policy("carl", dm="restricted")
        for agent in ("anna", "eve"):
            store.messages.send("hello", agent=agent, to="bot")
        store.channels.create("lobby", agent="anna", scope="global")
        desk = store.channels.create("desk", agent="bot", scope="global").id
        Registry(store.engine).edit(lambda state: state.put(SessionRecord("s1", "bot")))
        session = Session.create(store.engine, "s1", "bot")
        told = inbound_message(
            id="m1", content="hello", route=Route("conversations", "direct_anna_bot")
        )
        session.write_inbound(
            lambda session_state: [
                *receive(session_state, [told]),
                destinations_event(
                    destinations={"desk": {"channel": "conversations", "place": desk}}
                ),
            ]
        )
        session.write_outbound(
            lambda session_state: claim(
                session_state, pick(session_state, "9", just_started=True), "w"
            )
        )
        store.create(title="Plan", id="plan")
    for name, value in (("CAPSULE_AGENT", "bot"), ("CAPSULE_SESSION", "s1")):
        monkeypatch.setenv(name, value)
    for words in BEYOND:
        capsule(*words.split(), expect=6)
    for words in ("send yes --to anna", "send x --channel desk", "note write x", "inbox"):
        capsule(*words.split())
    assert "requests" not in (capsule.root / "agents" / "bot.json").read_text()
    monkeypatch.delenv("CAPSULE_AGENT")
    capsule("list", expect=6)
