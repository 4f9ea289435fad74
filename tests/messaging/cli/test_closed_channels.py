"""With --as AGENT no command tells of what the agent does not find: no word of it, and not that it
exists.
"""

from __future__ import annotations

import shlex

import pytest
from typer.testing import CliRunner

from capsule import Store
from capsule_cli.app import app
from tests.core.cli.conftest import Program
from tests.core.store.making import make

#: In each name, title, description, topic, tag and message of what carl may not read.
CANARY = "canary"
#: Commands that tell of everything that the agent may read.
ALL = [
    *(
        "list --archived",
        "search the",
        "search first",
        "search canary",
        "search --topic canary",
        "store stats",
        "lock list",
    ),
    *("trash list", "inbox"),
    *(
        "channel list --archived",
        "group list",
        "listen --timeout 0s",
        "mention list --state all",
        "note search",
    ),
    *(
        "agent list",
        "agent discover",
        "agent requests",
        "project list",
        "watch --events --after {cursor}",
        "send x",
    ),
]


@pytest.fixture
def closed(capsule: Program) -> dict[str, str]:
    """Channels that carl of another project does not find; and where the events of them begin."""
    with Store.open(capsule.root) as store:
        cursor = store.changes().cursor
        for agent, folder in (("anna", "/srv/api"), ("bob", "/srv/api"), ("carl", "/srv/web")):
            store.agents.register(agent, folder)
        ids = {}
        for access in ("open", "members", "private"):
            name, about = f"{CANARY}-{access}", f"of the {CANARY}"
            ids[access] = store.channels.create(
                name, agent="anna", access=access, description=about, members=["bob"]
            ).id
            store.messages.send(
                f"the {CANARY} @carl", agent="anna", channel=ids[access], topic=CANARY
            )
            store.tag(ids[access], CANARY)
        for id in (f"{CANARY}-group", f"{CANARY}-deleted"):
            make(store, id, "anna")
        store.delete(f"{CANARY}-deleted")
        store.notes.write(f"the {CANARY}", agent="anna", tags=[CANARY])
        return ids | {"cursor": cursor}


def told(line: str, agent: str, id: str = "", **given: str) -> tuple[int, str]:
    """The exit code of a command, and all that it prints but the id that it was given."""
    words = [word.format(id=id, **given) for word in shlex.split(line)]
    result = CliRunner().invoke(app, [*words, "--as", agent])
    return result.exit_code, (result.stdout + result.stderr).replace(id or "\0", "ID")


def test_no_command_tells_of_what_the_agent_may_not_read(closed: dict[str, str]) -> None:
    for line in (*ALL, *(f"{line} --json" for line in ALL)):
        code, shown = told(line, "carl", cursor=closed["cursor"])
        assert CANARY not in shown.replace(f'"{CANARY}"', "") and (
            code == 0 or line.startswith("send x")
        ), (
            line,
            shown,
        )
    assert CANARY in told("channel list", "bob")[1]


@pytest.mark.usefixtures("closed")
def test_the_shell_completes_for_an_agent_what_it_may_read(capsule: Program) -> None:
    found = {}
    for agent in ("bob", "carl"):
        line = "capsule show channel_"
        asked = {
            "COMP_WORDS": line,
            "COMP_CWORD": "2",
            "_TYPER_COMPLETE_ARGS": line,
            "CAPSULE_AGENT": agent,
        }
        process = capsule.start(env=capsule.environment(_CAPSULE_COMPLETE="complete_bash", **asked))
        found[agent] = process.communicate(timeout=60)[0].decode().split()
    assert (len(found["bob"]), found["carl"]) == (3, [])
