"""`demo`: the main job on a real store, by the real commands, each a process of its own.

What must stay true: nothing is staged but the order of things; what is printed was just read back from the files;
whatever is started is ended with the show; and a number that is not as it must be ends in exit code 1.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import typer

from capsule.errors import Locked
from capsule.git.program import outside_hooks
from capsule_cli.shared.asked import asked
from capsule_cli.shared.output import Stopped, out, out_json, shown, styled

commands = typer.Typer()

SAMPLE = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
NUMBER = "12345678901234567890123"
AGENTS = ("ada", "bob", "cleo")
EACH = 60  # messages of each agent's stream
DEADLINE_S = 60
BY_HAND = "I typed this into the file with my editor, while the agents were writing."
BY_AGENT = "Can you hear me from these pastures?"
TITLE = "Release team (renamed by hand)"


@commands.command("demo")
def demo() -> None:
    """Show the main job on a store of its own: many writers, a hand edit, a lock, a kill -9, an agent, two clones."""
    if os.name != "posix":
        raise Stopped("the demo needs a POSIX system: it ends a process with SIGKILL")
    directory = tempfile.mkdtemp(prefix="capsule demo ")
    try:
        with ExitStack() as processes:
            show = _Show(os.path.join(directory, "store"), processes)
            show.foreign_capsule()
            show.many_writers()
            show.lock_and_kill()
            show.agent_and_listener()
            show.two_clones()
            told = show.result()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if asked.json:
        out_json(told)


def _scene(title: str) -> None:
    if not asked.json:
        out(styled(f"\n== {title}", 1))


def _say(text: str) -> None:
    if text and not asked.json:
        out(shown(text))


def _must(fine: bool, otherwise: str) -> None:
    if not fine:
        raise Stopped(f"the demo failed: {otherwise}")


def _words_of(name: str, i: int) -> str:
    return f"{name}, message {i + 1} of {EACH}"


class _Stream:
    """An `append --jsonl` process that is kept open, and the ids it acknowledged."""

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        self.process, self.name, self.ids = process, name, list[str]()

    def append(self, text: str) -> None:
        """Append one message, and wait until it is acknowledged."""
        self.ids += filter(None, [_ask(self.process, {"content": text}).get("id")])

    def write(self, edited: threading.Event) -> None:
        """Append the messages, the last third of them once the person has saved."""
        for i in range(EACH):
            if i == EACH * 2 // 3:
                edited.wait(DEADLINE_S)
            self.append(_words_of(self.name, i))


def _ask(process: subprocess.Popen[str], message: dict[str, Any]) -> dict[str, Any]:
    """Write a line of JSON to a process, and read one; empty when it has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(message) + "\n")
    found: dict[str, Any] = json.loads(process.stdout.readline() or "{}")
    return found


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


class _Show:
    """One run of the demonstration, on the store in `root`."""

    def __init__(self, root: str, processes: ExitStack) -> None:
        self._root = root
        self._processes = processes
        self._team = ""
        self._acknowledged: list[str] = []

    # -- The scenes ----------------------------------------------------------------------------------------------

    def foreign_capsule(self) -> None:
        """A capsule of version 2.0 that no program of this project wrote."""
        _scene("A capsule from elsewhere opens as it is")
        self._capsule("init", self._root)
        sample = Path(__file__).with_name("data") / f"{SAMPLE}.json"
        was = json.loads(sample.read_bytes())
        _say(f"$ cp {sample.name} conversations/      (version 2.0, four spaces, fields nobody here knows)")
        shutil.copyfile(sample, self._file(SAMPLE))
        self._capsule("validate", str(self._file(SAMPLE)))
        self._capsule("append", SAMPLE[:8], "Merci !", "--role", "user")
        text = self._file(SAMPLE).read_text(encoding="utf-8")
        now = json.loads(text)
        _must(now["version"] == "2.1" and len(now["history"]) == 2, "it was not brought to version 2.1")
        same = now["champInconnu"] == was["champInconnu"] and now["history"][0]["tokens"] == 17
        _must(same and now["metadata"]["couleur"] == was["metadata"]["couleur"], "an unknown field was changed")
        _must(NUMBER in text, f"the number {NUMBER} was changed")
        _say("now version 2.1, and every unknown field is still there, to the last digit:")
        marks = (NUMBER, "couleur", "tokens")
        _say("\n".join(line for line in text.splitlines() if any(mark in line for mark in marks)))

    def many_writers(self) -> None:
        """Streams and single commands append to one conversation at once; a person saves a stale copy in between."""
        _scene(f"{len(AGENTS)} agents and two commands append to one conversation at once, and a person edits it")
        self._team = self._capsule("new", "Release team", "--type", "group", "--tag", "demo").strip()
        streams = [_Stream(self._start("append", "--jsonl", self._team, "--from", name), name) for name in AGENTS]
        edited = threading.Event()
        writers = [threading.Thread(target=stream.write, args=(edited,), daemon=True) for stream in streams]
        for writer in writers:
            writer.start()
        commands = [self._start("append", "--json", self._team, f"One command, one message ({i}).") for i in (1, 2)]
        _until(lambda: all(len(stream.ids) >= EACH // 10 for stream in streams), "the agents to write")
        mine = self._open_as_an_editor_does()
        _say(f"the person opens the file in an editor: {len(mine['history'])} messages")
        _until(lambda: all(len(stream.ids) >= EACH // 2 for stream in streams), "the agents to write on")
        written = len(self._open_as_an_editor_does()["history"])
        mine["title"] = TITLE
        mine["history"].append({"role": "user", "content": BY_HAND})
        copy = self._file(self._team).with_suffix(".json~")
        copy.write_text(json.dumps(mine, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        copy.replace(self._file(self._team))
        edited.set()
        _say(f"and saves it, with a new title and a message typed in; by then there were {written}")
        for writer in writers:
            writer.join(DEADLINE_S)
        for command in commands:
            self._acknowledged.append(json.loads(self._ended(command, "a single append")[0])["id"])
        for stream in streams:
            warnings = self._ended(stream.process, f"the stream of {stream.name}")[1].rstrip()
            _must(len(stream.ids) == EACH, f"the stream of {stream.name} failed")
            self._acknowledged += stream.ids
            _say(warnings and "    " + self._short(warnings))
            _say(f"{stream.name}: {len(stream.ids)} messages acknowledged")
        _say(f"single commands: {len(commands)} messages acknowledged")

    def lock_and_kill(self) -> None:
        """A chat that another instance locks; the instance is killed; the chat goes on."""
        _scene("Another instance holds a chat; it is killed with SIGKILL; the chat goes on")
        chat = self._capsule("new", "A chat", "--message", "Who writes here?").strip()
        holder = _Stream(self._start("append", "--jsonl", chat, "--role", "assistant"), "holder")
        holder.append("I do, as long as I live.")
        _say(f"$ capsule append --jsonl {chat[:8]}      (kept open: process {holder.process.pid} holds the chat)")
        self._capsule("append", chat, "Me too!", expect=Locked.exit_code)
        holder.process.send_signal(signal.SIGKILL)
        holder.process.wait(DEADLINE_S)
        _say(f"$ kill -9 {holder.process.pid}")
        mine = self._capsule("append", chat, "Then I go on.").strip()
        there = [message.get("id") for message in self._history(chat)]
        _must(there[1:] == [*holder.ids, mine], "the chat does not hold what was acknowledged")
        _say("2 messages acknowledged in the chat, 2 in its file")

    def agent_and_listener(self) -> None:
        """An agent appends by MCP; another process hears of it at once; both find it by its words."""
        _scene("An agent comes in by MCP; a retry doubles nothing, another process hears of it, search finds it")
        since = self._ended(self._start("watch", "--print-cursor"), "watch")[0].strip()
        listener = self._start("watch", "--json", "--cursor", since, self._team)
        agent = self._start("mcp")
        _say(f"$ capsule watch {self._team[:8]}      (kept open: process {listener.pid})")
        _say(f"$ capsule mcp      (process {agent.pid}; an agent speaks with it over stdin and stdout)")
        about = {"clientInfo": {"name": "demo", "version": "1"}, "protocolVersion": "2025-11-25"}
        takes = {"extensions": {"capsule/answers": {"takes": ["data"]}}}
        self._request(agent, "initialize", about | {"capabilities": takes})
        assert agent.stdin is not None
        agent.stdin.write('{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
        words = {"id": self._team, "content": BY_AGENT, "sender": "dora", "idempotencyKey": "the demo's"}
        call = {"name": "append_message", "arguments": words}
        mine, again = (self._request(agent, "tools/call", call)["structuredContent"] for _ in range(2))
        _say("    append_message: " + json.dumps(mine))
        _say("    the same again: " + json.dumps(again))
        _must(mine["message"] == again["message"] and again.get("repeated") is True, "a retry was appended twice")
        assert listener.stdout is not None
        heard = json.loads(listener.stdout.readline() or "{}")
        _say(f"heard by process {listener.pid}: {heard.get('kind')} {', '.join(heard.get('messages', ()))}")
        _must(heard.get("messages") == [mine["message"]], "the listener heard of something else")
        self._ended(agent, "the MCP server")
        self._acknowledged.append(mine["message"])
        answer = self._capsule("search", "hear* pastures")
        _must(answer.count("\n") == 1 and mine["message"] in answer, "the search did not find the one message")

    def two_clones(self) -> None:
        """The store goes into git; a clone and the original both go on; both end with every message."""
        _scene("Two clones in git both go on talking; they merge by message, without a conflict")
        remote, clone = (os.path.join(os.path.dirname(self._root), name) for name in ("remote.git", "clone"))
        self._run("git", "init", "-q", "-b", "main")
        self._capsule("git", "setup")
        self._run("git", "init", "-q", "--bare", "-b", "main", remote)
        self._run("git", "remote", "add", "origin", remote)
        self._capsule("git", "sync")
        self._run("git", "clone", "-q", remote, clone)
        self._capsule("--store", clone, "git", "setup")
        for store, words in ((self._root, "Here it is raining."), (clone, "Over here the sun shines.")):
            self._acknowledged.append(self._capsule("--store", store, "append", self._team, words).strip())
        for store in (self._root, clone, self._root):
            self._capsule("--store", store, "git", "sync")
        self._capsule("git", "log", self._team, "--limit", "3")
        there = Path(clone, "conversations", self._file(self._team).name).read_bytes()
        _must(there == self._file(self._team).read_bytes(), "the two clones do not hold the same bytes")
        _say("the same bytes in both clones")

    def result(self) -> dict[str, Any]:
        """Print the conversation and the doctor's word, and count. Returns: the numbers."""
        _scene("What is in the file")
        header, *parts = self._ended(self._start("show", self._team), "show")[0].rstrip().split("\n\n")
        at = next((i for i, part in enumerate(parts) if part.endswith(BY_HAND)), 0)
        around, end = parts[max(at - 2, 0) : at + 3], parts[max(at + 3, len(parts) - 2) :]
        _say(f"$ capsule show {self._team}\n\n" + "\n\n".join([header, "[...]", *around, "[...]", *end]) + "\n\n")
        history = self._history(self._team)
        ids = [message.get("id") for message in history]
        title = json.loads(self._file(self._team).read_bytes())["title"]
        by_hand = sum(message["content"] == BY_HAND for message in history)
        wanted = set(self._acknowledged)
        there = sum(id in wanted for id in ids)
        # The killed process left its instance file; nothing is wrong with it but that nobody needs it.
        self._capsule("doctor", "--repair")
        self._capsule("doctor")
        _say(f"the person's title: {title}\nthe person's message: {'there' if by_hand == 1 else 'MISSING'}")
        _say(f"{len(self._acknowledged)} messages acknowledged, {there} in the file")
        _must(len(wanted) == len(self._acknowledged) == len(AGENTS) * EACH + 5, "an id was given twice")
        _must(there == len(wanted), "acknowledged messages are missing, or stand there twice")
        _must(title == TITLE and by_hand == 1, "the person's edit was lost")
        _must(len(history) == there + 1, "there are messages nobody wrote")
        for name in AGENTS:
            own = [message["content"] for message in history if message.get("from") == name]
            _must(own == [_words_of(name, i) for i in range(EACH)], f"the messages of {name} are out of order")
        return {"acknowledged": len(self._acknowledged), "inFile": there, "ok": True}

    # -- What they are made of -----------------------------------------------------------------------------------

    def _environment(self) -> dict[str, str]:
        here = [str(Path(sys.modules[name].__path__[0]).parent) for name in ("capsule", "capsule_cli")]
        environment = {name: value for name, value in outside_hooks().items() if name != "CAPSULE_INSTANCE"}
        environment["CAPSULE_STORE"] = self._root
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [*here, os.environ.get("PYTHONPATH")]))
        # The user's own settings of git stay out of it: a signature, for example, could ask for a password.
        environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        for who in ("AUTHOR", "COMMITTER"):
            environment |= {f"GIT_{who}_NAME": "demo", f"GIT_{who}_EMAIL": "demo@example.org"}
        return environment

    def _start(self, *words: str) -> subprocess.Popen[str]:
        return self._process([sys.executable, "-m", "capsule_cli", *words])

    def _process(self, command: list[str]) -> subprocess.Popen[str]:
        pipe, cwd = subprocess.PIPE, self._root if os.path.isdir(self._root) else None
        process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=cwd, env=self._environment(), encoding="utf-8", bufsize=1
        )
        self._processes.callback(_end, process)
        return process

    def _ended(self, process: subprocess.Popen[str], what: str) -> tuple[str, str]:
        """Wait for the end of a process. Returns: what it wrote to stdout, and to stderr."""
        told = process.communicate(timeout=DEADLINE_S)
        _must(process.returncode == 0, f"{what} ended with {process.returncode}")
        return told

    def _capsule(self, *words: str, expect: int = 0) -> str:
        return self._run("capsule", *words, expect=expect)

    def _run(self, *words: str, expect: int = 0) -> str:
        """Run a command, and print it with its answer. Returns: its stdout."""
        process = self._process(list(words)) if words[0] == "git" else self._start(*words[1:])
        answer, errors = process.communicate(timeout=DEADLINE_S)
        _say("$ " + " ".join(f'"{word}"' if " " in word else word for word in map(self._short, words)))
        _say("\n".join("    " + line for line in self._short((errors + answer).rstrip()).splitlines()))
        if expect:
            _say(f"    (exit code {expect})")
        _must(process.returncode == expect, f"{' '.join(words[:2])} ended with {process.returncode}, not {expect}")
        return answer

    def _request(self, agent: subprocess.Popen[str], method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Ask the MCP server, in a client's own words. Returns: its result."""
        answer = _ask(agent, {"jsonrpc": "2.0", "id": method, "method": method, "params": params})
        assert agent.stdout is not None
        while answer and answer.get("id") != method:  # It may tell of a change in between.
            answer = json.loads(agent.stdout.readline() or "{}")
        _must("result" in answer, f"the MCP server did not answer {method}")
        found: dict[str, Any] = answer["result"]
        return found

    def _short(self, text: str) -> str:
        return text.replace(self._root, ".").replace(os.path.dirname(self._root), "..")

    def _open_as_an_editor_does(self) -> dict[str, Any]:
        for _ in range(1000):
            with suppress(ValueError):  # read in the microseconds of a write; a person would load it again
                found: dict[str, Any] = json.loads(self._file(self._team).read_bytes())
                return found
        raise Stopped("the demo failed: the file can't be read beside its writers")

    def _file(self, id: str) -> Path:
        return Path(self._root, "conversations", f"{id}.json")

    def _history(self, id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self._file(id).read_bytes())["history"]
        return found


def _until(there: Callable[[], bool], what: str) -> None:
    pause = threading.Event()
    for _ in range(DEADLINE_S * 200):
        if there():
            return
        pause.wait(0.005)
    raise Stopped(f"the demo waited in vain for {what}")
