"""The pictures of README.md and docs/, and that they show what the text beside them says.

`CAPSULE_PICTURES=docs` keeps the pictures. What stands in them was written through the Store, and
imported from files as the programs leave them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from capsule import Store
from tests.web.browser import screenshot
from tests.web.serving import Served

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

pytestmark = pytest.mark.slow

DESK = {"viewport": {"width": 1100, "height": 720}}
TALL = {"viewport": {"width": 1100, "height": 1000}}
PHONE = {
    "viewport": {"width": 390, "height": 760},
    "has_touch": True,
    "is_mobile": True,
    "color_scheme": "dark",
}
MODEL = "claude-opus-4-5"
BEFORE = """\
    def resume(self, upload: Upload) -> None:
        offset = upload.size_on_disk()
        self.queue.put((upload.id, offset))"""
AFTER = """\
    def resume(self, upload: Upload) -> None:
        with upload.lock:
            offset = upload.acknowledged
            self.queue.put((upload.id, offset))"""
FIRST = "The test waits too short. I raised its timeout to 30 seconds."
SECOND = """\
It is a race, not the test: `resume` asked the *file*, and the writer may be in the middle of a chunk.

```python
with upload.lock:
    offset = upload.acknowledged  # what the server has, not what is on the disk
```

**500 runs** in a row pass now.
"""
SHOP, API, CODEX = "/home/mia/shop", "/home/mia/api", "gpt-5-codex"
#: Sessions of other programs: the program, the day, its folder, its model, what was asked, and what
#: it answered.
SESSIONS = [
    ("claude", "2026-03-12", SHOP, MODEL, "Make the cart survive a reload", ("The cart is kept in "
                                                                            "the session now.")),
    ("codex", "2026-03-11", API, CODEX, "Add a health endpoint", ("Added `GET /health`, with a "
                                                                 "test.")),
    ("claude", "2026-03-10", SHOP, MODEL, "Why is checkout slow on Mondays?", ("A nightly job has "
                                                                              "a lock.")),
    ("gemini", "2026-03-09", "", "gemini-3", "Explain the retries of uploads", ("An upload resumes "
                                                                               "after 1, 2, 4 s.")),
    ("codex", "2026-03-06", API, CODEX, "Resume interrupted downloads", ("Downloads resume by "
                                                                        "range now.")),
    ("claude", "2026-03-05", "/home/mia/infra", MODEL, "Move the backups to another region", ("A "
                                                                                             "plan in three steps.")),
]  # fmt: skip


def _message(role: str, text: str, day: str, minute: int) -> dict[str, Any]:
    return {"role": role, "content": text, "timestamp": f"{day}T09:{minute:02d}:20.000Z"}


def _flaky(store: Store) -> str:
    """A prompt, a command and an edit, two answers to choose from, and a question behind."""
    day = "2026-03-13"
    id = store.create(title="A flaky test in the upload queue", tags=["uploads", "bug"]).id
    asked = (
        "`test_resume` fails about once in fifty runs on the build machine. Can you find out why?"
    )
    calls = [
        {
            "id": "call_1",
            "name": "Bash",
            "arguments": {"command": "pytest tests/test_resume.py --count 50 -q"},
        },
        {
            "id": "call_2",
            "name": "Edit",
            "arguments": {
                "file_path": "uploads/queue.py",
                "old_string": BEFORE,
                "new_string": AFTER,
            },
        },
    ]
    store.append_many(
        id,
        [
            _message("user", asked, day, 2) | {"from": "mia"},
            _message("assistant", "", day, 3) | {"model": MODEL, "toolCalls": calls},
            _message("tool", "FAILED test_resume[17]\n1 failed, 49 passed in 41 s", day, 4)
            | {"toolCallId": "call_1"},
            _message("tool", "The file uploads/queue.py has been updated.", day, 5)
            | {"toolCallId": "call_2"},
            _message("assistant", FIRST, day, 6) | {"model": MODEL},
        ],
    )
    store.branches.regenerate(id, SECOND, model=MODEL, timestamp=f"{day}T09:09:20.000Z")
    return id


def _session(
    folder: Path, number: int, program: str, day: str, cwd: str, model: str, asked: str, said: str
) -> Path:
    """The file of a session, as its program writes it."""
    id, at = f"00000000-0000-4000-8000-{number:012d}", f"{day}T10:00:0"
    if program == "claude":
        about = {"cwd": cwd, "sessionId": id, "version": "2.1.7", "isSidechain": False}
        said_by = {"role": "assistant", "model": model, "content": [{"type": "text", "text": said}]}
        lines: list[dict[str, Any]] = [
            about
            | {
                "type": "user",
                "uuid": "u",
                "parentUuid": None,
                "message": {"role": "user", "content": asked},
            },
            about | {"type": "assistant", "uuid": "a", "parentUuid": "u", "message": said_by},
        ]
        path = folder / "claude" / "projects" / cwd.replace("/", "-") / f"{id}.jsonl"
    elif program == "codex":
        texts = [("user", "input_text", asked), ("assistant", "output_text", said)]
        lines = [
            {
                "type": "session_meta",
                "payload": {"id": id, "cwd": cwd, "originator": "codex_cli_rs", "source": "cli"},
            },
            {"type": "turn_context", "payload": {"cwd": cwd, "model": model}},
            *(
                {
                    "type": "response_item",
                    "payload": {"type": "message", "role": role, "content": [part]},
                }
                for role, part in (
                    (role, {"type": kind, "text": text}) for role, kind, text in texts
                )
            ),
        ]
        path = folder / "codex" / f"rollout-{day}T10-00-00-{id}.jsonl"
    else:
        times = {"startTime": f"{at}1.000Z", "lastUpdated": f"{at}2.000Z"}
        lines = [
            {"sessionId": id, "projectHash": "ab" * 32, "kind": "main"} | times,
            {"id": "1", "type": "user", "content": asked},
            {"id": "2", "type": "gemini", "content": said, "model": model},
        ]
        path = folder / "gemini" / "chats" / f"session-{id}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(
            json.dumps({"timestamp": f"{at}{n}.000Z"} | line) + "\n"
            for n, line in enumerate(lines, 1)
        )
    )
    return path


@pytest.fixture
def shown(root: Path, tmp_path: Path, serve: Callable[..., Served]) -> tuple[Served, str]:
    """The page of a store as a developer has it, and the conversation of the first picture."""
    with Store.open(root, keep_locks=False) as store:
        for number, session in enumerate(SESSIONS):
            report = store.import_(str(_session(tmp_path / "sessions", number, *session)))
            assert len(report.conversations) == 1, session
        for agent, words in (("mia", "A person"), ("build-bot", "Watches the builds")):
            store.agents.register(agent, description=words)
        release = store.groups.create("Release 1.4", agent="mia", with_=["build-bot"]).id
        store.messages.send(
            "The build is green again. Shall I tag it?", agent="build-bot", conversation=release
        )
        store.update(release, tagged=["release"])
        flaky = _flaky(store)
        store.pin(flaky)
    return serve(root), flaky


def _is_still(page: Page) -> None:
    """Wait until fonts and what is drawn late stand."""
    page.evaluate("() => document.fonts.ready.then(() => new Promise(requestAnimationFrame))")


def test_a_conversation_shows_code_a_folded_call_a_diff_and_its_branches(
    shown: tuple[Served, str], contexts: Callable[..., BrowserContext]
) -> None:
    served, flaky = shown
    for name, options in (("web", TALL), ("web-phone", PHONE)):
        page = served.open(contexts(**options), f"/c/{flaky}")
        text = page.text_content("#messages") or ""
        assert (
            "pytest tests/test_resume.py" in text
            and "upload.acknowledged" in text
            and "2/2" in text
        )
        assert page.locator("article details:not([open]) > summary").count() >= 1
        page.locator("article details summary", has_text="queue.py").click()
        page.evaluate("() => scrollTo(0, 0)")
        _is_still(page)
        screenshot(page, name)


def test_the_list_says_from_which_program_each_conversation_came(
    shown: tuple[Served, str], contexts: Callable[..., BrowserContext]
) -> None:
    page = shown[0].open(contexts(**DESK), "/")
    text = page.text_content("#list") or ""
    for program in ("claude-code", "codex", "gemini"):
        assert f"from {program}" in " ".join(text.split())
    for asked in (session[4] for session in SESSIONS):
        assert asked in text
    screenshot(page, "web-list")


def test_a_search_shows_its_hits_in_their_surroundings(
    shown: tuple[Served, str], contexts: Callable[..., BrowserContext]
) -> None:
    page = shown[0].open(contexts(**DESK), "/search?q=resum*")
    assert page.locator("#list > li").count() >= 3
    assert (
        {"resume", "Resume", "resumes"}
        >= set(page.locator("#list mark").all_text_contents())
        != set()
    )
    screenshot(page, "web-search")
