"""`store demo`: demonstrate Capsule on a real store, by real commands, each in a process of its
own.

A run is a list of scenes (`_SCENES`), which are methods of `_DemoRun`. A scene starts commands,
prints each with its output, and compares the result with the files of the store (`check`).

What must stay true: only the order of the scenes is staged. Printed results were just read from the
files. Every started process ends with the demo. If a result is wrong, the exit code is 1. In the
scene of workers, the question gets exactly one answer, although a worker is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import HTTPCookieProcessor, ProxyHandler, build_opener

from capsule.errors import Locked, Refused
from capsule.git_program import clean_environment
from capsule_cli.shared.options import flag
from capsule_cli.shared.output import (
    CommandStopped,
    escape_controls,
    global_options,
    print_json,
    print_text,
    styled,
)

#: Seconds for each process and each request.
DEADLINE_S = 120


def print_step(text: str) -> None:
    """Print a step of the demo, but not with --json."""
    if text and not global_options.json:
        print_text(escape_controls(text))


def check(condition: bool, message: str) -> None:
    """End the demo if a condition is false. Raises CommandStopped."""
    if not condition:
        raise CommandStopped(f"the demo failed: {message}")


class Process(subprocess.Popen[str]):
    """A process that stays open, and answers a line of JSON with another one."""

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Write a line of JSON to the process, and return its answer. It is empty if the process
        has ended.
        """
        assert self.stdin is not None
        self.stdin.write(json.dumps(message) + "\n")
        return self.read_line()

    def read_line(self) -> dict[str, Any]:
        """Return the next line of the process. It is empty if the process has ended."""
        assert self.stdout is not None
        answer: dict[str, Any] = json.loads(self.stdout.readline() or "{}")
        return answer

    def request(self, method: str, **params: Any) -> Any:
        """Send a request as an MCP client does, and return the result."""
        answer = self.ask({"jsonrpc": "2.0", "id": method, "method": method, "params": params})
        while answer and answer.get("id") != method:  # A notification may come first.
            answer = self.read_line()
        check("result" in answer, f"the MCP server did not answer {method}")
        return answer["result"]

    def finish(self, expect: int = 0) -> tuple[str, str]:
        """Wait for the end of the process. Return its stdout and stderr."""
        answer, errors = self.communicate(timeout=DEADLINE_S)
        check(
            self.returncode == expect,
            f"{self.args!r} ended with {self.returncode}, not {expect}: {errors}",
        )
        return answer, errors


#: The script of the first worker. It schedules a task for itself.
MOWER = """\
import os, sys
from capsule import Store, timestamps
from capsule.sessions.worker.toolkit import Toolkit

if "Is it dry now?" in sys.stdin.read():
    print("It is dry: mown.")
else:
    soon = timestamps.from_ms(timestamps.ms_of(timestamps.now()) + 1000)
    with Store.open() as store:
        tools = Toolkit(store, os.environ["CAPSULE_SESSION"], os.environ["CAPSULE_MESSAGE"])
        tools.schedule("make", prompt="Is it dry now?", processAfter=soon)
    print("It is wet. I look again.")
"""
#: The script of the second worker. It hangs when it is run for the first time.
VET = 'mkdir hanging 2>/dev/null && sleep 600\necho "All sheep are well."\n'


def run_workers(
    directory: str, names: dict[str, str], run: Callable[..., str], start: Callable[[str], Process]
) -> None:
    """Let a host wake two workers, kill one of them, and check the answers.

    Args:
        directory: The directory of the demo.
        names: The paths that command lines may name.
        run: Runs a command line, and returns its output.
        start: Starts a command line that stays open.
    """
    for agent, program, script in (("mower", "{python}", MOWER), ("vet", "sh", VET)):
        names[agent] = os.path.join(directory, f"{agent}.script")
        Path(names[agent]).write_text(script, encoding="utf-8")
        run(f"capsule worker set {agent} --folder {{directory}} -- {program} {{{agent}}}")
    run("capsule agent register --as rosa")
    host, listener = start("capsule worker host"), start("capsule listen --as rosa --follow --json")
    print_step(f"$ capsule worker host      (kept open: process {host.pid})")
    _wait_for_step(host, "running")
    run("capsule send --as rosa --to mower 'Can you mow?'")
    sheep = run("capsule send --as rosa --to vet 'How are the sheep?'").strip()
    for _ in range(50 * DEADLINE_S):
        if os.path.isdir(os.path.join(directory, "hanging")):
            break
        time.sleep(0.02)
    workers = json.loads(start("capsule worker status --json").finish()[0])
    (pid,) = (worker["pid"] for worker in workers if worker.get("agent") == "vet")
    os.kill(pid, signal.SIGKILL)
    print_step(f"$ kill -9 {pid}      (the worker of vet, in the middle of its answer)")
    _wait_for_step(host, "retry")
    retry = start(f"capsule worker retry {sheep}")
    # On a slow machine the next try, which is due after five seconds, has begun already.
    if retry.wait(DEADLINE_S) == 0:
        print_step(f"$ capsule worker retry {sheep}")
    answers = [listener.read_line() for _ in range(3)]
    for answer in answers:
        print_step(f"heard by rosa: {answer.get('from')}: {answer.get('content')}")
    texts = sorted(str(answer.get("content")) for answer in answers)
    check(
        texts == ["All sheep are well.", "It is dry: mown.", "It is wet. I look again."],
        f"rosa heard {texts}",
    )
    host.terminate()
    check(host.wait(DEADLINE_S) == 143, "the host did not end")
    steps = [line.split("\t")[2] for line in run(f"capsule worker why {sheep}").splitlines()]
    check(
        steps.count("claimed") == 2 and steps.count("delivered") == 1,
        f"the way of the question is {steps}",
    )


def _wait_for_step(host: Process, name: str) -> None:
    """Wait until the host, or a worker, has logged a step."""
    assert host.stderr is not None
    while line := host.stderr.readline():
        entry = json.loads(line)
        if name in (entry.get("step"), entry.get("event")):
            return
    check(False, f"the host ended before {name}")


#: The id of the sample capsule of version 2.0, and a number in it that no float can hold.
SAMPLE = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
NUMBER = "12345678901234567890123"
AGENTS = ("ada", "bob", "cleo")
#: The number of messages that each agent writes in its stream.
MESSAGES_PER_AGENT = 60
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
    """One run of the demo, in a directory of its own. The docstring of a scene is its printed
    title.

    Attributes:
        acknowledged: The ids of the messages whose writes were acknowledged.
    """

    def __init__(self, directory: str, processes: ExitStack, *, is_kept: bool) -> None:
        self._directory, self._processes, self._is_kept = directory, processes, is_kept
        self._names = {name: os.path.join(directory, name) for name in ("store", "remote", "clone")}
        self._root = self._names["store"]
        self.acknowledged: list[str] = []
        source_folders = [
            str(Path(sys.modules[name].__path__[0]).parent) for name in ("capsule", "capsule_cli")
        ]
        # An agent may run the demo. The commands here must not act for it, or answer its hooks.
        contents = (
            "CAPSULE_INSTANCE",
            "CAPSULE_AGENT",
            "CAPSULE_SESSION",
            "CLAUDE_CODE_ENTRYPOINT",
            "CLAUDE_PROJECT_DIR",
        )
        self._environment = {
            name: value for name, value in clean_environment().items() if name not in contents
        }
        self._environment |= {f"GIT_{who}_NAME": "demo" for who in ("AUTHOR", "COMMITTER")}
        self._environment |= {
            f"GIT_{who}_EMAIL": "demo@example.org" for who in ("AUTHOR", "COMMITTER")
        }
        # Without the user's settings of git: a signature, for example, could ask for a password.
        self._environment |= {
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "CAPSULE_STORE": self._root,
        }
        self._environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [*source_folders, os.environ.get("PYTHONPATH")])
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
        original = json.loads(file.read_bytes())
        self._run(f"capsule store validate '{file}'")
        self._run(f"capsule append {SAMPLE[:8]} 'Merci !' --role user")
        text = file.read_text(encoding="utf-8")
        migrated = json.loads(text)
        check(
            migrated["version"] == "2.1" and len(migrated["history"]) == 2,
            "it was not migrated to version 2.1",
        )
        old_metadata = original["metadata"]
        first_message = migrated["history"][0]
        is_unchanged = (
            migrated["champInconnu"] == original["champInconnu"]
            and first_message["tokens"] == 17
            and migrated["metadata"]["couleur"] == old_metadata["couleur"]
            and NUMBER in text
        )
        check(is_unchanged, "an unknown field was changed")
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
            numbers = range(MESSAGES_PER_AGENT * third // 3, MESSAGES_PER_AGENT * (third + 1) // 3)
            return [
                streams[name].ask({"content": _message_text(name, number)})["id"]
                for number in numbers
            ]

        edited_document: dict[str, Any] = {}
        single_commands: list[Process] = []
        with ThreadPoolExecutor(len(AGENTS)) as pool:
            for third in range(3):
                writing = [pool.submit(write, name, third) for name in AGENTS]
                if third == 1:
                    arguments = [f"'One command, one message ({number}).'" for number in (1, 2)]
                    single_commands = [
                        self._start(f"capsule append --json {team} {text}") for text in arguments
                    ]
                if third == 2:
                    edited_document["title"] = TITLE
                    edited_document["history"].append({"role": "user", "content": BY_HAND})
                    copy = self._file(team).with_suffix(".json~")
                    copy.write_text(
                        json.dumps(edited_document, indent=2, ensure_ascii=False) + "\n",
                        encoding="utf-8",
                    )
                    copy.replace(self._file(team))
                self.acknowledged += [id for ids in writing for id in ids.result()]
                if third == 0:
                    edited_document = json.loads(self._file(team).read_bytes())
        print_step(
            f"the person opens the file in an editor, with {MESSAGES_PER_AGENT} messages, and saves it while "
            "there are twice as many,"
        )
        print_step("with a new title and a message typed in")
        self.acknowledged += [json.loads(command.finish()[0])["id"] for command in single_commands]
        for name, stream in streams.items():
            warnings = stream.finish()[1].rstrip()
            print_step(warnings and "    " + self._shorten_paths(warnings))
            print_step(f"{name}: {MESSAGES_PER_AGENT} messages acknowledged")
        print_step(f"single commands: {len(single_commands)} messages acknowledged")

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
        edited_document = self._run(f"capsule append {chat} 'Then I go on.'").strip()
        file_ids = [message["id"] for message in self._history(chat)]
        check(file_ids[1:] == [first, edited_document], "the chat lacks acknowledged messages")
        print_step("2 messages acknowledged in the chat, 2 in its file")

    def agent_and_listener(self) -> None:
        """An agent comes in by MCP; a retry doubles nothing, another process hears of it, search
        finds it
        """
        team = self._names["team"]
        since = self._start("capsule watch --print-cursor").finish()[0].strip()
        listener, agent = (
            self._start(f"capsule watch --json --after {since} {team}"),
            self._start("capsule mcp"),
        )
        print_step(f"$ capsule watch {team[:8]}      (kept open: process {listener.pid})")
        print_step(
            f"$ capsule mcp      (process {agent.pid}; an agent speaks with it over stdin and "
            "stdout)"
        )
        capabilities = {"extensions": {"capsule/answers": {"takes": ["data"]}}}
        client_info = {"name": "demo", "version": "1"}
        agent.request(
            "initialize",
            clientInfo=client_info,
            protocolVersion="2025-11-25",
            capabilities=capabilities,
        )
        assert agent.stdin is not None
        agent.stdin.write('{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
        arguments = {
            "id": team,
            "content": "Can you hear me from these pastures?",
            "idempotencyKey": "the demo's",
        }
        call = {"name": "append_message", "arguments": arguments | {"sender": "dora"}}
        edited_document, retried_answer = (
            agent.request("tools/call", **call)["structuredContent"] for _ in range(2)
        )
        print_step(
            f"    append_message: {json.dumps(edited_document)}\n    the same again: {json.dumps(retried_answer)}"
        )
        check(
            edited_document["message"] == retried_answer["message"]
            and retried_answer.get("repeated") is True,
            "a retry was appended twice",
        )
        messages = listener.read_line()
        print_step(
            f"heard by process {listener.pid}: {messages.get('kind')} "
            f"{', '.join(messages.get('messages', ()))}"
        )
        check(
            messages.get("messages") == [edited_document["message"]],
            "the listener heard of something else",
        )
        agent.finish()
        self.acknowledged.append(edited_document["message"])
        answer = self._run("capsule search 'hear* pastures'")
        check(
            answer.count("\n") == 1 and edited_document["message"] in answer,
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
        messages = asyncio.run(self._talk())
        check(
            QUESTION in messages and ANSWER in messages,
            "the two agents did not hear each other",
        )
        for who in ("ada", "bob"):
            mail = person.read_line()
            print_step(f"heard by process {person.pid}: {mail.get('from')}: {mail.get('content')}")
            check(mail.get("from") == who, "the person did not hear the agents")
        text = rules.read_text(encoding="utf-8")
        print_step(f"dora was away, and her CLAUDE.md now says:\n{self._shorten_paths(text)}")
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
        hook_message = hook.stderr.read().strip()
        check(
            "from ada" in hook_message and QUESTION not in hook_message,
            "the hook does not say who wrote",
        )
        print_step(
            f"the hook ended with exit code 2, which wakes eve, and says:\n    {hook_message}"
        )

    async def _talk(self) -> str:
        """Let Ada ask the group and Bob answer, each by a server of its own. Return the messages
        that the two received.
        """
        file_ids, messages = asyncio.Event(), []

        async def ada() -> None:
            async with self._client("ada") as call:
                await file_ids.wait()
                group_answer = await call(
                    "manage_group",
                    action="create",
                    name="Pastures",
                    agents=["bob", "paul", "dora", "eve"],
                )
                await call("send_message", conversation=_group_in(group_answer), text=QUESTION)
                messages.append(await call("listen", seconds=50))

        async def bob() -> None:
            async with self._client("bob") as call:
                file_ids.set()
                messages.append(await call("listen", seconds=50))
                await call("send_message", conversation=_group_in(messages[0]), text=ANSWER)

        await asyncio.gather(ada(), bob())
        return "\n".join(messages)

    @asynccontextmanager
    async def _client(self, agent: str) -> AsyncIterator[Callable[..., Awaitable[str]]]:
        """Start an MCP server for an agent. Yield a function that calls a tool and returns the
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
        run_workers(self._directory, self._names, self._run, self._start)

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
        file_ids = Path(self._names["clone"], "conversations", file.name).read_bytes()
        check(file_ids == file.read_bytes(), "the two clones do not hold the same bytes")
        print_step("the same bytes in both clones")

    def result(self) -> None:
        """What is in the file"""
        team = self._names["team"]
        header, *parts = self._start(f"capsule show {team}").finish()[0].rstrip().split("\n\n")
        position = next(
            (position for position, part in enumerate(parts) if part.endswith(BY_HAND)), 0
        )
        near_messages, end = (
            parts[max(position - 2, 0) : position + 3],
            parts[max(position + 3, len(parts) - 2) :],
        )
        print_step(
            "\n\n".join(
                [f"$ capsule show {team}", header, "[...]", *near_messages, "[...]", *end, ""]
            )
        )
        # The killed process left its instance file; nothing is wrong with it but that nobody needs
        # it.
        self._run("capsule doctor --repair")
        self._run("capsule doctor")
        history, title = self._history(team), json.loads(self._file(team).read_bytes())["title"]
        file_ids = [message["id"] for message in history if message["id"] in self.acknowledged]
        by_hand = [message["id"] for message in history if message["content"] == BY_HAND]
        print_step(
            f"the person's title: {title}\nthe person's message: "
            f"{'there' if len(by_hand) == 1 else 'MISSING'}"
        )
        print_step(f"{len(self.acknowledged)} messages acknowledged, {len(file_ids)} in the file")
        check(
            sorted(file_ids) == sorted(self.acknowledged),
            "acknowledged messages are missing or repeated",
        )
        check(title == TITLE and len(by_hand) == 1, "the person's edit was lost")
        check(
            len(history) == len(file_ids) + 1 == len(AGENTS) * MESSAGES_PER_AGENT + 6,
            "there are messages nobody wrote",
        )
        for name in AGENTS:
            contents = [message["content"] for message in history if message.get("from") == name]
            check(
                contents == [_message_text(name, i) for i in range(MESSAGES_PER_AGENT)],
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
            print_step(server.finish(Refused.exit_code)[1].strip())
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
        arguments = [word.format_map(self._names) for word in shlex.split(line)]
        command = (
            [sys.executable, "-m", "capsule_cli", *arguments[1:]]
            if arguments[0] == "capsule"
            else arguments
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
        self._processes.enter_context(process)  # Waits for its end, and closes the pipes.
        self._processes.callback(process.kill)
        return process

    def _run(self, line: str, expect: int = 0) -> str:
        """Run a command, and print it with its output. Return its stdout."""
        answer, errors = self._start(line).finish(expect)
        print_step("$ " + self._shorten_paths(line.format_map(self._names)))
        print_step(
            "\n".join(
                "    " + line
                for line in self._shorten_paths((errors + answer).rstrip()).splitlines()
            )
        )
        if expect:
            print_step(f"    (exit code {expect})")
        return answer

    def _shorten_paths(self, text: str) -> str:
        return text.replace(self._root, ".").replace(self._directory, "..")

    def _file(self, id: str) -> Path:
        return Path(self._root, "conversations", f"{id}.json")

    def _history(self, id: str) -> list[dict[str, Any]]:
        history: list[dict[str, Any]] = json.loads(self._file(id).read_bytes())["history"]
        return history


#: The scenes in their order.
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
    """Return the id of the group that a text names. Empty: it names none."""
    return "".join(re.findall(r"group_\w+", text)[:1])


def _message_text(name: str, number: int) -> str:
    return f"{name}, message {number + 1} of {MESSAGES_PER_AGENT}"
