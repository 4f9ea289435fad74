"""How the tests run the program: within this process where that is the same, else as a process of
its own.
"""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from capsule_cli.app import app, program
from tests.postgres.stores import IS_POSTGRES

ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Answer:
    """What a run of the program gave."""

    code: int
    stdout: str
    stderr: str

    @property
    def line(self) -> str:
        """The last line of stdout."""
        return self.stdout.splitlines()[-1]


class Program:
    """`capsule` on one store, whose path has a space and letters beyond ASCII."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.started: list[subprocess.Popen[bytes]] = []

    def __call__(self, *words: str, expect: int = 0, input: str | bytes | None = None) -> Answer:
        result = CliRunner().invoke(app, list(words), input=input)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        answer = Answer(result.exit_code, result.stdout, result.stderr)
        assert answer.code == expect, answer
        return answer

    def json(self, *words: str, expect: int = 0) -> Any:
        return json.loads(self(*words, "--json", expect=expect).stdout)

    def new(self, *words: str) -> str:
        return self("new", *words).line

    def file(self, id: str) -> Path:
        return self.root / "conversations" / f"{id}.json"

    def history(self, id: str) -> list[Any]:
        return json.loads(self.file(id).read_bytes())["history"]

    def environment(self, **more: str) -> dict[str, str]:
        """What a process of its own runs in: what the test runs in, and the way to the program."""
        return {**os.environ, "PYTHONPATH": PATHS, **more}

    def start(self, *words: str | bytes, **settings: Any) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        usual: dict[str, Any] = {
            "stdin": pipe,
            "stdout": pipe,
            "stderr": pipe,
            "env": self.environment(),
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "capsule_cli", *words], **usual | settings
        )
        self.started.append(process)
        return process

    def stream(self, id: str, *words: str) -> subprocess.Popen[bytes]:
        """Start a stream of messages that stays open, the first of which is acknowledged."""
        process = self.start("append", id, "--jsonl", *words)
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b'{"content":"mine"}\n')
        process.stdin.flush()
        assert process.stdout.readline()
        return process

    def process(self, *words: str | bytes, expect: int = 0, input: bytes = b"") -> Answer:
        process = self.start(*words)
        stdout, stderr = process.communicate(input, timeout=60)
        answer = Answer(process.returncode, stdout.decode(), stderr.decode())
        assert answer.code == expect, answer
        return answer

    def terminal(
        self, *words: str, typed: str = "", expect: int = 0, has_bars: bool = False, **more: str
    ) -> str:
        """Run it at a terminal, where `typed` has been typed ahead, with `more` in its environment:
        the screen.

        Within this process: a program that the command starts does not see the terminal. Bars of
        progress are drawn always, or never, however slow the machine is.
        """
        master, slave = pty.openpty()
        os.write(master, typed.encode())
        screen: list[bytes] = []
        reader = threading.Thread(target=lambda: screen.extend(iter(lambda: _read(master), b"")))
        reader.start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("capsule_cli.shared.output._BAR_DELAY_S", -1 if has_bars else sys.maxsize)
            for name, value in (
                {"TERM": "xterm-256color", "LINES": "40", "PAGER": "cat"} | more
            ).items():
                patch.setenv(name, value)
            time.tzset()
            with open(slave) as stdin, open(slave, "w", closefd=False) as stdout:
                for name, stream in (("stdin", stdin), ("stdout", stdout), ("stderr", stdout)):
                    patch.setattr(sys, name, stream)
                with pytest.raises(SystemExit) as ended:
                    program().main(list(words), prog_name="capsule")
        time.tzset()
        reader.join(60)
        os.close(master)
        text = b"".join(screen).decode().replace("\r\n", "\n")
        assert (ended.value.code or 0) == expect, text
        return text

    def plain(self, *words: str, **more: Any) -> str:
        """As `terminal`, without colours and weights."""
        return plain(self.terminal(*words, **more))

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def plain(text: str) -> str:
    """A text without colours and weights."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def completed(line: str, at: int, shell: str = "bash") -> list[str]:
    """What the shell is offered for a word of a line."""
    asked = {
        "COMP_WORDS": line,
        "COMP_CWORD": str(at),
        "_TYPER_COMPLETE_ARGS": line,
    }  # As bash and zsh ask.
    result = CliRunner().invoke(
        app, env={"_CAPSULE_COMPLETE": f"complete_{shell}", **asked}, prog_name="capsule"
    )
    assert (result.stderr, result.exit_code) == ("", 0)
    return result.stdout.split()


PATHS = os.pathsep.join((str(ROOT), str(ROOT / "cli")))


def _read(master: int) -> bytes:
    try:
        return os.read(master, 65536)
    except OSError as error:
        if error.errno == errno.EIO:  # how Linux says that nobody has the other end open any more
            return b""
        raise


@pytest.fixture
def capsule(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    capsule = Program(root if IS_POSTGRES else root.rename(root.parent / "my störe"))
    monkeypatch.setenv("CAPSULE_STORE", str(capsule.root))
    yield capsule
    capsule.close()


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a shell script the person's editor; "$1" is the file to edit."""

    def make(script: str) -> Path:
        path = tmp_path / "my editor.sh"
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)
        monkeypatch.setenv("EDITOR", f"'{path}'")
        return path

    return make
