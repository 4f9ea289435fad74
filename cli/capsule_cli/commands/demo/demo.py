"""`demo`: the main job on a real store, by the real commands, each a process of its own.

What must stay true: nothing is staged but the order of things; what is printed was just read back
from the files; whatever is started is ended with the show; and a number that is not as it must be
ends in exit code 1.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import HTTPCookieProcessor, ProxyHandler, build_opener

from capsule.errors import Locked, Refused
from capsule.git_program import clean_environment
from capsule_cli.commands.demo import workers
from capsule_cli.commands.demo.stage import DEADLINE_S, Process, check, print_step
from capsule_cli.shared.global_options import global_options
from capsule_cli.shared.options import flag
from capsule_cli.shared.output import CommandStopped, print_json, print_text, styled

SAMPLE = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
NUMBER = "12345678901234567890123"
AGENTS = ("ada", "bob", "cleo")
EACH = 60  # messages of each agent's stream
BY_HAND = "I typed this into the file with my editor, while the agents were writing."
TITLE = "Release team (renamed by hand)"
QUESTION, ANSWER = "The pastures are wet. Can we mow?", "Not before Friday."
RULES = "# Rules\n\nRun the tests.\n"


def demo(
    web: bool = flag("--web", "At the end, keep the page of that store open until Ctrl-C."),
) -> None:
    """Demonstrate Capsule on a new store: many writers, a lock, a kill -9, agents that talk,
    clones, a page.
    """
    if os.name != "posix":
        raise CommandStopped("the demo needs a POSIX system: it ends a process with SIGKILL")
    directories = tempfile.TemporaryDirectory(
        prefix="capsule store demo ", ignore_cleanup_errors=True
    )
    with directories as directory, ExitStack() as stack:
        show = _DemoRun(directory, stack, is_kept=web)
        for scene in _SCENES:
            if not global_options.json:
                print_text(styled(f"\n== {scene.__doc__}", 1))
            scene(show)
    if global_options.json:
        print_json(
            {"acknowledged": len(show.acknowledged), "inFile": len(show.acknowledged), "ok": True}
        )


class _DemoRun:
    """One run of the demonstration, in a directory of its own. The docstring of a scene is its
    title.
    """

    def __init__(self, directory: str, processes: ExitStack, *, is_kept: bool) -> None:
        self._directory, self._processes, self._is_kept = directory, processes, is_kept
        self._names = {name: os.path.join(directory, name) for name in ("store", "remote", "clone")}
        self._root = self._names["store"]
        self.acknowledged: list[str] = []
        here = [
            str(Path(sys.modules[name].__path__[0]).parent) for name in ("capsule", "capsule_cli")
        ]
        # Who runs the demo may be an agent: nothing here acts for it, or answers its hooks.
        own = (
            "CAPSULE_INSTANCE",
            "CAPSULE_AGENT",
            "CAPSULE_SESSION",
            "CLAUDE_CODE_ENTRYPOINT",
            "CLAUDE_PROJECT_DIR",
        )
        self._environment = {
            name: value for name, value in clean_environment().items() if name not in own
        }
        self._environment |= {f"GIT_{who}_NAME": "demo" for who in ("AUTHOR", "COMMITTER")}
        self._environment |= {
            f"GIT_{who}_EMAIL": "demo@example.org" for who in ("AUTHOR", "COMMITTER")
        }
        # The user's own settings of git stay out of it: a signature, for example, could ask for a
        # password.
        self._environment |= {
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "CAPSULE_STORE": self._root,
        }
        self._environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [*here, os.environ.get("PYTHONPATH")])
        )

    def foreign_capsule(self) -> None:
        """A capsule from elsewhere opens as it is"""
        self._run("capsule init {store}")
        sample, file = Path(__file__).with_name("data") / f"{SAMPLE}.json", self._file(SAMPLE)
        print_step(
            f"$ cp {sample.name} conversations/      (version 2.0, four spaces, fields nobody "
            "here knows)"
        )
        shutil.copyfile(sample, file)
        was = json.loads(file.read_bytes())
        self._run(f"capsule store validate '{file}'")
        self._run(f"capsule append {SAMPLE[:8]} 'Merci !' --role user")
        text = file.read_text(encoding="utf-8")
        now = json.loads(text)
        check(
            now["version"] == "2.1" and len(now["history"]) == 2,
            "it was not migrated to version 2.1",
        )
        same = now["champInconnu"] == was["champInconnu"] and now["history"][0]["tokens"] == 17
        same = same and now["metadata"]["couleur"] == was["metadata"]["couleur"] and NUMBER in text
        check(same, "an unknown field was changed")
        print_step("now version 2.1, and every unknown field is still there, to the last digit:")
        marks = (NUMBER, "couleur", "tokens")
        print_step(
            "\n".join(line for line in text.splitlines() if any(mark in line for mark in marks))
        )

    def many_writers(self) -> None:
        """3 agents and two commands append to one conversation at once, and a person edits it"""
        self._names["team"] = team = self._run(
            "capsule new 'Release team' --type group --tag demo"
        ).strip()
        streams = {
            name: self._start(f"capsule append --jsonl {team} --from {name}") for name in AGENTS
        }

        def write(name: str, third: int) -> list[str]:
            numbers = range(EACH * third // 3, EACH * (third + 1) // 3)
            return [
                streams[name].ask({"content": _words_of(name, number)})["id"] for number in numbers
            ]

        mine: dict[str, Any] = {}
        single: list[Process] = []
        with ThreadPoolExecutor(len(AGENTS)) as pool:
            for third in range(3):
                writing = [pool.submit(write, name, third) for name in AGENTS]
                if third == 1:
                    words = [f"'One command, one message ({number}).'" for number in (1, 2)]
                    single = [self._start(f"capsule append --json {team} {text}") for text in words]
                if third == 2:
                    mine["title"] = TITLE
                    mine["history"].append({"role": "user", "content": BY_HAND})
                    copy = self._file(team).with_suffix(".json~")
                    copy.write_text(
                        json.dumps(mine, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
                    )
                    copy.replace(self._file(team))
                self.acknowledged += [id for ids in writing for id in ids.result()]
                if third == 0:
                    mine = json.loads(self._file(team).read_bytes())
        print_step(
            f"the person opens the file in an editor, with {EACH} messages, and saves it while "
            "there are twice as many,"
        )
        print_step("with a new title and a message typed in")
        self.acknowledged += [json.loads(command.ended()[0])["id"] for command in single]
        for name, stream in streams.items():
            warnings = stream.ended()[1].rstrip()
            print_step(warnings and "    " + self._short(warnings))
            print_step(f"{name}: {EACH} messages acknowledged")
        print_step(f"single commands: {len(single)} messages acknowledged")

    def lock_and_kill(self) -> None:
        """Another instance holds a chat; it is killed with SIGKILL; the chat goes on"""
        chat = self._run("capsule new 'A chat' --message 'Who writes here?'").strip()
        holder = self._start(f"capsule append --jsonl {chat} --role assistant")
        first = holder.ask({"content": "I do, as long as I live."})["id"]
        print_step(
            f"$ capsule append --jsonl {chat[:8]}      (kept open: process {holder.pid} holds the "
            "chat)"
        )
        self._run(f"capsule append {chat} 'Me too!'", expect=Locked.exit_code)
        holder.kill()
        holder.wait(DEADLINE_S)
        print_step(f"$ kill -9 {holder.pid}")
        mine = self._run(f"capsule append {chat} 'Then I go on.'").strip()
        there = [message["id"] for message in self._history(chat)]
        check(there[1:] == [first, mine], "the chat lacks acknowledged messages")
        print_step("2 messages acknowledged in the chat, 2 in its file")

    def agent_and_listener(self) -> None:
        """An agent comes in by MCP; a retry doubles nothing, another process hears of it, search
        finds it
        """
        team = self._names["team"]
        since = self._start("capsule watch --print-cursor").ended()[0].strip()
        listener, agent = (
            self._start(f"capsule watch --json --after {since} {team}"),
            self._start("capsule mcp"),
        )
        print_step(f"$ capsule watch {team[:8]}      (kept open: process {listener.pid})")
        print_step(
            f"$ capsule mcp      (process {agent.pid}; an agent speaks with it over stdin and "
            "stdout)"
        )
        takes = {"extensions": {"capsule/answers": {"takes": ["data"]}}}
        me = {"name": "demo", "version": "1"}
        agent.request("initialize", clientInfo=me, protocolVersion="2025-11-25", capabilities=takes)
        assert agent.stdin is not None
        agent.stdin.write('{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
        words = {
            "id": team,
            "content": "Can you hear me from these pastures?",
            "idempotencyKey": "the demo's",
        }
        call = {"name": "append_message", "arguments": words | {"sender": "dora"}}
        mine, again = (agent.request("tools/call", **call)["structuredContent"] for _ in range(2))
        print_step(
            f"    append_message: {json.dumps(mine)}\n    the same again: {json.dumps(again)}"
        )
        check(
            mine["message"] == again["message"] and again.get("repeated") is True,
            "a retry was appended twice",
        )
        heard = listener.hear()
        print_step(
            f"heard by process {listener.pid}: {heard.get('kind')} "
            f"{', '.join(heard.get('messages', ()))}"
        )
        check(heard.get("messages") == [mine["message"]], "the listener heard of something else")
        agent.ended()
        self.acknowledged.append(mine["message"])
        answer = self._run("capsule search 'hear* pastures'")
        check(
            answer.count("\n") == 1 and mine["message"] in answer,
            "the search did not find the one message",
        )

    def messengers(self) -> None:
        """Two agents talk to each other, and a person follows; a third agent is away, and a fourth
        is woken
        """
        rules = Path(self._directory, "project", "CLAUDE.md")
        rules.parent.mkdir()
        rules.write_text(RULES, encoding="utf-8")
        self._names["project"] = str(rules.parent)
        for agent in ("ada", "bob", "paul", "eve", "dora --project {project}"):
            self._run(f"capsule agent register --as {agent}")
        person = self._start("capsule listen --as paul --follow --json")
        print_step(f"$ capsule listen --as paul --follow      (kept open: process {person.pid})")
        hook = self._start("capsule agent wake hook claude-code Stop --as eve")
        assert hook.stdin is not None
        hook.stdin.write(
            json.dumps({"session_id": "demo", "hook_event_name": "Stop", "cwd": self._root})
        )
        hook.stdin.close()
        print_step(
            f"$ capsule agent wake hook claude-code Stop --as eve      (process {hook.pid} waits "
            "beside her program)"
        )
        heard = asyncio.run(self._talk())
        check(QUESTION in heard and ANSWER in heard, "the two agents did not hear each other")
        for who in ("ada", "bob"):
            mail = person.hear()
            print_step(f"heard by process {person.pid}: {mail.get('from')}: {mail.get('content')}")
            check(mail.get("from") == who, "the person did not hear the agents")
        text = rules.read_text(encoding="utf-8")
        print_step(f"dora was away, and her CLAUDE.md now says:\n{self._short(text)}")
        check(
            "2 from ada, bob" in text and QUESTION not in text, "the block does not say what waits"
        )
        self._run("capsule listen --as dora --timeout 0s --ack")
        check(
            rules.read_text(encoding="utf-8") == RULES,
            "the block was not removed, or other text was removed with it",
        )
        print_step("dora has read them, and her CLAUDE.md is again as it was")
        check(hook.wait(DEADLINE_S) == 2, "the hook did not wake eve")
        assert hook.stderr is not None
        said = hook.stderr.read().strip()
        check("from ada" in said and QUESTION not in said, "the hook does not say who wrote")
        print_step(f"the hook ended with exit code 2, which wakes eve, and says:\n    {said}")

    async def _talk(self) -> str:
        """Ada asks the group, and Bob answers, each by a server of its own. Returns: what the two
        heard.
        """
        there, heard = asyncio.Event(), []

        async def ada() -> None:
            async with self._client("ada") as call:
                await there.wait()
                made = await call(
                    "manage_group",
                    action="create",
                    name="Pastures",
                    agents=["bob", "paul", "dora", "eve"],
                )
                await call("send_message", conversation=_group_in(made), text=QUESTION)
                heard.append(await call("listen", seconds=50))

        async def bob() -> None:
            async with self._client("bob") as call:
                there.set()
                heard.append(await call("listen", seconds=50))
                await call("send_message", conversation=_group_in(heard[0]), text=ANSWER)

        await asyncio.gather(ada(), bob())
        return "\n".join(heard)

    @asynccontextmanager
    async def _client(self, agent: str) -> AsyncIterator[Callable[..., Awaitable[str]]]:
        """An MCP server that is started as an agent; what is given calls a tool, and returns the
        text.
        """
        from mcp import Client, StdioServerParameters

        words = ["-m", "capsule_cli", "mcp", "--tools", "messaging", "--as", agent]
        server = StdioServerParameters(
            command=sys.executable, args=words, env=self._environment, cwd=self._root
        )
        async with Client(server) as client:

            async def call(tool: str, **arguments: Any) -> str:
                answer = await client.call_tool(tool, arguments)
                text = "\n".join(part.text for part in answer.content if part.type == "text")
                print_step(
                    "\n    ".join([f"{agent}: {tool} {json.dumps(arguments)}", *text.splitlines()])
                )
                return text

            yield call

    def workers(self) -> None:
        """A host wakes two scripts; one is killed in the middle, and its message is
        answered once
        """
        self._names |= {"directory": self._directory, "python": sys.executable}
        workers.act(self._directory, self._names, self._run, self._start)

    def two_clones(self) -> None:
        """Two clones in git both go on talking; they merge by message, without a conflict"""
        for line in (
            "git init -q -b main",
            "capsule git setup",
            "git init -q --bare -b main {remote}",
            "git remote add origin {remote}",
            "capsule git sync",
            "git clone -q {remote} {clone}",
            "capsule --store {clone} git setup",
        ):
            self._run(line)
        for line in (
            "append {team} 'Here it is raining.'",
            "--store {clone} append {team} 'Over here the sun shines.'",
        ):
            self.acknowledged.append(self._run(f"capsule {line}").strip())
        for line in (
            "git sync",
            "--store {clone} git sync",
            "git sync",
            "git log {team} --limit 3",
        ):
            self._run(f"capsule {line}")
        file = self._file(self._names["team"])
        there = Path(self._names["clone"], "conversations", file.name).read_bytes()
        check(there == file.read_bytes(), "the two clones do not hold the same bytes")
        print_step("the same bytes in both clones")

    def result(self) -> None:
        """What is in the file"""
        team = self._names["team"]
        header, *parts = self._start(f"capsule show {team}").ended()[0].rstrip().split("\n\n")
        at = next((at for at, part in enumerate(parts) if part.endswith(BY_HAND)), 0)
        around, end = parts[max(at - 2, 0) : at + 3], parts[max(at + 3, len(parts) - 2) :]
        print_step(
            "\n\n".join([f"$ capsule show {team}", header, "[...]", *around, "[...]", *end, ""])
        )
        # The killed process left its instance file; nothing is wrong with it but that nobody needs
        # it.
        self._run("capsule doctor --repair")
        self._run("capsule doctor")
        history, title = self._history(team), json.loads(self._file(team).read_bytes())["title"]
        there = [message["id"] for message in history if message["id"] in self.acknowledged]
        by_hand = [message["id"] for message in history if message["content"] == BY_HAND]
        print_step(
            f"the person's title: {title}\nthe person's message: "
            f"{'there' if len(by_hand) == 1 else 'MISSING'}"
        )
        print_step(f"{len(self.acknowledged)} messages acknowledged, {len(there)} in the file")
        check(
            sorted(there) == sorted(self.acknowledged),
            "acknowledged messages are missing or repeated",
        )
        check(title == TITLE and len(by_hand) == 1, "the person's edit was lost")
        check(
            len(history) == len(there) + 1 == len(AGENTS) * EACH + 6,
            "there are messages nobody wrote",
        )
        for name in AGENTS:
            own = [message["content"] for message in history if message.get("from") == name]
            check(
                own == [_words_of(name, i) for i in range(EACH)],
                f"the messages of {name} are out of order",
            )

    def page(self) -> None:
        """The store in a browser"""
        # A person opens the address below .localhost, which only browsers resolve. The demo is a
        # program, and asks for the address at 127.0.0.1.
        output = "" if self._is_kept else " --json"
        server = self._start(f"capsule web --port 0 --no-browser{output}")
        assert server.stdout is not None
        line = server.stdout.readline().strip()
        if not line:  # Its packages are not installed.
            print_step(server.ended(Refused.exit_code)[1].strip())
            return
        address = line if self._is_kept else json.loads(line)["url"]
        print_step(
            f"$ capsule web --port 0{output}      (process {server.pid}, the page of this store)\n"
            f"    {address}"
        )
        if self._is_kept:
            print_step("Ctrl-C ends it.")
            with suppress(KeyboardInterrupt):
                server.wait()
            return
        browser = build_opener(ProxyHandler({}), HTTPCookieProcessor())
        with browser.open(address, timeout=DEADLINE_S) as answer:
            check(TITLE in answer.read().decode(), "the page does not list the conversation")
        print_step("the page lists the conversation; to look at it: make demo ARGS=--web")

    def _start(self, line: str) -> Process:
        words = [word.format_map(self._names) for word in shlex.split(line)]
        command = (
            [sys.executable, "-m", "capsule_cli", *words[1:]] if words[0] == "capsule" else words
        )
        pipe, cwd = subprocess.PIPE, self._root if os.path.isdir(self._root) else None
        process = Process(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            cwd=cwd,
            env=self._environment,
            encoding="utf-8",
            bufsize=1,
        )
        self._processes.enter_context(process)  # Which waits for its end, and closes the pipes.
        self._processes.callback(process.kill)
        return process

    def _run(self, line: str, expect: int = 0) -> str:
        """Run a command, and print it with its answer. Returns: its stdout."""
        answer, errors = self._start(line).ended(expect)
        print_step("$ " + self._short(line.format_map(self._names)))
        print_step(
            "\n".join(
                "    " + line for line in self._short((errors + answer).rstrip()).splitlines()
            )
        )
        if expect:
            print_step(f"    (exit code {expect})")
        return answer

    def _short(self, text: str) -> str:
        return text.replace(self._root, ".").replace(self._directory, "..")

    def _file(self, id: str) -> Path:
        return Path(self._root, "conversations", f"{id}.json")

    def _history(self, id: str) -> list[dict[str, Any]]:
        history: list[dict[str, Any]] = json.loads(self._file(id).read_bytes())["history"]
        return history


#: What there is to see, in order.
_SCENES = [
    _DemoRun.foreign_capsule,
    _DemoRun.many_writers,
    _DemoRun.lock_and_kill,
    _DemoRun.agent_and_listener,
]
_SCENES += [
    _DemoRun.messengers,
    _DemoRun.workers,
    _DemoRun.two_clones,
    _DemoRun.result,
    _DemoRun.page,
]


def _group_in(text: str) -> str:
    """The id of the group that an answer names; empty: it names none."""
    return "".join(re.findall(r"group_\w+", text)[:1])


def _words_of(name: str, number: int) -> str:
    return f"{name}, message {number + 1} of {EACH}"
