"""Stores for the tests of the page: small ones in which there is something of everything, and large
ones.

What must stay true: what the Store offers was made through it, as people, agents and workers make
it; only large files and conflicts are written as files, as a program beside it and git would.
"""

from __future__ import annotations

import json
import os
import subprocess
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.fixtures import STAMP, history, write_capsule
from capsule import Store
from capsule.errors import Refused
from capsule.format.documents.creation import new_capsule
from capsule.format.json import codec
from capsule.sessions.registry import Registry
from capsule.sessions.worker.toolkit import Toolkit
from capsule.sessions.worker.worker import CommandResult, Prompt
from capsule.timestamps import from_ms
from tests.context.projects import captured, lay_out
from tests.processes import until
from tests.sessions.hosting import group, hosting, said

SAMPLES = Path(__file__).resolve().parents[1] / "transfer" / "data"
LARGE = "10000000-0000-4000-8000-000000000000"
TAGS = ("work", "home", "ideas", "release")
PNG = b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
DRAFT = """\
# A plan for the meadow

The **north** slope is *wet* until noon, see [the map](https://example.org/map) and `meadow.toml`.

| part | when | ready |
| --- | --- | ---: |
| north | Friday | 20 % |
| south | today | 100 % |

1. Mow the south.
2. Wait.

> Grass dries from above.

```python
def dry(parts: list[str]) -> bool:
    return all(part != "north" for part in parts)  # it is wet
```

```rust
fn main() { println!("{}", 1 < 2 && "a" != "b"); }
```

```sql
SELECT part, avg(wet) FROM meadow GROUP BY part HAVING avg(wet) < 0.2;
```

```
no language, and <b>no HTML</b> either
```
"""
OLD, NEW = "def mow():\n    pass\n", 'def mow():\n    cut("south")\n'


@dataclass(frozen=True, slots=True)
class Talk:
    """The ids of what is in a store that `talk` made.

    Attributes:
        plan: A pinned chat with all that a message can be: Markdown, code, reasoning, tools, an
            edit, an image.
        branched: A chat with three answers to its first question, and two versions of that.
        answers: These answers; the last one is active.
        long: A chat of 450 messages, more than a window.
        summary: The summary of `long`, which has gone on since.
        context: A chat with a context, whose project (`project`) has changed since.
        fork: A fork of `plan`.
        archived: A chat in the archive.
        imported: The sessions of Claude Code and Codex.
        direct: The direct of anna and bob.
        group: A group of anna, bob and eve, with a mention of anna.
        channel: The channel of everybody, with topics.
        projects: Two projects, the first of which sees the second.
        disputed: A chat with conflicts in its title and its pin.
        trashed: A chat in the trash.
        removed: A chat of which a message is in the trash.
        asked: The direct in which a worker asked anna a question.
        question: The id of that question, which is open.
        answered: What anna sent to the worker before: it was answered.
        failed: What she sent then: it failed for good.
    """

    plan: str
    branched: str
    answers: Sequence[str]
    long: str
    summary: str
    context: str
    project: str
    fork: str
    archived: str
    imported: Sequence[str]
    direct: str
    group: str
    channel: str
    projects: Sequence[str]
    disputed: str
    trashed: str
    removed: str
    asked: str
    question: str
    answered: str
    failed: str


def talk(root: Path) -> Talk:
    """Fill a fresh store with something of everything. Returns: the ids. The fixture `talk` copies
    one.
    """
    with Store.open(root, keep_locks=False) as store:
        made = _chats(store, root) | _agents(store, root) | _worker(store)
        report = store.import_(
            str(SAMPLES / "claude-code" / "site"), str(SAMPLES / "codex" / "shell")
        )
    dispute(root, made["disputed"])
    return Talk(**made, imported=[taken.id for taken in report.conversations])


def _chats(store: Store, root: Path) -> dict[str, Any]:
    plan = store.create(title="A plan for the meadow", tags=["work", "meadow"]).id
    store.append(
        plan, content="Can we mow on Friday?\n\nPlease look at the map.", attachments=[_kept(store)]
    )
    store.append(
        plan,
        role="assistant",
        content="I look at the files first.",
        reasoning="The slope matters.\n\nFirst the files, then the weather.",
        model="model-large",
        toolCalls=[
            {"id": "call_1", "name": "Bash", "arguments": {"command": "ls -la meadow"}},
            {
                "id": "call_2",
                "name": "Edit",
                "arguments": {"file_path": "mow.py", "old_string": OLD, "new_string": NEW},
            },
        ],
    )
    store.append(plan, role="tool", content="total 2\nmeadow.toml\nmow.py", toolCallId="call_1")
    store.append(
        plan, role="tool", content="The file mow.py has been updated.", toolCallId="call_2"
    )
    store.append(plan, role="assistant", content=DRAFT, model="model-large")
    store.pin(plan)
    fork = store.forks.create(plan).id

    branched = store.create(
        title="Three answers", messages=[{"role": "user", "content": "Why is grass green?"}]
    ).id
    first = store.append(branched, role="assistant", content="It has chlorophyll.").id
    answers = [str(first)]
    for text in ("It absorbs red and blue light.", "Because of magnesium in a ring of nitrogen."):
        answers.append(str(store.branches.regenerate(branched, text).id))
    store.branches.revise(branched, "@0", "Why is grass green in May?")
    store.branches.switch(branched, answers[-1])

    long = store.create(title="A long conversation", tags=["work"]).id
    store.append_many(long, [_line(number) for number in range(450)])
    summary = store.summaries.add(long, "They counted to 450, and liked **it**.").id
    store.append(long, content="And one more.")

    project = root.parent / "project"
    lay_out(
        project, {"README.md": b"# Meadow\n", "src/mow.py": OLD.encode(), "src/rest.py": b"x = 1\n"}
    )
    context = store.create(title="A question about a project").id
    store.context.set(context, captured(project))
    store.append(context, content="What does `mow.py` do?")
    lay_out(project, {"src/mow.py": NEW.encode(), "src/new.py": b""})

    archived, disputed, trashed, removed = (
        store.create(title=title, messages=[_line(0), _line(1), _line(2)]).id
        for title in ("An old one", "Ben's title", "In the trash", "With a gap")
    )
    store.archive(archived)
    store.delete(trashed)
    store.branches.remove(removed, "@1", keep_children=True)
    return {
        "plan": plan, "fork": fork, "branched": branched, "answers": answers, "long": long, "summary": summary,
        "context": context, "project": str(project), "archived": archived, "disputed": disputed, "trashed": trashed,
        "removed": removed,
    }  # fmt: skip


def _line(number: int) -> dict[str, str]:
    return {
        "role": "assistant" if number % 2 else "user",
        "content": f"Line {number} of the conversation.",
    }


def _kept(store: Store) -> dict[str, Any]:
    digest = sha256(PNG).hexdigest()
    store.inner.whole_engine.files.write("attachments", digest, digest, PNG)
    about = {"name": "map.png", "type": "image/png", "sha256": digest, "size": len(PNG)}
    return about | {"path": f"attachments/{digest}"}


def _agents(store: Store, root: Path) -> dict[str, Any]:
    for agent, words in (
        ("anna", "A person"),
        ("bob", "Writes code"),
        ("eve", "Reads code"),
        ("zoe", "Is choosy"),
    ):
        store.agents.register(agent, description=words)
    store.agents.policy("zoe", dm="restricted")
    store.agents.set_status("bob", "on the north slope", busy=True)
    north, south = (_project(store, root, name) for name in ("north", "south"))
    store.projects.link(north, south, direction="out")
    direct = store.messages.send("Is the mower back?", agent="bob", to="anna").conversation
    store.messages.send("Not yet.", agent="anna", to="bob")
    store.messages.send("Then I wait.", agent="bob", to="anna")
    meadow = store.groups.create("Meadow", agent="anna", with_=["bob", "eve"]).id
    store.messages.send("@anna --review please look at the plan", agent="eve", conversation=meadow)
    general = store.channels.create(
        "general", scope="global", description="Everything", default=True
    ).id
    for agent in ("anna", "bob"):
        store.channels.join("general", agent=agent)
    for topic in ("weather", "tools"):
        store.messages.send(
            f"Something about {topic}.", agent="bob", channel="general", topic=topic
        )
    _refused(store, "eve", "zoe")
    return {"direct": direct, "group": meadow, "channel": general, "projects": (north, south)}


def _project(store: Store, root: Path, name: str) -> str:
    """A project with one agent, who is named after it."""
    (root.parent / name).mkdir()
    return str(store.agents.register(project=str(root.parent / name)).project)


def _refused(store: Store, sender: str, to: str) -> None:
    """A message that is refused: its sender then waits for the other one's consent."""
    try:
        store.messages.send("May I?", agent=sender, to=to)
    except Refused:
        return
    raise AssertionError(f"{to} takes messages from {sender}")


def _worker(store: Store) -> dict[str, Any]:
    """A worker that answers, asks and fails."""
    group(store, "worker")

    def answer(prompt: Prompt) -> CommandResult:
        text = prompt.messages[-1]["content"]
        if "fail" in text:
            return CommandResult(65, "", "no such file")
        if "ask" in text:
            with store.beside() as beside:
                options = [{"label": "Yes, all", "value": "yes"}, {"label": "No", "value": "no"}]
                Toolkit(beside, prompt.session, prompt.batch).ask_question(
                    "Delete it?", options, limit_s=86_400
                )
            return CommandResult(0, "")
        return CommandResult(0, "It is mown.")

    with hosting(store, answer):
        answered = store.messages.send("Please mow.", agent="anna", to="worker")
        until(lambda: said(store, answered.conversation, "worker"))
        failed = store.messages.send("Now fail.", agent="anna", to="worker").message
        until(lambda: len(said(store, answered.conversation, "worker")) > 1)
        store.messages.send("Now ask me.", agent="anna", to="worker")
        until(lambda: len(said(store, answered.conversation, "worker")) > 2)
    (question,) = Registry(store.engine).read().questions
    return {
        "asked": answered.conversation, "question": question, "answered": answered.message, "failed": failed
    }  # fmt: skip


def dispute(root: Path, id: str) -> None:
    """Put conflicts in its title and its pin into the file of a conversation."""
    path = root / "conversations" / f"{id}.json"
    document = json.loads(path.read_bytes())
    titles = [
        {"value": "Anna's title", "at": "2026-01-01T00:00:00.000Z"},
        {"value": "Ben's title", "at": STAMP},
    ]
    document["metadata"]["conflicts"] = [
        {"field": "metadata.pinned", "values": [{"value": None}, {"value": True}]},
        {"field": "title", "values": titles},
    ]
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False), "utf-8")


def versions(root: Path, id: str, title: str = "Another title") -> None:
    """Put a store under git, with three versions of a conversation: as it is, with another title,
    with a message.
    """

    def commit(words: str) -> None:
        for command in (("add", "-A"), ("commit", "-q", "-m", words)):
            subprocess.run(["git", *command], cwd=root, check=True, stdout=subprocess.DEVNULL)

    subprocess.run(["git", "init", "-q", "-b", "main"], cwd=root, check=True)
    commit("As it is")
    with Store.open(root, keep_locks=False) as store:
        store.rename(id, title)
        store.flush()
        commit(title)
        store.append(id, content="A later message")
        store.flush()
        commit("A later message")


def large(root: Path, messages: int = 100_000) -> str:
    """Write a conversation of so many messages into a store. Returns: its id. 100,000 take about a
    second.
    """
    write_capsule(root, LARGE, messages=messages, type="chat")
    return LARGE


def many(root: Path, conversations: int = 10_000, messages: int = 4) -> None:
    """Write so many conversations into a store, the first one changed last. 10,000 take about three
    seconds.
    """
    folder = root / "conversations"
    for number in range(conversations):
        id = f"{number:08x}-0000-4000-8000-000000000000"
        tags = [TAGS[number % len(TAGS)]] if number % 3 else []
        type = "group" if number % 5 == 4 else "chat"
        document = new_capsule(
            id,
            f"Conversation {number}",
            STAMP,
            type=type,
            tags=tags,
            messages=history(messages, 200),
        )
        seconds = 1_780_000_000 - number * 60
        document["updatedAt"] = from_ms(seconds * 1000)
        path = folder / f"{id}.json"
        path.write_bytes(codec.encode(document))
        os.utime(path, (seconds, seconds))
