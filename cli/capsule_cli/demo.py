"""`demo`: the main job on a real store, by the real commands, each a process of its own.

What must stay true: nothing is staged but the order of things; what is printed was just read back from the files;
and a number that is not as it must be ends in exit code 1.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import typer

from capsule.errors import Locked
from capsule_cli.demo_stage import DEADLINE_S, EACH, Agent, Stage, Stream, words_of
from capsule_cli.options import asked
from capsule_cli.output import Stopped, out_json

commands = typer.Typer()

SAMPLE = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
NUMBER = "12345678901234567890123"
AGENTS = ("ada", "bob", "cleo")
BY_HAND = "I typed this into the file with my editor, while the agents were writing."
BY_AGENT = "Can you hear me from these pastures?"
TITLE = "Release team (renamed by hand)"


@commands.command("demo")
def demo(ctx: typer.Context) -> None:
    """Show the main job on a store of its own: many writers, a hand edit, a lock, a kill -9, an agent, two clones."""
    if os.name != "posix":
        raise Stopped("the demo needs a POSIX system: it ends a process with SIGKILL")
    directory = tempfile.mkdtemp(prefix="capsule demo ")
    try:
        with ExitStack() as processes:
            show = _Show(os.path.join(directory, "store"), processes, quiet=asked(ctx).json)
            show.foreign_capsule()
            show.many_writers()
            show.lock_and_kill()
            show.agent_and_listener()
            show.two_clones()
            told = show.result()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if asked(ctx).json:
        out_json(told)


class _Show(Stage):
    """One run of the demonstration, on the store in `root`."""

    def __init__(self, root: str, processes: ExitStack, *, quiet: bool) -> None:
        super().__init__(root, processes, quiet=quiet)
        self._team = ""
        self._acknowledged: list[str] = []

    # -- The scenes ----------------------------------------------------------------------------------------------

    def foreign_capsule(self) -> None:
        """A capsule of version 2.0 that no program of this project wrote."""
        self._scene("A capsule from elsewhere opens as it is")
        self._capsule("init", self._root)
        sample = Path(__file__).with_name("data") / f"{SAMPLE}.json"
        before = sample.read_bytes()
        self._say(f"$ cp {sample.name} conversations/      (version 2.0, four spaces, fields nobody here knows)")
        self._file(SAMPLE).write_bytes(before)
        self._capsule("validate", str(self._file(SAMPLE)))
        self._capsule("append", SAMPLE[:8], "Merci !", "--role", "user")
        after = json.loads(self._file(SAMPLE).read_bytes())
        self._must(after["version"] == "2.1" and len(after["history"]) == 2, "it was not brought to version 2.1")
        text = self._file(SAMPLE).read_text(encoding="utf-8")
        self._must(NUMBER in text, f"the number {NUMBER} was changed")
        was = json.loads(before)
        self._must(after["champInconnu"] == was["champInconnu"], "an unknown field was changed")
        self._must(after["metadata"]["couleur"] == was["metadata"]["couleur"], "an unknown field was lost")
        self._must(after["history"][0]["tokens"] == 17, "an unknown field of a message was lost")
        self._say("now version 2.1, and every unknown field is still there, to the last digit:")
        self._say(
            "\n".join(line for line in text.splitlines() if NUMBER in line or "couleur" in line or "tokens" in line)
        )

    def many_writers(self) -> None:
        """Streams and single commands append to one conversation at once; a person saves a stale copy in between."""
        self._scene(f"{len(AGENTS)} agents and two commands append to one conversation at once, and a person edits it")
        self._team = self._capsule("new", "Release team", "--type", "group", "--tag", "demo").strip()
        streams = [Stream(self._start("append", "--jsonl", self._team, "--from", name), name) for name in AGENTS]
        edited = threading.Event()
        writers = [threading.Thread(target=stream.write, args=(EACH, edited), daemon=True) for stream in streams]
        for writer in writers:
            writer.start()
        commands = [self._start("append", "--json", self._team, f"One command, one message ({i}).") for i in (1, 2)]
        self._until(lambda: all(len(stream.ids) >= EACH // 10 for stream in streams), "the agents to write")
        mine = self._open_as_an_editor_does()
        self._say(f"the person opens the file in an editor: {len(mine['history'])} messages")
        self._until(lambda: all(len(stream.ids) >= EACH // 2 for stream in streams), "the agents to write on")
        written = len(self._open_as_an_editor_does()["history"])
        mine["title"] = TITLE
        mine["history"].append({"role": "user", "content": BY_HAND})
        self._save_as_an_editor_does(mine)
        edited.set()
        self._say(f"and saves it, with a new title and a message typed in; by then there were {written}")
        for writer in writers:
            writer.join(DEADLINE_S)
        for command in commands:
            answer, _ = command.communicate(timeout=DEADLINE_S)
            self._must(command.returncode == 0, "a single append failed")
            self._acknowledged.append(json.loads(answer)["id"])
        for stream in streams:
            self._must(stream.end() == 0 and len(stream.ids) == EACH, f"the stream of {stream.name} failed")
            self._acknowledged += stream.ids
            self._say(stream.warnings.rstrip() and "    " + stream.warnings.rstrip().replace(self._root, "."))
            self._say(f"{stream.name}: {len(stream.ids)} messages acknowledged")
        self._say(f"single commands: {len(commands)} messages acknowledged")

    def lock_and_kill(self) -> None:
        """A chat that another instance locks; the instance is killed; the chat goes on."""
        self._scene("Another instance holds a chat; it is killed with SIGKILL; the chat goes on")
        chat = self._capsule("new", "A chat", "--message", "Who writes here?").strip()
        holder = Stream(self._start("append", "--jsonl", chat, "--role", "assistant"), "holder")
        holder.say("I do, as long as I live.")
        self._say(f"$ capsule append --jsonl {chat[:8]}      (kept open: process {holder.process.pid} holds the chat)")
        self._capsule("append", chat, "Me too!", expect=Locked.exit_code)
        holder.process.send_signal(signal.SIGKILL)
        holder.process.wait(DEADLINE_S)
        self._say(f"$ kill -9 {holder.process.pid}")
        mine = self._capsule("append", chat, "Then I go on.").strip()
        there = [message.get("id") for message in self._history(chat)]
        self._must(there[1:] == [*holder.ids, mine], "the chat does not hold what was acknowledged")
        self._say("2 messages acknowledged in the chat, 2 in its file")

    def agent_and_listener(self) -> None:
        """An agent appends by MCP; another process hears of it at once; both find it by its words."""
        self._scene("An agent comes in by MCP; a retry doubles nothing, another process hears of it, search finds it")
        since = self._run("watch", "--print-cursor")[1].strip()
        listener = self._start("watch", "--json", "--cursor", since, self._team)
        agent = Agent(self._start("mcp"))
        self._say(f"$ capsule watch {self._team[:8]}      (kept open: process {listener.pid})")
        self._say(f"$ capsule mcp      (process {agent.process.pid}; an agent speaks with it over stdin and stdout)")
        words = {"id": self._team, "content": BY_AGENT, "sender": "dora", "idempotencyKey": "the demo's"}
        mine, again = (agent.call("append_message", words) for _ in range(2))
        self._say("    append_message: " + json.dumps(mine))
        self._say("    the same again: " + json.dumps(again))
        self._must(mine["message"] == again["message"] and again.get("repeated") is True, "a retry was appended twice")
        assert listener.stdout is not None
        heard = json.loads(listener.stdout.readline() or "{}")
        self._say(f"heard by process {listener.pid}: {heard.get('kind')} {', '.join(heard.get('messages', ()))}")
        self._must(heard.get("messages") == [mine["message"]], "the listener heard of something else")
        self._must(agent.end() == 0, "the MCP server failed")
        self._acknowledged.append(mine["message"])
        answer = self._capsule("search", "hear* pastures")
        self._must(answer.count("\n") == 1 and mine["message"] in answer, "the search did not find the one message")

    def two_clones(self) -> None:
        """The store goes into git; a clone and the original both go on; both end with every message."""
        self._scene("Two clones in git both go on talking; they merge by message, without a conflict")
        remote, clone = (os.path.join(os.path.dirname(self._root), name) for name in ("remote.git", "clone"))
        self._git("init", "-q", "-b", "main")
        self._capsule("git", "setup")
        self._git("init", "-q", "--bare", "-b", "main", remote)
        self._git("remote", "add", "origin", remote)
        self._capsule("git", "sync")
        self._git("clone", "-q", remote, clone)
        self._capsule("--store", clone, "git", "setup")
        for store, words in ((self._root, "Here it is raining."), (clone, "Over here the sun shines.")):
            self._acknowledged.append(self._capsule("--store", store, "append", self._team, words).strip())
        for store in (self._root, clone, self._root):
            self._capsule("--store", store, "git", "sync")
        self._capsule("git", "log", self._team, "--limit", "3")
        there = Path(clone, "conversations", self._file(self._team).name).read_bytes()
        self._must(there == self._file(self._team).read_bytes(), "the two clones do not hold the same bytes")
        self._say("the same bytes in both clones")

    def result(self) -> dict[str, Any]:
        """Print the conversation and the doctor's word, and count. Returns: the numbers."""
        self._scene("What is in the file")
        self._show_a_part()
        history = self._history(self._team)
        ids = [message.get("id") for message in history]
        title = json.loads(self._file(self._team).read_bytes())["title"]
        by_hand = sum(message["content"] == BY_HAND for message in history)
        wanted = set(self._acknowledged)
        there = sum(id in wanted for id in ids)
        self._say("\n")
        # The killed process left its instance file; nothing is wrong with it but that nobody needs it.
        self._capsule("doctor", "--repair")
        self._capsule("doctor")
        self._say(f"the person's title: {title}\nthe person's message: {'there' if by_hand == 1 else 'MISSING'}")
        self._say(f"{len(self._acknowledged)} messages acknowledged, {there} in the file")
        self._must(len(wanted) == len(self._acknowledged) == len(AGENTS) * EACH + 5, "an id was given twice")
        self._must(there == len(wanted), "acknowledged messages are missing, or stand there twice")
        self._must(title == TITLE and by_hand == 1, "the person's edit was lost")
        self._must(len(history) == there + 1, "there are messages nobody wrote")
        for name in AGENTS:
            own = [message["content"] for message in history if message.get("from") == name]
            self._must(own == [words_of(name, i) for i in range(EACH)], f"the messages of {name} are out of order")
        return {"acknowledged": len(self._acknowledged), "inFile": there, "ok": True}

    # -- What they are made of -----------------------------------------------------------------------------------

    def _show_a_part(self) -> None:
        header, *parts = self._run("show", self._team)[1].rstrip().split("\n\n")
        at = next((i for i, part in enumerate(parts) if part.endswith(BY_HAND)), 0)
        around, end = parts[max(at - 2, 0) : at + 3], parts[max(at + 3, len(parts) - 2) :]
        self._say(f"$ capsule show {self._team}\n")
        cut = ["[...]"]
        self._say("\n\n".join([header, *cut, *around, *cut, *end]))

    def _open_as_an_editor_does(self) -> dict[str, Any]:
        for _ in range(1000):
            try:
                found: dict[str, Any] = json.loads(self._file(self._team).read_bytes())
            except ValueError:  # read in the microseconds of a write; a person would see that, and load it again
                continue
            return found
        raise Stopped("the demo failed: the file can't be read beside its writers")

    def _save_as_an_editor_does(self, capsule: dict[str, Any]) -> None:
        copy = self._file(self._team).with_suffix(".json~")
        copy.write_text(json.dumps(capsule, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        copy.replace(self._file(self._team))

    def _file(self, id: str) -> Path:
        return Path(self._root, "conversations", f"{id}.json")

    def _history(self, id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self._file(id).read_bytes())["history"]
        return found
