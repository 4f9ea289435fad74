"""What the demonstration plays on: processes of the real commands, and the screen.

What must stay true: whatever is started is ended with the stage; and what does not go as it must ends the show.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import typer

from capsule.git.program import outside_hooks
from capsule_cli.output import Stopped, in_terminal, out, shown

__all__ = ["DEADLINE_S", "EACH", "Agent", "Stage", "Stream", "words_of"]

EACH = 60  # messages of each agent's stream
DEADLINE_S = 60
_PACKAGES = ("capsule", "capsule_cli")


class Stage:
    """Where a show runs: the store in `root`, commands on it, and what is said of them."""

    def __init__(self, root: str, processes: ExitStack, *, quiet: bool) -> None:
        self._root = root
        self._processes = processes
        self._quiet = quiet

    def _environment(self) -> dict[str, str]:
        here = os.pathsep.join(dict.fromkeys(str(Path(sys.modules[name].__path__[0]).parent) for name in _PACKAGES))
        environment = {name: value for name, value in outside_hooks().items() if name != "CAPSULE_INSTANCE"}
        environment["CAPSULE_STORE"] = self._root
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
        # The user's own settings of git stay out of it: a signature, for example, could ask for a password.
        environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        for who in ("AUTHOR", "COMMITTER"):
            environment |= {f"GIT_{who}_NAME": "demo", f"GIT_{who}_EMAIL": "demo@example.org"}
        return environment

    def _start(self, *words: str) -> subprocess.Popen[str]:
        return self._process([sys.executable, "-m", "capsule_cli", *words])

    def _process(self, command: list[str]) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            cwd=self._root if os.path.isdir(self._root) else None,
            env=self._environment(),
            encoding="utf-8",
            bufsize=1,
        )
        self._processes.callback(_end, process)
        return process

    def _run(self, *words: str) -> tuple[int, str, str]:
        process = self._start(*words)
        answer, errors = process.communicate(timeout=DEADLINE_S)
        return process.returncode, answer, errors

    def _capsule(self, *words: str, expect: int = 0) -> str:
        """Run a command, and print it with its answer. Returns: its stdout."""
        code, answer, errors = self._run(*words)
        self._say_of("capsule", words, errors + answer)
        if expect:
            self._say(f"    (exit code {code})")
        self._must(code == expect, f"capsule {words[0]} ended with {code}, not {expect}")
        return answer

    def _git(self, *words: str) -> None:
        """Run git in the store, and print the command with its answer."""
        process = self._process(["git", *words])
        answer, errors = process.communicate(timeout=DEADLINE_S)
        self._say_of("git", words, errors + answer)
        self._must(process.returncode == 0, f"git {words[0]} ended with {process.returncode}")

    def _say_of(self, program: str, words: tuple[str, ...], told: str) -> None:
        short = (self._short(word) for word in words)
        self._say(f"$ {program} " + " ".join(f'"{word}"' if " " in word else word for word in short))
        told = self._short(told.rstrip())
        if told:
            self._say("\n".join("    " + line for line in told.splitlines()))

    def _short(self, text: str) -> str:
        return text.replace(self._root, ".").replace(os.path.dirname(self._root), "..")

    def _until(self, there: Callable[[], bool], what: str) -> None:
        pause = threading.Event()
        for _ in range(DEADLINE_S * 200):
            if there():
                return
            pause.wait(0.005)
        raise Stopped(f"the demo waited in vain for {what}")

    def _scene(self, title: str) -> None:
        if not self._quiet:
            typer.secho(f"\n== {title}", bold=in_terminal())

    def _say(self, text: str) -> None:
        if text and not self._quiet:
            out(shown(text))

    def _must(self, fine: bool, otherwise: str) -> None:
        if not fine:
            raise Stopped(f"the demo failed: {otherwise}")


class Stream:
    """An `append --jsonl` process that is kept open, and the ids it acknowledged."""

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        self.process = process
        self.name = name
        self.ids: list[str] = []
        self.warnings = ""

    def say(self, text: str) -> None:
        """Append one message, and wait until it is acknowledged."""
        feed, answers = self.process.stdin, self.process.stdout
        assert feed is not None
        assert answers is not None
        feed.write(json.dumps({"content": text}) + "\n")
        answer = answers.readline()
        if answer:
            self.ids.append(json.loads(answer)["id"])

    def write(self, many: int, edited: threading.Event) -> None:
        """Append `many` messages, the last third of them once the person has saved."""
        for i in range(many):
            if i == many * 2 // 3:
                edited.wait(DEADLINE_S)
            self.say(words_of(self.name, i))

    def end(self) -> int:
        """Close the stream. Returns: the exit code."""
        self.warnings = self.process.communicate(timeout=DEADLINE_S)[1]
        return self.process.returncode


class Agent:
    """The client's side of the MCP server, in its own words: a line of JSON each."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._asked = 0
        takes = {"extensions": {"capsule/answers": {"takes": ["data"]}}}
        about = {"name": "demo", "version": "1"}
        self._ask("initialize", {"protocolVersion": "2025-11-25", "capabilities": takes, "clientInfo": about})
        self._write({"method": "notifications/initialized"})

    def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool. Returns: what it answered, as data."""
        found: dict[str, Any] = self._ask("tools/call", {"name": tool, "arguments": arguments})["structuredContent"]
        return found

    def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._asked += 1
        self._write({"id": self._asked, "method": method, "params": params})
        assert self.process.stdout is not None
        for line in self.process.stdout:
            answer = json.loads(line)
            if answer.get("id") == self._asked:
                if "result" not in answer:
                    break
                found: dict[str, Any] = answer["result"]
                return found
        raise Stopped(f"the demo failed: the MCP server did not answer {method}")

    def _write(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")

    def end(self) -> int:
        """Close the connection. Returns: the exit code."""
        self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode


def words_of(name: str, i: int) -> str:
    return f"{name}, message {i + 1} of {EACH}"


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
